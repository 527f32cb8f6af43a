"""What photos are called in an index.

The name of a photo is its path as seen from the folder of the index, with "/" between the parts
("../photos/left.jpg"). So an index and its photos can be moved together, and from the index alone
every photo can be opened.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from hardnet.errors import HardnetError
from hardnet.images import list_images

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot


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
    """A path as one would type it here: short if it lies below the current folder.

    It is one line, whatever is in it: a line break, say, becomes a backslash and an n.
    """
    short = path.removeprefix(os.getcwd() + os.sep)
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in short)


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


def names_of(photo: Path, snapshot: Snapshot) -> list[str]:
    """The names in an index that a photo, a folder of photos or a name stands for."""
    own = name_of(photo, snapshot.folder)
    for name in (own, str(photo)):
        if snapshot.find(name) is not None:
            return [name]
    found = [name for name in snapshot.names() if name.startswith(f"{own}/")]
    if not found:
        raise HardnetError(f"{photo} is not in the index {snapshot.folder}: check the path")
    return found


def gone_photos(snapshot: Snapshot) -> set[str]:
    """The names in an index whose files are gone.

    Raises:
        HardnetError: all of them are, as when a disk is not there.
    """
    names = snapshot.names()
    gone = {name for name in names if not os.path.exists(path_of(name, snapshot.folder))}
    if gone and len(gone) == len(names):
        raise HardnetError(
            f"all {len(gone)} photos of {snapshot.folder} are gone: is their disk there, and is "
            "the index where it was? If so, name their folder to remove them"
        )
    return gone


def _real(photo: Path | str) -> str:
    """The same for all ways to write a path; a photo that is a link keeps its own name."""
    path = os.path.abspath(photo)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
