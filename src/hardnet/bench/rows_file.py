"""An ``.npy`` file of descriptors that grows portion by portion and survives being killed.

It grows under the name of :func:`part_of` and gets its own only when it is complete; whoever comes
next continues the part. Only one process at a time writes it, the others wait and find it done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.storage import PART, OwnedFolder

PORTION = 4096
"""Rows computed and written at a time: a killed run loses at most these."""


class WriteError(Exception):
    """The file could not be written; its cause is the OSError."""


@dataclass(frozen=True)
class _Header:
    """What a file says it holds, and where that starts."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    offset: int

    @property
    def row(self) -> tuple[int, str]:
        return self.shape[1], str(self.dtype)

    @property
    def row_bytes(self) -> int:
        return int(self.shape[1]) * self.dtype.itemsize


def read_rows(path: Path) -> NDArray[Any] | None:
    """The (N, D) rows of a file, mapped read-only; None if it is absent or not complete."""
    try:
        with path.open("rb") as file:
            header = _read_header(file)
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return None
    if header is None or size != header.offset + header.shape[0] * header.row_bytes:
        return None
    if size == header.offset:  # nothing there to map
        empty: NDArray[Any] = np.empty(header.shape, header.dtype)
        empty.flags.writeable = False
        return empty
    return np.memmap(path, header.dtype, "r", header.offset, header.shape)


def part_of(path: Path) -> Path:
    """Where a file grows; the name has the number of its folder, which only we write."""
    return path.with_name(f"{path.name}.{OwnedFolder.mark(path.parent).number}{PART}")


def write_rows(
    path: Path, source: Callable[[], NDArray[Any]], compute: Callable[[NDArray[Any]], NDArray[Any]]
) -> None:
    """Make a file whose row i is computed from item i of the source.

    Args:
        path: of the file, ending in ``.npy``.
        source: called once, for (N, ...) items, unless another process has made the file.
        compute: (n, ...) items -> (n, D) rows, always of the same D and type.

    Raises:
        WriteError: the disk is full, read-only, or gone.
    """
    with _writing():
        part = part_of(path)
    with _locked(part) as file:
        if read_rows(path) is not None:  # another process was faster
            part.unlink(missing_ok=True)
            return
        items = source()
        with _writing():
            done, row = _resume(file, len(items))
        for start in range(done, max(len(items), 1), PORTION):
            rows = np.ascontiguousarray(compute(items[start : start + PORTION]))
            header = npy.header_data_from_array_1_0(rows)
            header["shape"] = (len(items), rows.shape[1])
            this = rows.shape[1], str(rows.dtype)
            if row is not None and row != this:
                raise HardnetError(f"{path.name}: rows of {this} follow rows of {row}")
            with _writing():
                if row is None:
                    npy.write_array_header_1_0(file, header)
                file.write(rows.data)
                file.flush()
            row = this
        with _writing():
            os.fsync(file.fileno())  # else a power cut may leave the name without the content
            os.replace(part, path)


def allow_many_maps(count: int = 16_384) -> None:
    """Let this process have many files open, as far as the system lets it.

    A file that is mapped into memory counts as open, and usually only 1024 may be; the HPatches
    benchmark keeps some 2000 mapped.
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


def _read_header(file: BinaryIO) -> _Header | None:
    try:
        if npy.read_magic(file) != (1, 0):
            return None
        shape, fortran_order, dtype = npy.read_array_header_1_0(file)
    except ValueError:
        return None
    if len(shape) != 2 or fortran_order:
        return None
    return _Header(shape, dtype, file.tell())


def _resume(file: BinaryIO, count: int) -> tuple[int, tuple[int, str] | None]:
    """How many rows a partial file has, and of what; what cannot be used is cut off."""
    file.seek(0)
    header = _read_header(file)
    if header is None or header.shape[0] != count or not header.row_bytes:
        file.truncate(0)
        return 0, None
    size = os.fstat(file.fileno()).st_size
    done = min((size - header.offset) // header.row_bytes, count)
    file.truncate(header.offset + done * header.row_bytes)
    return done, header.row


@contextmanager
def _locked(part: Path) -> Iterator[BinaryIO]:
    """The file, for reading and appending, for one process at a time where that is possible."""
    with _writing():
        part.parent.mkdir(parents=True, exist_ok=True)
        file = part.open("a+b")
    try:
        with suppress(ImportError, OSError):  # Windows and some network disks cannot lock
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        yield file
    except BaseException:
        with suppress(OSError):  # closing tries again to write what could not be written
            file.close()
        raise
    with _writing():
        file.close()


@contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WriteError from error
