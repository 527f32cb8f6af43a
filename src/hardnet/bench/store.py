"""Descriptors of whole patch sets on disk: computed once, mapped into memory ever after.

``<cache>/predictions/<descriptor>.<digest>/<key>.npy``, where the digest is of the descriptor (what
it is and does), of the patches and of the version of this package: old values are never read for
new ones. A folder of CSV files, as HPatches exchanges them, can stand for a descriptor.
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
from hardnet.patchsets.patchset import decoded
from hardnet.storage import as_path, folder_name, replacing

PORTION = 4096
"""Patches described at a time."""

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""
Describe = Callable[[str, Callable[[], Pixels]], NDArray[Any]]
"""(key, how to get the patches) -> (N, D) descriptors: ``Predictions.get``."""


def within(progress: Progress, where: str, what: str, done: int, total: int) -> None:
    """Report ``what`` is done as a part of ``where``."""
    progress(f"{where}: {what}", done, total)


class Store:
    """The cache of predictions, the user's by default."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = folder
        self._cache = Cache("predictions", folder)

    def open(self, descriptor: Descriptor, data: str) -> Predictions:
        """The predictions of one descriptor on the set of patches with the digest ``data``."""
        about = {"descriptor": descriptor_digest(descriptor), "data": data}
        label = re.sub(r"[^\w.+-]", "_", descriptor.name)
        allow_many_maps()
        return Predictions(self._cache, self._cache.path(about, label=label), descriptor)


class Predictions:
    """The descriptors of one set by one descriptor, by key; made by :meth:`Store.open`."""

    def __init__(self, cache: Cache, folder: Path, descriptor: Descriptor) -> None:
        self.folder = folder
        self._cache, self._descriptor = cache, descriptor

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


def allow_many_maps(count: int = 16_384) -> None:
    """Let this process have many files open, as far as the system lets it.

    A mapped file counts as open; usually only 1024 may be, and the HPatches benchmark has more.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


class CsvFolder:
    """A folder of CSV files in the place of a descriptor: ``ROOT/SEQUENCE/STRIP.csv``.

    One row per patch, numbers separated by commas (or semicolons), no header line. Most published
    descriptors exist in this form. Files are parsed once and mapped from the user's cache later.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder)
        if not self.folder.is_dir():
            raise HardnetError(f"no folder {self.folder} of descriptors, SEQUENCE/STRIP.csv")
        self.name = folder_name(self.folder)
        self._first: tuple[Path, int] | None = None
        allow_many_maps()

    def get(self, sequence: str, tag: str, count: int | None = None) -> NDArray[np.float32]:
        """(count, D) descriptors of one strip ("ref", "e1", ...), read-only."""
        path = self.folder / sequence / f"{tag}.csv"
        if not path.is_file():
            raise HardnetError(f"there is no {path}; it should have a row per patch of the strip")
        rows = decoded(self.folder, f"{sequence}.{tag}", [path], lambda: read_csv(path))
        if count is not None and len(rows) != count:
            raise HardnetError(f"{path} has {len(rows)} rows, but the strip has {count} patches")
        first = self._first = self._first or (path, rows.shape[1])
        if rows.shape[1] != first[1]:
            raise HardnetError(
                f"{path} has {rows.shape[1]} numbers per row, but {first[0]} has {first[1]}"
            )
        return rows


def read_csv(path: Path) -> NDArray[np.float32]:
    """(N, D) finite numbers of one file."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            if not first.strip():
                raise HardnetError(f"{path} is empty, or starts with an empty line")
            separator = ";" if ";" in first else ","
            rows = np.loadtxt(file, dtype=np.float32, comments=None, delimiter=separator, ndmin=2)
    except ValueError as error:
        reason = str(error).split(";")[0].rstrip(".")
        raise HardnetError(
            f"{path} is not rows of equally many numbers, separated by commas: {reason}"
        ) from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise HardnetError(f"{path} has NaN or infinity in row {int(np.argmax(bad)) + 1}")
    return rows


def write_csv(folder: Path | str, sequence: str, tag: str, descriptors: NDArray[Any]) -> Path:
    """Write (N, D) float32 descriptors or (N, B) packed bits of one strip; returns the path.

    Float vectors are written with as many digits as float32 has. Bits are written as 0 and 1: their
    L2 distance has the order of the Hamming distance.
    """
    path = as_path(folder) / sequence / f"{tag}.csv"
    if descriptors.ndim != 2:
        raise HardnetError(f"{path}: descriptors must be (N, D), got {descriptors.shape}")
    bits = descriptors.dtype == np.uint8
    rows = np.unpackbits(descriptors, axis=1) if bits else descriptors.astype(np.float32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            np.savetxt(part, rows, "%d" if bits else "%.9g", ",")
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror}") from error
    return path
