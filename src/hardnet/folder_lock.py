"""A folder belongs to one process at a time."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_CONTENT = b"lock of hardnet\n"
_POLL = 0.1  # seconds between two attempts


class FolderLock:
    """A lock file in a folder.

    The system lets it go when the process ends, however it ends: a killed run blocks nobody.

    Args:
        folder: must exist when the lock is taken.
        name: of the file.

    Its content says that it is ours: a file of that name by others is locked, but never deleted.
    """

    def __init__(self, folder: Path, name: str = "lock") -> None:
        self._path = folder / name
        self._file: BinaryIO | None = None

    def take(self, seconds: float = 0.0) -> bool:
        """Whether the folder is ours now; others are given ``seconds`` to let it go."""
        try:
            import fcntl
        except ImportError:  # Windows: no guard
            return True
        deadline = time.monotonic() + seconds
        while True:
            try:
                file = self._path.open("xb", buffering=0)
                file.write(_CONTENT)
            except FileExistsError:
                file = self._path.open("ab", buffering=0)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_POLL)
                continue
            # Whoever had it before may have deleted it: a lock on a file without a name is none.
            if self._is_named(file):
                self._file = file
                return True
            file.close()

    def _is_named(self, file: BinaryIO) -> bool:
        try:
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return False

    def remove(self) -> None:
        """Delete the file, if we have the lock and made the file; before it is released."""
        with suppress(FileNotFoundError):
            if self._file is not None and self._path.read_bytes() == _CONTENT:
                self._path.unlink()

    def release(self) -> None:
        """Let it go, if we have it."""
        if self._file is not None:
            self._file.close()
            self._file = None
