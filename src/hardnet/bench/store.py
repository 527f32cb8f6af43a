"""Descriptors of whole patch sets on disk: computed once, mapped into memory ever after.

``<cache>/predictions/<descriptor>.<digest>/<key>.npy``, where the digest is of the descriptor (what
it is and does), of the patches and of the version of this package. A changed descriptor or set has
another folder, so old values are never read for new ones.

A file grows portion by portion as ``<name>.part`` and gets its name only when it is complete:
whoever comes next after a kill continues the part. Only one process at a time writes it, the others
wait and find it done.

A folder of CSV files, as the HPatches benchmark exchanges them, can stand for a descriptor.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hardnet.cache import Cache, load_array
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import decoded
from hardnet.storage import FolderLock, as_path, folder_name, publish, replacing

PORTION = 4096
"""Rows computed and written at a time: a killed run loses at most these."""


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

    def get(self, key: str, patches: Callable[[], NDArray[np.uint8]]) -> NDArray[Any]:
        """(N, D) float32 or (N, B) uint8, mapped; computed if they are not stored yet.

        ``key`` names them within the set and may contain "/". ``patches`` is called only if needed
        and described in portions, so that it may be mapped from a file larger than the memory.
        """
        parts = key.split("/")
        if any(part in ("", ".", "..") for part in parts):
            raise HardnetError(f"{key!r} cannot be the name of stored descriptors")
        path = self.folder.joinpath(*parts[:-1], parts[-1] + ".npy")
        stored = read_rows(path)
        if stored is None:
            self._write(path, patches)
            stored = read_rows(path)
        if stored is None:
            raise HardnetError(f"{path} cannot be read back; choose another folder with --store")
        return stored

    def _write(self, path: Path, patches: Callable[[], NDArray[np.uint8]]) -> None:
        part = path.with_name(path.name + ".part")
        with self._locked(part) as file:
            if read_rows(path) is not None:  # another process was faster
                part.unlink(missing_ok=True)
                return
            items = patches()
            with self._writing():
                done, row = _resume(file, len(items))
            for start in range(done, max(len(items), 1), PORTION):
                rows = np.ascontiguousarray(self._describe(items[start : start + PORTION]))
                this = rows.shape[1], rows.dtype
                if row is not None and row != this:
                    raise HardnetError(f"{path.name}: rows of {this} follow rows of {row}")
                with self._writing():
                    if row is None:
                        header = npy.header_data_from_array_1_0(rows)
                        header["shape"] = (len(items), rows.shape[1])
                        npy.write_array_header_1_0(file, header)
                    file.write(rows.data)
                    file.flush()
                row = this
            with self._writing():
                publish(part, path)

    def _describe(self, batch: NDArray[np.uint8]) -> NDArray[Any]:
        rows: NDArray[Any] = np.asarray(self._descriptor(batch))
        if rows.ndim != 2 or len(rows) != len(batch):
            raise HardnetError(
                f"{self._descriptor.name} made {rows.shape} of {len(batch)} patches, "
                f"not ({len(batch)}, D)"
            )
        return rows if rows.dtype == np.uint8 else rows.astype(np.float32, copy=False)

    @contextmanager
    def _locked(self, part: Path) -> Iterator[BinaryIO]:
        """The file, for reading and appending, for one process at a time."""
        lock = FolderLock(part.parent, f"{part.name}.lock")
        with self._writing():
            part.parent.mkdir(parents=True, exist_ok=True)
            with suppress(OSError):  # some network disks cannot lock
                lock.take(math.inf)
            file = part.open("a+b")
        try:
            yield file
        except BaseException:
            with suppress(OSError):  # closing tries again to write what could not be written
                file.close()
            raise
        else:
            with self._writing():
                file.close()
        finally:
            lock.remove()
            lock.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise self._cache.unwritable(error) from error


def read_rows(path: Path) -> NDArray[Any] | None:
    """The (N, D) rows of an ``.npy`` file, mapped; None if it is absent or not complete."""
    try:
        with path.open("rb") as file:
            shape, dtype, offset = _read_header(file)
            size = os.fstat(file.fileno()).st_size
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if size != offset + shape[0] * shape[1] * dtype.itemsize:
        return None
    if size == offset:  # nothing there to map
        empty: NDArray[Any] = np.empty(shape, dtype)
        empty.flags.writeable = False
        return empty
    return load_array(path)


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


def _read_header(file: BinaryIO) -> tuple[tuple[int, int], np.dtype[Any], int]:
    """Shape and type of the rows, and where they begin; ValueError if that is not said."""
    if npy.read_magic(file) != (1, 0):
        raise ValueError("another version of the format")
    shape, fortran_order, dtype = npy.read_array_header_1_0(file)
    if len(shape) != 2 or fortran_order:
        raise ValueError("not rows")
    return (shape[0], shape[1]), dtype, file.tell()


def _resume(file: BinaryIO, count: int) -> tuple[int, tuple[int, np.dtype[Any]] | None]:
    """How many rows a partial file has, and of what; what cannot be used is cut off."""
    file.seek(0)
    try:
        shape, dtype, offset = _read_header(file)
    except ValueError:
        shape, dtype, offset = (-1, 0), np.dtype(np.uint8), 0
    row_bytes = shape[1] * dtype.itemsize
    if shape[0] != count or not row_bytes:
        file.truncate(0)
        return 0, None
    done = min((os.fstat(file.fileno()).st_size - offset) // row_bytes, count)
    file.truncate(offset + done * row_bytes)
    return done, (shape[1], dtype)


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
