"""COLMAP as a library: whether it is here, its folders and files, and how to silence it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.storage import OwnedFolder

PARTS = ("cameras", "images", "points3D")
MODEL_FILES = (
    "project.ini",
    *(f"{part}{suffix}" for part in (*PARTS, "frames", "rigs") for suffix in (".bin", ".txt")),
)
"""All that COLMAP writes into the folder of a model."""
DATABASE = "database.db"
_BESIDE = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-shm": (b"\x18\xe2\x2d\x00", b"\x00\x2d\xe2\x18"),
    "-journal": (b"\xd9\xd5\x05\xf9",),
}
"""What SQLite keeps beside a database, and how these files begin."""
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


def database_files(name: str) -> list[str]:
    """The names of a database and of what SQLite keeps beside it."""
    return [name + suffix for suffix in ("", *_BESIDE)]


def remove_database(path: Path) -> None:
    """Delete a database that we made, before another takes its place.

    Raises:
        HardnetError: somebody else made what is there.
    """
    owned = OwnedFolder.mark(path.parent)
    names = database_files(path.name)
    for name in names:
        owned.claim(name)
    owned.remove(*names)
    owned.adopt(*names)


def check_database(path: Path) -> None:
    """Raise if files beside a database are not SQLite's: it deletes whatever has their names."""
    for suffix, starts in _BESIDE.items():
        beside = path.with_name(path.name + suffix)
        if beside.is_file():
            with beside.open("rb") as file:
                start = file.read(4)
            if start.strip(b"\0") and start not in starts:
                raise HardnetError(f"{beside} is in the way: it is not of {path.name}; move it")


def clear_models(sparse: Path, ours: bool = False) -> None:
    """An empty folder for models: those that we made there before are deleted.

    Args:
        sparse: the folder; made if absent.
        ours: this process made what is in it.

    Raises:
        HardnetError: there is something that COLMAP does not write, or in a folder of others.
    """
    owned = OwnedFolder.find(sparse.parent)
    listed = owned is not None and f"{sparse.name}/" in owned
    if sparse.is_dir() and not sparse.is_symlink():
        models = list(sparse.iterdir())
        files = [file for model in models if model.is_dir() for file in model.iterdir()]
        for path in (*models, *files):
            known = path.name in MODEL_FILES if path.parent != sparse else path.name.isdecimal()
            if not (ours or listed) or not known or path.is_symlink():
                raise HardnetError(f"{path} is in the way: hardnet did not make it; move it")
        for file in files:
            file.unlink()
        for model in models:
            model.rmdir()
    elif owned is not None:
        owned.claim(f"{sparse.name}/")
    sparse.mkdir(exist_ok=True)


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
