"""A work folder: which stages of a reconstruction are done, for which photos and settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from hardnet.errors import HardnetError
from hardnet.sfm.colmap import DATABASE, SPARSE, check_database, database_files
from hardnet.storage import FolderLock, OwnedFolder, claim, replacing

STATE = "state.json"
LOCK = "lock"
_OLD = (STATE, "report.json", "skipped.json", f"{SPARSE}/", *database_files(DATABASE))


class WorkFolder:
    """Remembers finished stages in ``state.json``, and refuses other photos or settings.

    Use it in a ``with`` statement: the folder belongs to one process at a time.

    Args:
        folder: made if it is absent; else a work folder of the same inputs, or empty.
        inputs: JSON values that the results depend on.
    """

    def __init__(self, folder: Path, inputs: dict[str, Any]) -> None:
        self._folder = folder
        self._path = folder / STATE
        self._lock = FolderLock(folder, LOCK)
        # As a file gives them back: a tuple is a list there.
        self._content: dict[str, Any] = json.loads(json.dumps({**inputs, "done": []}))

    def __enter__(self) -> Self:
        folder = self._folder
        if not self._path.is_file() and _holds_files(folder):
            raise HardnetError(f"{folder} holds other files; name another work folder")
        marked = OwnedFolder.find(folder) is not None
        folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.take():
            raise HardnetError(
                f"another process works in {folder}: wait for it, or name another folder"
            )
        try:  # only now: whoever had the folder before may have written until it let go
            self._begin(marked)
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _begin(self, marked: bool) -> None:
        owned = OwnedFolder.mark(self._folder)
        owned.sweep()
        check_database(self._folder / DATABASE)
        if not self._path.is_file():
            self._write()
            return
        try:
            found = json.loads(self._path.read_text())
            found["done"]
        except (ValueError, KeyError, TypeError):
            raise HardnetError(f"{self._path} is damaged: delete {self._folder}") from None
        if others := [key for key in self._content if key != "done" and self._differs(found, key)]:
            raise HardnetError(
                f"{self._folder} was made from other photos or settings ({', '.join(others)}); "
                "delete it or name another work folder"
            )
        if not marked:  # by a version without lists of files, which began in empty folders only
            owned.adopt(*(name for name in _OLD if (self._folder / name).exists()))
        self._content = found

    def _differs(self, found: dict[str, Any], key: str) -> bool:
        return bool(found.get(key) != self._content[key])

    def has(self, stage: str) -> bool:
        """Whether the stage was finished."""
        return stage in self._content["done"]

    def add(self, stage: str) -> None:
        """Remember that the stage is finished."""
        self._content["done"].append(stage)
        self._write()

    def forget(self, *stages: str) -> None:
        """These stages must be done again."""
        done = [stage for stage in self._content["done"] if stage not in stages]
        if done != self._content["done"]:
            self._content["done"] = done
            self._write()

    def _write(self) -> None:
        write_json(self._path, self._content)


def _holds_files(folder: Path) -> bool:
    if not folder.is_dir():
        return folder.exists()
    if OwnedFolder.find(folder) is not None:  # killed before it wrote its state
        return False
    return any(path.name != LOCK for path in folder.iterdir())


def write_json(path: Path, value: Any) -> None:
    """Write a file that is complete or as it was, whenever the process is killed."""
    with replacing(claim(path)) as part:
        part.write_text(json.dumps(value, indent=1) + "\n")


def photo_facts(folder: Path, files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of change of each photo: enough to notice that they are others."""
    facts = [(p.relative_to(folder).as_posix(), p.stat()) for p in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in facts]
