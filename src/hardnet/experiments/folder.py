"""The folder of an experiment: what it was begun with, and who is running which cell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.folder_lock import FolderLock
from hardnet.learn.recipe import Recipe
from hardnet.patchsets.cache import replacing

SETTINGS = "experiment.json"
SCORE = "score.json"
LOCK = "lock"


@contextmanager
def locked(folder: Path, wait: bool = False) -> Iterator[bool]:
    """Take a folder for this process; the block is told whether that went well.

    Args:
        folder: made if it is missing.
        wait: until whoever has it lets it go; otherwise the block is told False at once.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(folder, LOCK)
    try:
        yield lock.take(math.inf if wait else 0)
    finally:
        lock.release()


def begin(folder: Path, settings: Mapping[str, Any]) -> None:
    """Note the settings of a new folder; refuse a folder that was begun with others.

    Args:
        folder: of the experiment.
        settings: JSON values. Keys of the recipe that an older file lacks had their defaults.
    """
    now = json.loads(json.dumps(settings))
    path = folder / SETTINGS
    with locked(folder, wait=True):  # two processes may be started at once
        if not path.exists():
            write_json(path, now)
            return
        try:
            was = asdict(Recipe()) | json.loads(path.read_text())
        except (OSError, ValueError, TypeError) as error:
            raise HardnetError(f"{path} cannot be read ({error}); delete {folder}") from error
    for key in now:
        if was.get(key) != now[key]:
            raise HardnetError(
                f"{folder} was begun with {_difference(key, was.get(key), now[key])}: "
                "use that value, or another --output"
            )


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file that is either whole or not there."""
    with replacing(path) as part:
        part.write_text(json.dumps(content, indent=1) + "\n")


def read_score(folder: Path) -> dict[str, Any] | None:
    """The scores of a finished run; None while it is not."""
    try:
        score: dict[str, Any] = json.loads((folder / SCORE).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise HardnetError(f"{folder / SCORE} is damaged ({error}); delete it") from error
    return score


def _difference(key: str, was: Any, now: Any) -> str:
    """The key and its two values; of a table of cells, the first that differs."""
    if isinstance(was, dict) and isinstance(now, dict):
        name = next(n for n in {**was, **now} if was.get(n) != now.get(n))
        return _difference(f"{key} {name}", was.get(name), now.get(name))
    return f"{key}={was}, not {now}"
