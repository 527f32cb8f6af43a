"""Read photographs: a path or an array -> uint8 pixels, upright, with errors one can act on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

Source = str | os.PathLike[str] | NDArray[Any]
"""A file, or an array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA."""

Pixels = NDArray[np.uint8]

MIN_SIDE = 16
"""Smaller images hold no keypoint whose measurement window lies inside them."""

SUFFIXES = frozenset({".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})
"""Names of files that are taken for images in a folder."""

_DECODE = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH  # unlike IMREAD_UNCHANGED, this obeys EXIF
_JPEG, _PNG, _PNG_END = b"\xff\xd8", b"\x89PNG", b"IEND\xaeB`\x82"
# A marker that ends entropy-coded data: neither a stuffed 0xFF byte nor a restart marker.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END = 0xD9


def read_image(source: Source) -> Pixels:
    """Read an image upright (EXIF rotation applied).

    Args:
        source: path, or array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA; uint8, uint16,
            bool, or float in 0..1 or 0..255. Deeper than 8 bits is scaled so that the brightest
            value becomes 255; transparent pixels become white.

    Returns:
        (H, W) grey or (H, W, 3) RGB, uint8.

    Raises:
        HardnetError: names the file and what to do.
    """
    if isinstance(source, np.ndarray):
        name, array = "the array", source
    else:
        name, array = str(source), _decode(Path(source))
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


def write_image(path: str | os.PathLike[str], pixels: Pixels) -> None:
    """Write a grey or RGB image; the suffix of ``path`` (.png, .jpg, ...) chooses the format."""
    path = Path(path)
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


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """OpenCV's own words about a broken file would drown ours."""
    # Newer versions have moved these functions, and not every wheel has both places.
    log = cv2.utils.logging if hasattr(cv2.utils, "logging") else cv2
    before = log.getLogLevel()
    log.setLogLevel(0)
    try:
        yield
    finally:
        log.setLogLevel(before)


def _decode(path: Path) -> NDArray[Any]:
    """Pixels of a file in RGB(A) order, any depth."""
    try:
        # Not cv2.imread: it cannot open every unicode path on every system.
        data = path.read_bytes()
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except IsADirectoryError as error:
        raise HardnetError(f"{path} is a folder: name one image in it") from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    if not data:
        raise HardnetError(f"{path} is empty: copy or download it again")
    if _is_truncated(data):
        raise HardnetError(f"{path} is truncated: copy or download it again")
    buffer = np.frombuffer(data, np.uint8)
    try:
        with quiet_opencv():
            array = cv2.imdecode(buffer, _DECODE)
            # Only IMREAD_UNCHANGED shows transparency, and only it ignores EXIF: use its pixels
            # when the picture has both the same way up. A JPEG has no transparency.
            full = None if data.startswith(_JPEG) else cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED)
    except cv2.error as error:
        raise HardnetError(f"{path} cannot be decoded by OpenCV: {error.err}") from error
    if array is None:
        raise HardnetError(
            f"{path} is damaged or not an image OpenCV can read: convert it to JPEG or PNG"
        )
    if full is not None and full.ndim == 3 and full.shape[2] == 4:
        colour = array if array.ndim == 3 else np.repeat(array[:, :, None], 3, 2)
        if np.array_equal(full[:, :, :3], colour):
            array = full
    if array.ndim == 3:
        array = array[:, :, [2, 1, 0, 3][: array.shape[2]]]
    return np.asarray(array)


def _is_truncated(data: bytes) -> bool:
    """True if the file ends before its picture does.

    OpenCV decodes such files without an error and fills the rest with grey or black.
    """
    if data.startswith(_JPEG):
        return not _jpeg_ends(data)
    if data.startswith(_PNG):
        return _PNG_END not in data
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    return False


def _jpeg_ends(data: bytes) -> bool:
    """Walk the segments to the end marker: thumbnails and trailers have one of their own."""
    position = 2
    while (found := _JPEG_MARKER.search(data, position)) is not None:
        marker = data[found.start() + 1]
        if marker == _JPEG_END:
            return True
        length = int.from_bytes(data[found.end() : found.end() + 2], "big")
        position = found.end() + length
    return False


def _to_uint8(array: NDArray[Any], name: str) -> Pixels:
    """Any depth -> uint8."""
    if array.size == 0 or array.ndim not in (2, 3):
        raise HardnetError(f"{name} has shape {array.shape}: give (H, W), (H, W, 3) or (H, W, 4)")
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    values = array.astype(np.float64)
    if not np.isfinite(values).all():
        raise HardnetError(f"{name} contains NaN or infinity: replace them before matching")
    top = values.max()
    if array.dtype.kind == "f" and 1 < top <= 255:
        top = 255.0
    elif array.dtype.kind == "f" and top <= 1:
        top = 1.0
    values *= 255 / max(float(top), 1e-12)
    return np.clip(values + 0.5, 0, 255).astype(np.uint8)


def _opaque(pixels: Pixels, name: str) -> Pixels:
    """(H, W) or (H, W, 3): single channels squeezed, transparency laid over white."""
    if pixels.ndim == 2:
        return np.ascontiguousarray(pixels)
    channels = pixels.shape[2]
    if channels == 1:
        return np.ascontiguousarray(pixels[:, :, 0])
    if channels == 4:
        alpha = pixels[:, :, 3:].astype(np.float32) / 255
        blended = pixels[:, :, :3] * alpha + 255 * (1 - alpha)
        return (blended + 0.5).astype(np.uint8)
    if channels != 3:
        raise HardnetError(f"{name} has {channels} channels: give grey, RGB or RGBA")
    return np.ascontiguousarray(pixels)
