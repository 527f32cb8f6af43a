"""Bytes of an image file -> pixels, whatever the format; none may take more memory than allowed.

Most formats say in their header how large their pixels are, so OpenCV decodes them here. The size
in the header of an AVIF or HEIC file need not be that of the picture inside, and the header of a
raw file says little: these are decoded by a process of their own whose memory and time are limited
by the system. (This module is its program as well.)

HEIC needs pillow-heif, camera raw files need rawpy: the extra ``formats``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.image_files import (
    check_image_bytes,
    check_size,
    claimed_size,
    foreign_format,
    max_image_bytes,
    may_be_transparent,
    read_bytes,
)

SECONDS = 60
"""Of computing: the most that one file in a process of its own may take."""

_SPARE = 256 << 20  # bytes that a decoder may use besides its pixels
_COPIES = 2  # of the pixels: most decoders hold them in another colour space as well
_DECODE = cv2.IMREAD_ANYCOLOR | cv2.IMREAD_ANYDEPTH  # unlike IMREAD_UNCHANGED, this obeys EXIF


def decode_file(path: Path, max_bytes: int | None = None) -> NDArray[Any]:
    """Pixels of an image file: (H, W), (H, W, 3) RGB or (H, W, 4) RGBA, any depth, upright.

    Args:
        path: the file.
        max_bytes: limit on the decoded pixels and on the file; None for the usual one.

    Raises:
        HardnetError: it cannot be read, is no whole image, or would take too much memory or time.
    """
    limit = max_image_bytes() if max_bytes is None else max_bytes
    return decode_bytes(path, read_bytes(path, limit), limit)


def decode_bytes(path: Path, data: bytes, limit: int) -> NDArray[Any]:
    """The same for the content of a file; its name is for errors, and for formats without marks."""
    kind = foreign_format(data, path.suffix)
    if kind is not None:
        return _decode_apart(path, data, kind, limit)
    check_image_bytes(path, data, limit)
    try:
        array = _decode_by_opencv(data)
    except cv2.error as error:
        raise HardnetError(f"{path} cannot be decoded by OpenCV: {error.err}") from error
    if array is None:
        raise HardnetError(
            f"{path} is damaged or not an image OpenCV can read: convert it to JPEG or PNG"
        )
    return array


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


def _decode_by_opencv(data: bytes) -> NDArray[Any] | None:
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
    """Pixels of a file in a format that is decoded by a limited process."""
    if kind not in _DECODERS:
        raise HardnetError(
            f"{path} is a picture in the format {kind}, which cannot be read: convert it to JPEG "
            "or PNG"
        )
    package, _ = _DECODERS[kind]
    if find_spec(package.replace("-", "_")) is None:
        missing = MissingExtraError(package, "formats")
        raise HardnetError(f"{path} is a picture in the format {kind}: {missing}")
    if os.name != "posix":
        raise HardnetError(
            f"{path} is a picture in the format {kind}, which cannot be read safely on this "
            "system: convert it to JPEG or PNG"
        )
    if (claim := claimed_size(data)) is not None:
        check_size(path, *claim, 3, limit)
    return _ask(path, data, kind, limit)


def _ask(path: Path, data: bytes, kind: str, limit: int) -> NDArray[Any]:
    package_folder = str(Path(__file__).resolve().parents[1])
    paths = [package_folder, *filter(None, [os.environ.get("PYTHONPATH")])]
    # One arena: each thread of a decoder would reserve address space that it never uses.
    environment = {"PYTHONPATH": os.pathsep.join(paths), "MALLOC_ARENA_MAX": "1"}
    child = subprocess.run(
        [sys.executable, "-P", "-m", "hardnet.decoding", kind, str(limit)],
        input=data,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | environment,
        check=False,
    )
    if child.returncode == -signal.SIGXCPU:
        raise HardnetError(
            f"{path} is a picture in the format {kind} that takes more than {SECONDS} seconds to "
            "decode: convert it to JPEG or PNG"
        )
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
            "allowed to decode: convert it to JPEG or PNG"
        ) from None


class _TooLargeError(Exception):
    """Width, height and bytes of a pixel of what is not decoded."""


def _check_claim(width: int, height: int, pixel_bytes: int, limit: int) -> None:
    if width * height * pixel_bytes > limit:
        raise _TooLargeError(width, height, pixel_bytes)


def _avif(data: bytes, limit: int) -> NDArray[Any]:
    array = _decode_by_opencv(data)
    if array is None:
        raise ValueError
    _check_claim(array.shape[1], array.shape[0], array[0, 0].nbytes, limit)
    return array


def _heic(data: bytes, limit: int) -> NDArray[Any]:
    import io

    import pillow_heif

    opened = pillow_heif.open_heif(io.BytesIO(data), convert_hdr_to_8bit=True)
    width, height = opened.size
    _check_claim(width, height, 4 if opened.has_alpha else 3, limit)
    return np.asarray(opened)


def _raw(data: bytes, limit: int) -> NDArray[Any]:
    import io

    import rawpy

    with rawpy.imread(io.BytesIO(data)) as raw:
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
    data = sys.stdin.buffer.read()
    try:
        pixels = np.ascontiguousarray(decode(data, limit))
    except _TooLargeError as error:
        print(json.dumps({"size": error.args}))
        return
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
