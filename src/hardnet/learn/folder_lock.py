"""A folder belongs to one process at a time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import BinaryIO

_POLL = 0.1  # seconds between two attempts


class FolderLock:
    """A lock file in a folder.

    The system lets it go when the process ends, however it ends: a killed run blocks nobody.

    Args:
        folder: must exist when the lock is taken.
        name: of the file.
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
        file = self._path.open("ab")
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.close()
                    return False
                time.sleep(_POLL)
            else:
                self._file = file
                return True

    def release(self) -> None:
        """Let it go, if we have it."""
        if self._file is not None:
            self._file.close()
            self._file = None
