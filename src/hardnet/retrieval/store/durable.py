"""Files that are on the disk when we say so, and errors of the disk in plain words."""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.storage import replacing

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CHUNK = 1 << 24


@dataclass(frozen=True)
class FileFacts:
    """What a file must be: its size, and the crc32 of its bytes."""

    bytes: int
    crc32: int


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    """Write and sync a new file; its name is on the disk after :func:`sync_folder`.

    It must not be there: somebody may have it mapped, and would see it change.
    """
    with path.open("xb", buffering=0) as file:
        return _write(file, chunks)


def _write(file: FileIO, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    size = crc = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        crc = zlib.crc32(view, crc)
        size += len(view)
        while len(view):
            view = view[file.write(view) :]
    os.fsync(file.fileno())
    return FileFacts(size, crc)


def sync_folder(folder: Path) -> None:
    """Names made or replaced in a folder survive a power cut from here on."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, content: bytes) -> FileFacts:
    """Give a file a new content, at once: a reader sees the old one or the new one."""
    with replacing(path) as part, part.open("wb", buffering=0) as file:
        facts = _write(file, [content])
    sync_folder(path.parent)
    return facts


def file_facts(path: Path) -> FileFacts:
    """Size and crc32 of a file as it is."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return FileFacts(size, crc)


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of the disk below this become one line that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise HardnetError(
                f"the disk of the index {folder} is full ({reason}); what was committed is "
                "unharmed: make room and repeat the command"
            ) from error
        raise HardnetError(
            f"the index {folder} cannot be written: {reason}; what was committed is unharmed: "
            "check the disk and your rights to the folder"
        ) from error
