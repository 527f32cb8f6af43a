"""Read photographs: a path or an array -> upright uint8 pixels, with errors that name the fix.

OpenCV decodes most formats here. The header of an AVIF or HEIC file may state another size than
that of the picture, and the header of a raw file says little: a separate process decodes these,
with limited memory and time. (This module is also the program of that process.) HEIC needs
pillow-heif, camera raw files need rawpy: the extra ``formats``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, InputError, MissingExtraError
from hardnet.image_files import (
    as_path,
    check_image_bytes,
    check_size,
    claimed_size,
    foreign_format,
    looks_like_image,
    max_image_bytes,
    may_be_transparent,
    read_bytes,
)
from hardnet.storage import replacing


class PillowImage(Protocol):
    """An image of the Python Imaging Library."""

    mode: str
    info: dict[Any, Any]

    def convert(self, mode: str) -> PillowImage: ...


Source = str | os.PathLike[str] | NDArray[Any] | PillowImage
"""A file; an array: (H, W) grey, (H, W, 3) RGB or (H, W, 4) RGBA; or a Pillow image."""

Pixels = NDArray[np.uint8]

MIN_SIDE = 16
"""Smaller images hold no keypoint whose measurement window lies inside them."""

SECONDS = 60
"""Processor time that a file may take in a separate process."""

_BLOCK = 1 << 22  # values converted at once
_SPARE = 256 << 20  # bytes that a decoder may use besides its pixels
_COPIES = 2  # of the pixels: most decoders hold them in another colour space as well
_DECODE = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH  # unlike IMREAD_UNCHANGED, this obeys EXIF


def read_image(source: Source, max_bytes: int | None = None) -> Pixels:
    """(H, W) grey or (H, W, 3) RGB pixels of an image, upright (EXIF rotation applied).

    Arrays are uint8, uint16, bool, or float in 0..1 or 0..255. Deeper than 8 bits is scaled so that
    the brightest value becomes 255; transparent pixels become white. A Pillow image counts as
    the array of its pixels: its EXIF orientation is not applied.

    Files are refused that are larger than ``max_bytes``, or whose decoded pixels would be; None is
    the environment variable ``HARDNET_MAX_IMAGE_BYTES``, or 1 GB.
    """
    if (array := as_array(source)) is not None:
        return _to_pixels(array, "the array")
    if not isinstance(source, str | os.PathLike):
        kind = type(source).__name__
        raise InputError(f"an image is a path, an array or a Pillow image, not {kind}: {source!r}")
    path = as_path(source)
    limit = max_image_bytes() if max_bytes is None else max_bytes
    return decode_image(read_bytes(path, limit), str(source), limit)


def decode_image(data: bytes, name: str, max_bytes: int) -> Pixels:
    """The same for the bytes of an image file; ``name`` is for errors and the kind of raw file."""
    path = Path(name)
    kind = foreign_format(data, path.suffix)
    if kind is not None:
        return _to_pixels(_decode_apart(path, data, kind, max_bytes), name)
    check_image_bytes(path, data, max_bytes)
    try:
        array = _decode_by_opencv(data)
    except cv2.error as error:
        raise HardnetError(f"{name} cannot be decoded by OpenCV: {error.err}") from error
    if array is None:
        raise HardnetError(
            f"{name} is damaged or not an image OpenCV can read: convert it to JPEG or PNG"
        )
    return _to_pixels(array, name)


def _to_pixels(array: NDArray[Any], name: str) -> Pixels:
    pixels = _opaque(_to_uint8(array, name), name)
    height, width = pixels.shape[:2]
    if min(height, width) < MIN_SIDE:
        raise HardnetError(
            f"{name} is {width}x{height} pixels: too small, use an image of at least "
            f"{MIN_SIDE}x{MIN_SIDE}"
        )
    return pixels


def as_array(source: Source) -> NDArray[Any] | None:
    """The array of a source that is one, or of a Pillow image; None for a path."""
    if isinstance(source, np.ndarray):
        return source
    if isinstance(source, str | os.PathLike) or not hasattr(source, "convert"):
        return None
    try:  # Pillow reads the file only now
        if source.mode in ("1", "L", "I", "I;16", "F", "RGB", "RGBA"):
            return np.asarray(source)
        is_clear = source.mode in ("LA", "La", "PA", "RGBa") or "transparency" in source.info
        return np.asarray(source.convert("RGBA" if is_clear else "RGB"))
    except (OSError, ValueError, SyntaxError) as error:  # the last of a broken PNG
        raise HardnetError(f"the Pillow image cannot be read: {error}") from error


def list_images(folder: Path) -> list[Path]:
    """Image files below ``folder``, in an order that does not depend on the machine.

    All that look like images by their name or content, and folders that may not be looked into:
    reading one that cannot be read says why.
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
    """Shrink to a longer side of at most ``max_size`` pixels (None: any), and by what factors.

    Sides are whole pixels, so the factors of width and height differ slightly; one common factor
    would be half a pixel wrong at the far border.
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
        raise _no_picture(path)
    if not path.parent.is_dir():
        raise HardnetError(f"{path} cannot be written: there is no folder {path.parent}")


def write_image(path: str | os.PathLike[str], pixels: Pixels) -> None:
    """Write a grey or RGB image; the suffix of ``path`` (.png, .jpg, ...) chooses the format.

    A file that exists is replaced once the new one is complete; a link stays a link.
    """
    path = as_path(path)
    check_picture_name(path)
    good = False
    with suppress(cv2.error):
        good, data = cv2.imencode(path.suffix, to_colour(pixels)[:, :, ::-1])
    if not good:
        raise _no_picture(path)
    try:
        with replacing(path.resolve()) as part:
            part.write_bytes(data.tobytes())
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror}") from error


def _no_picture(path: Path) -> HardnetError:
    return HardnetError(f"{path}: cannot write '{path.suffix}' pictures, name it .png or .jpg")


def _to_uint8(array: NDArray[Any], name: str) -> Pixels:
    if array.size == 0 or array.ndim not in (2, 3):
        raise HardnetError(f"{name} has shape {array.shape}: give (H, W), (H, W, 3) or (H, W, 4)")
    if array.dtype.kind not in "buif":
        raise HardnetError(f"{name} contains {array.dtype} values: give integers or floats")
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise HardnetError(f"{name} contains NaN or infinity: replace them before matching")
    top = float(array.max())
    if array.dtype.kind == "f" and top <= 255:
        top = 255.0 if top > 1 else 1.0
    factor = 255 / max(top, 1e-12)
    out = np.empty(array.shape, np.uint8)
    for block in _row_blocks(array):
        out[block] = np.clip(array[block].astype(np.float64) * factor + 0.5, 0, 255)
    return out


def _row_blocks(array: NDArray[Any]) -> Iterator[slice]:
    """Some rows at a time: as floats, a large image would fill memory."""
    rows = max(_BLOCK // array[0].size, 1)
    for start in range(0, len(array), rows):
        yield slice(start, start + rows)


def _opaque(pixels: Pixels, name: str) -> Pixels:
    """(H, W) or (H, W, 3): single channels squeezed, transparency laid over white."""
    channels = pixels.shape[2] if pixels.ndim == 3 else 0
    if channels == 4:
        out = np.empty((*pixels.shape[:2], 3), np.uint8)
        for block in _row_blocks(pixels):
            alpha = pixels[block, :, 3:].astype(np.float32) / 255
            out[block] = pixels[block, :, :3] * alpha + 255 * (1 - alpha) + 0.5
        return out
    if channels not in (0, 1, 3):
        raise HardnetError(f"{name} has {channels} channels: give grey, RGB or RGBA")
    return np.ascontiguousarray(pixels[:, :, 0] if channels == 1 else pixels)


def named_images(paths: Iterable[Path]) -> dict[str, Path]:
    """Name -> file of the images that ``paths``, files and folders of images, name.

    An image in a folder is called by its path inside that folder, with "/" between the parts; a
    file by the last part of its path. Two different images of one name are an error.
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
    # An image cannot be a folder of images as well, neither on disk nor in HDF5.
    for name, image in found.items():
        for parent in Path(name).parents:
            if (outer := found.get(parent.as_posix())) is not None:
                raise HardnetError(
                    f"{image} would be called {name}, which lies inside the image {outer}: use two "
                    "outputs"
                )
    return found


