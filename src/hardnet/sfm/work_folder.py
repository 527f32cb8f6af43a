"""A work folder: which stages of a reconstruction are done, for which photos and settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError

STATE = "state.json"


class WorkFolder:
    """Remembers finished stages in ``state.json``, and refuses other photos or settings.

    Args:
        folder: made if it is absent; else a work folder of the same inputs, or empty.
        inputs: JSON values that the results depend on.
    """

    def __init__(self, folder: Path, inputs: dict[str, Any]) -> None:
        self._path = folder / STATE
        # As a file gives them back: a tuple is a list there.
        self._content: dict[str, Any] = json.loads(json.dumps({**inputs, "done": []}))
        if self._path.is_file():
            found = json.loads(self._path.read_text())
            if {**found, "done": []} != self._content:
                raise HardnetError(
                    f"{folder} was made from other photos or settings; delete it or name another "
                    "work folder"
                )
            self._content = found
        elif folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise HardnetError(f"{folder} holds other files; name another work folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def has(self, stage: str) -> bool:
        """Whether the stage was finished."""
        return stage in self._content["done"]

    def add(self, stage: str) -> None:
        """Remember that the stage is finished."""
        self._content["done"].append(stage)
        self._write()

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._content, indent=1) + "\n")
        part.replace(self._path)


def photo_facts(folder: Path, files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of change of each photo: enough to notice that they are others."""
    facts = [(p.relative_to(folder).as_posix(), p.stat()) for p in files]
    return [[name, stat.st_size, stat.st_mtime_ns] for name, stat in facts]
