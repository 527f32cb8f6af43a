"""COLMAP as a library: whether it is here, its folders and files, and how to silence it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError

PARTS = ("cameras", "images", "points3D")
DATABASE = "database.db"
SPARSE = "sparse"
SILENT = 3  # glog's level of fatal errors: all others we say ourselves


def require_pycolmap() -> Any:
    """The pycolmap module, or an error that says how to install it."""
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "sfm") from None
    return pycolmap


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Without COLMAP's running commentary."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = SILENT
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


@contextmanager
def failures_explained(folder: Path) -> Iterator[None]:
    """What COLMAP or SQLite complain of while they write ``folder``, as one line for the user."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError, sqlite3.Error) as error:
        # COLMAP does not notice that a model is cut short, only its reader does.
        why = " ".join(str(error).split())
        raise HardnetError(
            f"COLMAP failed in {folder} ({why}): is the disk full, or a file there damaged? Run "
            "the same command again to go on"
        ) from error


def remove_database(path: Path) -> None:
    """Delete a database and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def find_models(folder: Path) -> list[Path]:
    """``folder`` itself if it is a model, else the models directly inside (sparse/0, sparse/1)."""
    if is_model(folder):
        return [folder]
    inside = [p for p in sorted(folder.iterdir()) if is_model(p)] if folder.is_dir() else []
    if not inside:
        raise HardnetError(
            f"{folder} is not a COLMAP model: no cameras, images and points3D (.bin or .txt) there"
        )
    return sorted(inside, key=lambda p: (int(p.name) if p.name.isdecimal() else 0, p.name))


def is_model(folder: Path) -> bool:
    """Whether the folder holds a model, binary or text."""
    return any(
        all((folder / f"{part}{suffix}").is_file() for part in PARTS) for suffix in (".bin", ".txt")
    )
