"""Read photographs: a path or an array -> uint8 pixels, upright, with errors one can act on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import may_be_transparent, read_image_file
from hardnet.storage import as_path

Source = str | os.PathLike[str] | NDArray[Any]
"""A file, or an array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA."""

Pixels = NDArray[np.uint8]

MIN_SIDE = 16
"""Smaller images hold no keypoint whose measurement window lies inside them."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Names of files that are taken for images in a folder."""

_DECODE = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH  # unlike IMREAD_UNCHANGED, this obeys EXIF
_BLOCK = 1 << 22  # values converted at once


def read_image(source: Source, max_bytes: int | None = None) -> Pixels:
    """Read an image upright (EXIF rotation applied).

    Args:
        source: path, or array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA; uint8, uint16,
            bool, or float in 0..1 or 0..255. Deeper than 8 bits is scaled so that the brightest
            value becomes 255; transparent pixels become white.
        max_bytes: files are refused that are larger, or whose decoded pixels would be; None for
            the environment variable ``HARDNET_MAX_IMAGE_BYTES``, or 1 GB.

    Returns:
        (H, W) grey or (H, W, 3) RGB, uint8.

    Raises:
        HardnetError: names the file and what to do.
    """
    if isinstance(source, np.ndarray):
        name, array = "the array", source
    else:
        name, array = str(source), _decode(as_path(source), max_bytes)
    pixels = _opaque(_to_uint8(array, name), name)
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise HardnetError(
            f"{name} is {width}x{height} pixels: too small, use an image of at least "
            f"{MIN_SIDE}x{MIN_SIDE}"
        )
    return pixels


def list_images(folder: Path) -> list[Path]:
    """Image files below ``folder``, in an order that does not depend on the machine."""
    if not folder.is_dir():
        raise HardnetError(f"{folder} is not a folder")
    found = [p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file()]
    if not found:
        raise HardnetError(f"{folder} contains no image ({', '.join(sorted(SUFFIXES))})")
    return sorted(found, key=lambda p: p.relative_to(folder).as_posix())


def to_grey(pixels: Pixels) -> Pixels:
    """(H, W) grey of a (H, W) or (H, W, 3) RGB image."""
    if pixels.ndim == 2:
        return pixels
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)


def to_colour(pixels: Pixels) -> Pixels:
    """(H, W, 3) RGB of a (H, W) or (H, W, 3) RGB image."""
    if pixels.ndim == 3:
        return pixels
    return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_GRAY2RGB), np.uint8)


def shrink(pixels: Pixels, max_size: int | None) -> tuple[Pixels, tuple[float, float]]:
    """Shrink to a longer side of at most ``max_size`` pixels; None leaves the image as it is.

    Returns:
        The image, and by what factor its width and height changed. Sides are whole pixels, so
        the two differ slightly; one common factor would be half a pixel wrong at the far border.
    """
    height, width = pixels.shape[:2]
    if max_size is None or max(height, width) <= max_size:
        return pixels, (1.0, 1.0)
    factor = max_size / max(height, width)
    size = max(round(width * factor), 1), max(round(height * factor), 1)
    small = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
    return np.asarray(small, np.uint8), (size[0] / width, size[1] / height)


def check_picture_name(path: Path) -> None:
    """Raise if a picture could not be written to ``path``: before the work, not after it."""
    if not path.suffix or not cv2.haveImageWriter(f"picture{path.suffix}"):
        raise HardnetError(f"{path}: cannot write '{path.suffix}' pictures, name it .png or .jpg")
    if not path.parent.is_dir():
        raise HardnetError(f"{path} cannot be written: there is no folder {path.parent}")


def write_image(path: str | os.PathLike[str], pixels: Pixels) -> None:
    """Write a grey or RGB image; the suffix of ``path`` (.png, .jpg, ...) chooses the format."""
    path = as_path(path)
    check_picture_name(path)
    try:
        good, data = cv2.imencode(path.suffix, to_colour(pixels)[:, :, ::-1])
    except cv2.error:
        good = False
    if not good:
        raise HardnetError(f"{path}: cannot write '{path.suffix}' pictures, name it .png or .jpg")
    try:
        path.write_bytes(data.tobytes())
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror}") from error


