"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.storage import MARKER, PART, OwnedFolder, as_path


def refuse_existing(folder: str | Path) -> None:
    """Raise if there is something at ``folder``: no set is ever overwritten."""
    if as_path(folder).exists():
        raise HardnetError(f"{folder} exists already; choose another name or delete it")


def start_part(folder: str | Path) -> OwnedFolder:
    """An empty folder beside ``folder`` to write into, once ``folder`` itself is free.

    What killed runs have left there is deleted; what another run is writing is not.
    """
    refuse_existing(folder)
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise HardnetError(f"{folder} cannot be made: {folder.parent} is not a folder") from None
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.*-*{PART}"):
        process = left.name.removeprefix(f"{folder.name}.").partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            discard(left)
    part = folder.with_name(f"{folder.name}.{os.getpid()}-{secrets.token_hex(4)}{PART}")
    part.mkdir()
    return OwnedFolder.mark(part)


def publish(part: Path, folder: Path) -> None:
    """Give a complete folder its name."""
    refuse_existing(folder)  # another run may have been faster
    (part / MARKER).unlink()
    os.replace(part, folder)


def discard(part: Path) -> None:
    """Delete a folder that will not be complete: what the list in it has."""
    with suppress(OSError, HardnetError):
        owned = OwnedFolder.find(part)
        if owned is not None:
            owned.dissolve()


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a folder to write into; it gets its name at the end and is deleted after an error.

    Files are written to the paths that :func:`hardnet.storage.claim` gives.
    """
    part = start_part(folder).path
    try:
        yield part
        publish(part, Path(folder))
    except BaseException:
        discard(part)
        raise


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True
