"""Descriptors of whole patch sets in the cache: computed once, then mapped into memory.

They are identified by digests of the descriptor (code and weights) and of the patches, so stale
values are never used.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError
from hardnet.images import Pixels
from hardnet.provenance import Cache, descriptor_digest

PORTION = 4096
"""Patches described at a time."""

FILES = 16_384
"""Files that a process should be able to have open."""

Describe = Callable[[str, Callable[[], Pixels]], NDArray[Any]]
"""(key, how to get the patches) -> (N, D) descriptors: ``Predictions.get``."""


class Predictions:
    """The descriptors of one set by one descriptor, by key.

    ``data`` is the digest of the patches, ``folder`` the cache, the user's by default.
    """

    def __init__(self, descriptor: Descriptor, data: str, folder: Path | str | None = None) -> None:
        self._descriptor, self._cache = descriptor, Cache("predictions", folder)
        self._about = {"descriptor": descriptor_digest(descriptor), "data": data}
        self._label = re.sub(r"[^\w.+-]", "_", descriptor.name)
        allow_many_maps()

    @property
    def digest(self) -> str:
        return "{descriptor} of {data}".format(**self._about)

    def get(self, key: str, patches: Callable[[], Pixels]) -> NDArray[Any]:
        """(N, D) float32 or (N, B) uint8, mapped; computed if they are not stored yet.

        ``key`` names them within the set. ``patches`` is called only if needed and described in
        portions, so that it may be mapped from a file larger than the memory.
        """
        about = self._about | {"key": key}
        return self._cache.array(about, lambda: self._describe(patches()), self._label)

    def _describe(self, patches: Pixels) -> NDArray[Any]:
        name, found = self._descriptor.name, []
        for start in range(0, max(len(patches), 1), PORTION):
            batch = patches[start : start + PORTION]
            rows: NDArray[Any] = np.asarray(self._descriptor(batch))
            if rows.ndim != 2 or len(rows) != len(batch):
                raise HardnetError(
                    f"{name} made {rows.shape} of {len(batch)} patches, not ({len(batch)}, D)"
                )
            found.append(rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False))
        kinds = {(rows.shape[1], rows.dtype) for rows in found}
        if len(kinds) > 1:
            raise HardnetError(f"{name} made rows of different kinds: {sorted(map(str, kinds))}")
        return np.concatenate(found)


def allow_many_maps() -> None:
    """Raise the limit on open files of this process as far as the system allows.

    A mapped file counts as open; the usual limit is 1024, and the HPatches benchmark needs more.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