_quiet = {"users": 0, "level": 0}  # threads that want silence, and how loud it was before
_quiet_lock = Lock()


@contextmanager
def quiet_opencv() -> Iterator[None]:
    """Without OpenCV's messages about a broken file; any number of threads may ask for it."""
    # Newer versions have moved these functions, and not every wheel has both places.
    log = cv2.utils.logging if hasattr(cv2.utils, "logging") else cv2
    with _quiet_lock:
        if not _quiet["users"]:
            _quiet["level"] = log.getLogLevel()
            log.setLogLevel(0)
        _quiet["users"] += 1
    try:
        yield
    finally:
        with _quiet_lock:
            _quiet["users"] -= 1
            if not _quiet["users"]:
                log.setLogLevel(_quiet["level"])


def _decode_by_opencv(data: bytes) -> NDArray[Any] | None:
    """(H, W), (H, W, 3) RGB or (H, W, 4) RGBA, any depth, upright; None if it cannot be read."""
    buffer = np.frombuffer(data, np.uint8)
    with quiet_opencv():
        array = cv2.imdecode(buffer, _DECODE)
        if array is not None and may_be_transparent(data):
            array = _with_alpha(array, cv2.imdecode(buffer, cv2.IMREAD_UNCHANGED))
    if array is None or array.ndim == 2:
        return array
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


