"""A folder that appears under its name only when it is complete."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardnet.errors import HardnetError


@contextmanager
def new_folder(folder: str | Path) -> Iterator[Path]:
    """Yield ``<folder>.part`` to write into; rename it at the end, delete it after an error.

    A folder that exists already is refused, so that no set is ever overwritten.
    """
    folder = Path(folder)
    if folder.exists():
        raise HardnetError(f"{folder} exists already; choose another name or delete it")
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
