"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

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


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Yield ``<folder>.part`` to write into; rename it at the end, delete it after an error."""
    refuse_existing(folder)
    folder = Path(folder)
    part = folder.with_name(f"{folder.name}.part")
    if part.exists():  # left by a killed run of ours: nobody reads it under this name
        shutil.rmtree(part)
    part.mkdir(parents=True)
    try:
        yield part
        os.replace(part, folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
