"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardnet.errors import HardnetError


def refuse_existing(folder: str | Path) -> None:
    """Raise if there is something at ``folder``: no set is ever overwritten."""
    if Path(folder).exists():
        raise HardnetError(f"{folder} exists already; choose another name or delete it")


def start_part(folder: str | Path) -> Path:
    """An empty ``<folder>.<process>.part`` to write into, once ``folder`` itself is free.

    What killed runs have left there is deleted; what another run is writing is not.
    """
    refuse_existing(folder)
    folder = Path(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise HardnetError(f"{folder} cannot be made: {folder.parent} is not a folder") from None
    for left in folder.parent.glob(f"{glob.escape(folder.name)}.*.part"):
        process = left.name.removeprefix(f"{folder.name}.").removesuffix(".part")
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(left, ignore_errors=True)
    part = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    return part


def publish(part: Path, folder: Path) -> None:
    """Give a complete folder its name."""
    refuse_existing(folder)  # another run may have been faster
    os.replace(part, folder)


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Yield a folder to write into; it gets its name at the end and is deleted after an error."""
    part = start_part(folder)
    try:
        yield part
        publish(part, Path(folder))
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it is somebody else's
        return True
    return True
