"""What photos are called in an index.

The name of a photo is its path as seen from the folder of the index, with "/" between the parts
("../photos/left.jpg"). So an index and its photos can be moved together, and from the index alone
every photo can be opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hardnet.images import list_images


def name_of(photo: Path | str, folder: Path) -> str:
    """The name of a photo in the index in ``folder``; neither needs to exist."""
    path = _real(photo)
    try:
        return Path(os.path.relpath(path, os.path.realpath(folder))).as_posix()
    except ValueError:  # Windows: another drive
        return Path(path).as_posix()


def path_of(name: str, folder: Path) -> str:
    """The path of the photo that is called ``name`` in the index in ``folder``."""
    return os.path.normpath(os.path.join(os.path.realpath(folder), name))


def shown(path: str) -> str:
    """A path as one would type it here: short if it lies below the current folder."""
    here = os.getcwd() + os.sep
    return path.removeprefix(here)


def named_photos(paths: Iterable[Path], folder: Path) -> dict[str, Path]:
    """The photos that ``paths`` name, with their names in the index in ``folder``.

    Args:
        paths: image files, and folders that are searched recursively. A photo that is named twice
            counts once.
        folder: of the index. Pictures that lie in it are not photos of the collection.

    Returns:
        Name -> file, in the order of ``paths``.

    Raises:
        HardnetError: a folder without any image.
    """
    own = os.path.realpath(folder) + os.sep
    found: dict[str, Path] = {}
    for path in paths:
        photos = list_images(path) if path.is_dir() else [path]
        for photo in photos:
            if not _real(photo).startswith(own):
                found.setdefault(name_of(photo, folder), photo)
    return found


def _real(photo: Path | str) -> str:
    """The same for all ways to write a path; a photo that is a link keeps its own name."""
    path = os.path.abspath(photo)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