def _decode_apart(path: Path, data: bytes, kind: str, limit: int) -> NDArray[Any]:
    what, advice = f"{path} is a picture in the format {kind}", "convert it to JPEG or PNG"
    if kind not in _DECODERS:
        raise HardnetError(f"{what}, which cannot be read: {advice}")
    package, _ = _DECODERS[kind]
    if find_spec(package.replace("-", "_")) is None:
        raise HardnetError(f"{what}: {MissingExtraError(package, 'formats')}")
    if os.name != "posix":
        raise HardnetError(f"{what}, which cannot be read safely on this system: {advice}")
    if (claim := claimed_size(data)) is not None:
        check_size(path, *claim, 3, limit)
    paths = [str(Path(__file__).resolve().parents[1]), os.environ.get("PYTHONPATH")]
    # One arena: each thread of a decoder would reserve address space that it never uses.
    environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "MALLOC_ARENA_MAX": "1"}
    child = subprocess.run(
        [sys.executable, "-P", "-m", "hardnet.images", kind, str(limit)],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
        check=False,
    )
    if child.returncode == -signal.SIGXCPU:
        raise HardnetError(f"{what} that takes more than {SECONDS} seconds to decode: {advice}")
    head, _, pixels = child.stdout.partition(b"\n")
    try:
        reply = json.loads(head)
        if "size" in reply:
            width, height, pixel_bytes = reply["size"]
            check_size(path, width, height, pixel_bytes, limit)
        return np.frombuffer(pixels, reply["dtype"]).reshape(reply["shape"])
    except (ValueError, KeyError, TypeError):
        raise HardnetError(
            f"{path} is a damaged picture in the format {kind}, or one that takes more memory than "
            f"allowed to decode: {advice}"
        ) from None


def _check_claim(width: int, height: int, pixel_bytes: int, limit: int) -> None:
    """Answer with the size and end the process instead of decoding too much."""
    if width * height * pixel_bytes > limit:
        print(json.dumps({"size": [width, height, pixel_bytes]}))
        sys.exit()


def _avif(data: bytes, limit: int) -> NDArray[Any]:
    array = _decode_by_opencv(data)
    if array is None:
        raise ValueError
    _check_claim(array.shape[1], array.shape[0], array[0, 0].nbytes, limit)
    return array


def _heic(data: bytes, limit: int) -> NDArray[Any]:
    import pillow_heif

    opened = pillow_heif.open_heif(BytesIO(data), convert_hdr_to_8bit=True)
    width, height = opened.size
    _check_claim(width, height, 4 if opened.has_alpha else 3, limit)
    return np.asarray(opened)


def _raw(data: bytes, limit: int) -> NDArray[Any]:
    import rawpy

    with rawpy.imread(BytesIO(data)) as raw:
        # LibRaw holds four 16-bit values of each pixel.
        _check_claim(raw.sizes.raw_width, raw.sizes.raw_height, 8, 2 * limit)
        return np.asarray(raw.postprocess(use_camera_wb=True))


_DECODERS: dict[str, tuple[str, Callable[[bytes, int], NDArray[Any]]]] = {
    "AVIF": ("cv2", _avif),
    "HEIC": ("pillow-heif", _heic),
    "camera raw": ("rawpy", _raw),
}


def _answer(kind: str, limit: int) -> None:
    """The process: a file from standard input; JSON in one line and the pixels as answer."""
    package, decode = _DECODERS[kind]
    __import__(package.replace("-", "_"))
    cv2.setNumThreads(1)
    _limit_resources(_SPARE + _COPIES * limit)
    pixels = np.ascontiguousarray(decode(sys.stdin.buffer.read(), limit))
    print(json.dumps({"shape": pixels.shape, "dtype": str(pixels.dtype)}), flush=True)
    sys.stdout.buffer.write(pixels.data)


def _limit_resources(more_bytes: int) -> None:
    """No more than this much address space in addition to what is used, and SECONDS of time."""
    import resource

    used = 1 << 30  # a guess, where the system does not say
    statistics = Path("/proc/self/statm")
    if statistics.exists():
        used = int(statistics.read_text().split()[0]) * resource.getpagesize()
    for what, most in ((resource.RLIMIT_AS, used + more_bytes), (resource.RLIMIT_CPU, SECONDS)):
        hard = resource.getrlimit(what)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(what, (soft, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    try:
        _answer(sys.argv[1], int(sys.argv[2]))
    except Exception:
        sys.exit(1)