class _Quiet:
    """How many threads want OpenCV to be quiet, and how loud it was before the first of them."""

    lock = Lock()
    users = 0
    level = 0


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """OpenCV's own words about a broken file would drown ours; any number of threads may ask."""
    # Newer versions have moved these functions, and not every wheel has both places.
    log = cv2.utils.logging if hasattr(cv2.utils, "logging") else cv2
    with _Quiet.lock:
        if not _Quiet.users:
            _Quiet.level = log.getLogLevel()
            log.setLogLevel(0)
        _Quiet.users += 1
    try:
        yield
    finally:
        with _Quiet.lock:
            _Quiet.users -= 1
            if not _Quiet.users:
                log.setLogLevel(_Quiet.level)


def _decode(path: Path, max_bytes: int | None) -> NDArray[Any]:
    """Pixels of a file in RGB(A) order, any depth."""
    # Not cv2.imread: it cannot open every unicode path on every system.
    data = read_image_file(path, max_bytes)
    buffer = np.frombuffer(data, np.uint8)
    try:
        with quiet_opencv():
            array = cv2.imdecode(buffer, _DECODE)
            if array is not None and may_be_transparent(data):
                array = _with_alpha(array, cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED))
    except cv2.error as error:
        raise HardnetError(f"{path} cannot be decoded by OpenCV: {error.err}") from error
    if array is None:
        raise HardnetError(
            f"{path} is damaged or not an image OpenCV can read: convert it to JPEG or PNG"
        )
    if array.ndim == 2:
        return np.asarray(array)
    if array.dtype == np.uint8 and array.shape[2] == 3:  # most photos, and several times faster
        return np.asarray(cv2.cvtColor(array, cv2.COLOR_BGR2RGB))
    return np.asarray(array[:, :, [2, 1, 0, 3][: array.shape[2]]])


def _with_alpha(array: NDArray[Any], full: NDArray[Any] | None) -> NDArray[Any]:
    """``array`` with the alpha channel of ``full``, if that has one.

    Only IMREAD_UNCHANGED (``full``) shows transparency, and only it ignores EXIF: it is turned
    until it is the same way up as ``array``.
    """
    if full is None or full.ndim != 3 or full.shape[2] != 4:
        return array
    colour = array if array.ndim == 3 else np.repeat(array[:, :, None], 3, 2)
    for mirrored in (full, full[:, ::-1]):
        for turns in range(4):
            upright = np.rot90(mirrored, turns)
            if np.array_equal(upright[:, :, :3], colour):
                return upright
    return array


def _to_uint8(array: NDArray[Any], name: str) -> Pixels:
    """Any depth -> uint8."""
    if array.size == 0 or array.ndim not in (2, 3):
        raise HardnetError(f"{name} has shape {array.shape}: give (H, W), (H, W, 3) or (H, W, 4)")
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise HardnetError(f"{name} contains NaN or infinity: replace them before matching")
    top = float(array.max())
    if array.dtype.kind == "f" and 1 < top <= 255:
        top = 255.0
    elif array.dtype.kind == "f" and top <= 1:
        top = 1.0
    factor = 255 / max(top, 1e-12)
    out = np.empty(array.shape, np.uint8)
    for block in _row_blocks(array):
        out[block] = np.clip(array[block].astype(np.float64) * factor + 0.5, 0, 255)
    return out


def _row_blocks(array: NDArray[Any]) -> Iterator[slice]:
    """Some rows at a time: as floating point numbers, all of a large image would fill memory."""
    rows = max(_BLOCK // array[0].size, 1)
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


def _opaque(pixels: Pixels, name: str) -> Pixels:
    """(H, W) or (H, W, 3): single channels squeezed, transparency laid over white."""
    if pixels.ndim == 2:
        return np.ascontiguousarray(pixels)
    channels = pixels.shape[2]
    if channels == 1:
        return np.ascontiguousarray(pixels[:, :, 0])
    if channels == 4:
        out = np.empty((*pixels.shape[:2], 3), np.uint8)
        for block in _row_blocks(pixels):
            alpha = pixels[block, :, 3:].astype(np.float32) / 255
            out[block] = pixels[block, :, :3] * alpha + 255 * (1 - alpha) + 0.5
        return out
    if channels != 3:
        raise HardnetError(f"{name} has {channels} channels: give grey, RGB or RGBA")
    return np.ascontiguousarray(pixels)


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
