"""Descriptors of whole patch sets on disk: computed once, mapped into memory ever after.

``<cache>/predictions/<descriptor>.<digest>/<key>.npy``, where the digest is of the descriptor (what
it is and does), of the patches and of the version of this package: old values are never read for
new ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.cache import Cache, load_array, save_array
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.images import Pixels
from hardnet.storage import replacing

PORTION = 4096
"""Patches described at a time."""

FILES = 16_384
"""That a process should be able to have open."""

Describe = Callable[[str, Callable[[], Pixels]], NDArray[Any]]
"""(key, how to get the patches) -> (N, D) descriptors: ``Predictions.get``."""


class Predictions:
    """The descriptors of one set by one descriptor, by key.

    ``data`` is the digest of the patches, ``folder`` the cache, the user's by default.
    """

    def __init__(self, descriptor: Descriptor, data: str, folder: Path | str | None = None) -> None:
        self._descriptor, self._cache = descriptor, Cache("predictions", folder)
        about = {"descriptor": descriptor_digest(descriptor), "data": data}
        label = re.sub(r"[^\w.+-]", "_", descriptor.name)
        self.folder = self._cache.path(about, label=label)
        allow_many_maps()

    def get(self, key: str, patches: Callable[[], Pixels]) -> NDArray[Any]:
        """(N, D) float32 or (N, B) uint8, mapped; computed if they are not stored yet.

        ``key`` names them within the set and may contain "/". ``patches`` is called only if needed
        and described in portions, so that it may be mapped from a file larger than the memory.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise HardnetError(f"{key!r} cannot be the name of stored descriptors")
        path = self.folder.joinpath(*parts[:-1], parts[-1] + ".npy")
        with suppress(OSError, ValueError, EOFError):  # absent or damaged
            return load_array(path)
        rows = self._describe(patches())
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                save_array(part, rows)
        except OSError as error:
            raise self._cache.unwritable(error) from error
        return load_array(path)

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
    """Let this process have many files open, as far as the system lets it.

    A mapped file counts as open; usually only 1024 may be, and the HPatches benchmark has more.
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
