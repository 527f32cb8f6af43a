"""A folder for work that may be killed and goes on: one process at a time, the same settings."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.retrieval.building.index_settings import compare
from hardnet.storage import FolderLock, OwnedFolder, refuse_foreign, replacing

_SETTINGS = "settings.json"
_LOCK = "lock"


@contextmanager
def owned(work: Path, result: Path) -> Iterator[OwnedFolder]:
    """Nobody else works in the folder, which is made; what we made there goes in the end.

    After an error it stays: the same work continues with it.

    Args:
        work: the folder.
        result: what is made there, for the error.
    """
    with _writing(result):
        refuse_foreign(work, [_LOCK])
        work.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(work, _LOCK)
        if not lock.take():
            raise HardnetError(f"another process is making {result}: wait for its end, or stop it")
        try:
            ours = OwnedFolder.begin(work, [_LOCK])
            ours.sweep()
            yield ours
            ours.dissolve(lock)
        finally:
            lock.remove()
            lock.release()


@contextmanager
def _writing(result: Path) -> Iterator[None]:
    """Errors of the disk below this say what could not be made, and what to do."""
    try:
        yield
    except OSError as error:
        raise HardnetError(
            f"{result} cannot be written: {error.strerror or error}; check the disk and your "
            "rights to the folder, then repeat the command: it goes on with what is done"
        ) from error


def begin(work: OwnedFolder, settings: Mapping[str, Any], result: Path) -> None:
    """Note the settings of the work, or compare them with those it was begun with."""
    path = work.claim(_SETTINGS)
    if path.exists():
        was = json.loads(path.read_text())
        try:
            compare(was, settings, result)
        except HardnetError as error:
            raise HardnetError(f"{error} (or delete {work.path} to begin anew)") from None
        return
    with replacing(path) as part:
        part.write_text(json.dumps(settings, indent=1) + "\n")
