"""Read photographs: a path or an array -> uint8 pixels, upright, with errors one can act on."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.decoding import decode_bytes, decode_file
from hardnet.errors import HardnetError
from hardnet.image_files import looks_like_image
from hardnet.storage import as_path


class PillowImage(Protocol):
    """An image of the Python Imaging Library."""

    mode: str
    info: dict[Any, Any]

    def convert(self, mode: str) -> PillowImage:
        """The same in another mode."""
        ...


Source = str | os.PathLike[str] | NDArray[Any] | PillowImage
"""A file; an array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA; or an image of Pillow's."""

Pixels = NDArray[np.uint8]

MIN_SIDE = 16
"""Smaller images hold no keypoint whose measurement window lies inside them."""

_BLOCK = 1 << 22  # values converted at once


def read_image(source: Source, max_bytes: int | None = None) -> Pixels:
    """Read an image upright (EXIF rotation applied).

    Args:
        source: path, or array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA; uint8, uint16,
            bool, or float in 0..1 or 0..255. Deeper than 8 bits is scaled so that the brightest
            value becomes 255; transparent pixels become white. An image of Pillow's is taken as
            the array of its pixels: what its EXIF data say is not applied.
        max_bytes: files are refused that are larger, or whose decoded pixels would be; None for
            the environment variable ``HARDNET_MAX_IMAGE_BYTES``, or 1 GB.

    Returns:
        (H, W) grey or (H, W, 3) RGB, uint8.

    Raises:
        HardnetError: names the file and what to do.
    """
    if (given := as_array(source)) is not None:
        name, array = "the array", given
    else:
        name, array = str(source), decode_file(as_path(source), max_bytes)  # type: ignore[arg-type]
    return _checked_pixels(array, name)


def decode_image(data: bytes, name: str, max_bytes: int) -> Pixels:
    """The same for the bytes of an image file that are in memory; ``name`` is for errors."""
    if not data:
        raise HardnetError(f"{name} is empty: copy or download it again")
    return _checked_pixels(decode_bytes(Path(name), data, max_bytes), name)


def _checked_pixels(array: NDArray[Any], name: str) -> Pixels:
    pixels = _opaque(_to_uint8(array, name), name)
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise HardnetError(
            f"{name} is {width}x{height} pixels: too small, use an image of at least "
            f"{MIN_SIDE}x{MIN_SIDE}"
        )
    return pixels


def as_array(source: Source) -> NDArray[Any] | None:
    """The array that a source is, or that an image of Pillow's holds; None for a path."""
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, str | os.PathLike) or not hasattr(source, "convert"):
        return None
    if source.mode in ("1", "L", "I", "I;16", "F", "RGB", "RGBA"):
        return np.asarray(source)
    is_clear = source.mode in ("LA", "La", "PA", "RGBa") or "transparency" in source.info
    return np.asarray(source.convert("RGBA" if is_clear else "RGB"))


def list_images(folder: Path) -> list[Path]:
    """Image files below ``folder``, in an order that does not depend on the machine.

    All that look like images, by their name or by their content, whether they can be read or not:
    who reads them says why one cannot be. The same is true of folders that may not be looked into.
    """
    if not folder.is_dir():
        raise HardnetError(f"{folder} is not a folder")
    closed: list[str] = []
    walk = os.walk(folder, onerror=lambda error: closed.append(error.filename))
    files = [Path(parent, name) for parent, _, names in walk for name in names]
    found = [path for path in files if looks_like_image(path)] + [Path(path) for path in closed]
    if not found:
        raise HardnetError(f"{folder} contains no image")
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
