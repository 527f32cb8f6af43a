"""Photos as a COLMAP database knows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.interop.colmap.orientation import UPRIGHT, stored_size
from hardnet.sfm.cameras import CameraSettings, check_cameras, import_images
from hardnet.sfm.colmap import remove_database, require_pycolmap


@dataclass(frozen=True)
class Registered:
    """A photo in the database.

    Attributes:
        id: number of the image.
        orientation: EXIF entry by which the upright photo is turned.
    """

    id: int
    orientation: int


def register_images(
    database: Path,
    images: Path,
    sizes: Mapping[str, tuple[int, int]],
    settings: CameraSettings,
) -> tuple[dict[str, Registered], dict[str, str]]:
    """Write cameras and images into a new database; photos are numbered in the given order.

    Args:
        database: file to write; what was there is deleted.
        images: folder of the photos.
        sizes: name, relative to the folder -> (width, height) of the upright photo.
        settings: see :class:`~hardnet.sfm.cameras.CameraSettings`.

    Returns:
        The photos by name, and those that COLMAP cannot use: name -> why.
    """
    pycolmap = require_pycolmap()
    check_cameras(settings)
    remove_database(database)
    turns: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, size in sizes.items():
        found = _orientation(pycolmap, images / name, size)
        if isinstance(found, int):
            turns[name] = found
        else:
            refused[name] = found
    if settings.single:
        _check_one_size({name: stored_size(sizes[name], turns[name]) for name in turns})
    pycolmap.Database.open(database).close()
    import_images(database, images, list(turns), settings)
    with pycolmap.Database.open(database) as opened:
        registered = {
            image.name: Registered(image.image_id, turns[image.name])
            for image in opened.read_all_images()
        }
    refused |= {name: "COLMAP cannot read this file" for name in turns if name not in registered}
    return registered, refused


def _orientation(pycolmap: Any, path: Path, size: tuple[int, int]) -> int | str:
    """The EXIF entry of a photo whose upright size is known, or why COLMAP cannot use it."""
    bitmap = pycolmap.Bitmap.read(str(path), False)
    if bitmap is None:
        return "COLMAP cannot read this kind of file: convert it to JPEG or PNG"
    entry = bitmap.exif_orientation()
    orientation = entry if entry in range(1, 9) else UPRIGHT
    if (bitmap.width, bitmap.height) != stored_size(size, orientation):
        return (
            f"COLMAP sees {bitmap.width}x{bitmap.height} pixels, not {size[0]}x{size[1]}: "
            "save it without its EXIF orientation"
        )
    return int(orientation)


def _check_one_size(stored: Mapping[str, tuple[int, int]]) -> None:
    """A camera has one size; COLMAP would leave out the photos of another without a word."""
    first, size = next(iter(stored.items()), ("", (0, 0)))
    for name, other in stored.items():
        if other != size:
            raise HardnetError(
                f"a single camera has photos of one size: {first} has {size[0]}x{size[1]} pixels, "
                f"{name} {other[0]}x{other[1]}; leave --single-camera out"
            )
