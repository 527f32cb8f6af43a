"""What images are called in files of features."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.images import list_images


def named_images(paths: Iterable[Path]) -> dict[str, Path]:
    """The images that ``paths`` name, with the names they get.

    Args:
        paths: image files, and folders that are searched for images.

    Returns:
        Name -> file. An image in a folder is called by its path inside that folder, with "/"
        between the parts; a file that is named by itself, by its last part.

    Raises:
        HardnetError: two different images would have one name. (The same image twice counts once.)
    """
    found: dict[str, Path] = {}
    for path in paths:
        if path.is_dir():
            images = {p.relative_to(path).as_posix(): p for p in list_images(path)}
        else:
            images = {path.name: path}
        for name, image in images.items():
            other = found.setdefault(name, image)
            if os.path.realpath(other) != os.path.realpath(image):
                raise HardnetError(
                    f"{other} and {image} would both be called {name}: name a folder that holds "
                    "both, or use two outputs"
                )
    _refuse_nesting(found)
    return found


def _refuse_nesting(images: Mapping[str, Path]) -> None:
    """An image cannot be a folder of images as well, neither on disk nor in HDF5."""
    for name, image in images.items():
        for parent in Path(name).parents:
            if (other := images.get(parent.as_posix())) is not None:
                raise HardnetError(
                    f"{image} would be called {name}, which lies inside the image {other}: use two "
                    "outputs"
                )
