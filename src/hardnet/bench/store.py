"""Descriptors of whole patch sets on disk: computed once, mapped into memory ever after.

``<store>/<descriptor>-<fingerprint>/<data>/<key>.npy``, where the fingerprints are those of the
descriptor (what it is and does) and of the patches. A changed descriptor or set has another folder,
so old values are never read for new ones. A run that is killed continues where it was.
"""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import hardnet
from hardnet.bench.rows_file import WriteError, allow_many_maps, read_rows, write_rows
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import user_cache
from hardnet.storage import as_path, replacing

ABOUT = "predictions.json"
"""The file in each folder that says what its values are of."""


class Store:
    """A folder of predictions.

    Args:
        folder: ``predictions`` in the user's cache by default.
    """

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = as_path(folder) if folder is not None else user_cache() / "predictions"

    def open(self, descriptor: Descriptor, data: str) -> Predictions:
        """The predictions of one descriptor on one set.

        Args:
            descriptor: what describes the patches that are missing.
            data: fingerprint of the patch set.

        Raises:
            HardnetError: the folder belongs to something else, or cannot be written.
        """
        about = {"fingerprint": descriptor_digest(descriptor), "data": data}
        name = re.sub(r"[^\w.+-]", "_", descriptor.name)
        is_digest = re.fullmatch("[0-9a-f]{12,}", data)
        of_data = data if is_digest else hashlib.sha256(data.encode()).hexdigest()
        folder = self.folder / f"{name}-{about['fingerprint'][:12]}" / of_data[:12]
        try:
            _claim(folder, about, descriptor.name)
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        allow_many_maps()
        return Predictions(folder, descriptor, self.folder)


class Predictions:
    """The descriptors of one set by one descriptor, by key; made by :meth:`Store.open`."""

    def __init__(self, folder: Path, descriptor: Descriptor, store: Path) -> None:
        self.folder = folder
        self._descriptor = descriptor
        self._store = store

    def get(self, key: str, patches: Callable[[], NDArray[np.uint8]]) -> NDArray[Any]:
        """The descriptors of some patches, computed if they are not stored yet.

        Args:
            key: names them within the set; may contain "/".
            patches: called only if needed: (N, S, S), described in portions, so that it may be
                mapped from a file larger than the memory.

        Returns:
            (N, D) float32 or (N, B) uint8, read-only, mapped from the file.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise HardnetError(f"{key!r} cannot be the name of stored descriptors")
        path = self.folder.joinpath(*parts[:-1], parts[-1] + ".npy")
        stored = read_rows(path)
        if stored is not None:
            return stored
        try:
            write_rows(path, patches, self._describe)
        except WriteError as error:
            raise _unwritable(self._store, error.__cause__) from error
        stored = read_rows(path)
        if stored is None:
            raise HardnetError(f"{path} cannot be read back; choose another folder with --store")
        return stored

    def _describe(self, batch: NDArray[np.uint8]) -> NDArray[Any]:
        rows: NDArray[Any] = np.asarray(self._descriptor(batch))
        if rows.ndim != 2 or len(rows) != len(batch):
            raise HardnetError(
                f"{self._descriptor.name} made {rows.shape} of {len(batch)} patches, "
                f"not ({len(batch)}, D)"
            )
        return rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False)


def _claim(folder: Path, about: dict[str, str], name: str) -> None:
    """Make sure that a folder is for these predictions, and say so in it."""
    path = folder / ABOUT
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        folder.mkdir(parents=True, exist_ok=True)
        strangers = [entry.name for entry in folder.iterdir() if entry.suffix != ".part"]
        if strangers and not path.exists():  # it may have appeared meanwhile
            raise HardnetError(
                f"{folder} holds {strangers[0]}, but no {ABOUT}: it is not of a store of "
                "predictions; delete it or choose another folder with --store"
            ) from None
        with replacing(path) as part:
            text = about | {"descriptor": name, "hardnet": hardnet.__version__}
            part.write_text(json.dumps(text, indent=2) + "\n")
        return
    except ValueError:
        found = None
    if not isinstance(found, dict) or any(found.get(key) != about[key] for key in about):
        raise HardnetError(
            f"{path} does not belong to {name} on this set; "
            "delete its folder or choose another with --store"
        )


def _unwritable(store: Path, error: BaseException | None) -> HardnetError:
    """A full or read-only disk, as something the user can help."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        problem, advice = "is on a full disk", "make room, or choose another with --store"
    else:
        reason = error.strerror if isinstance(error, OSError) else error
        problem, advice = f"cannot be written ({reason})", "choose another with --store"
    return HardnetError(f"the store of predictions {store} {problem}: {advice}")
