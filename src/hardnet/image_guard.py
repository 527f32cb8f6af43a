"""Which image files may be decoded: a few bytes must not take all memory, or minutes.

Everything that reads pictures from files gets their bytes here, checked.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.image_files import is_truncated
from hardnet.image_headers import read_header, scans

ENVIRONMENT = "HARDNET_MAX_IMAGE_BYTES"
"""The environment variable that sets the limit; the option --max-image-bytes writes it."""

DEFAULT_MAX_BYTES = 10**9
"""Of decoded pixels, and of a file: a colour photo of 333 megapixels."""

MAX_SCANS = 100
"""Of a progressive JPEG file: encoders write about ten, and each costs a pass over the picture."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([KMG]?)B?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of "2000000", "500MB" or "1.5 GB".

    Raises:
        ValueError: it is none of these.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or not (size := int(float(found[1]) * _UNITS[found[2].upper()])):
        raise ValueError(f"'{text}' is not a size: give a number of bytes, or 500MB, or 2GB")
    return size


def max_image_bytes() -> int:
    """The limit: ``HARDNET_MAX_IMAGE_BYTES`` if set, otherwise :data:`DEFAULT_MAX_BYTES`."""
    text = os.environ.get(ENVIRONMENT)
    if not text:
        return DEFAULT_MAX_BYTES
    try:
        return parse_size(text)
    except ValueError as error:
        raise HardnetError(f"{ENVIRONMENT}: {error}") from None


def require_regular_file(path: Path) -> int:
    """Bytes of a file. Pipes block, devices never end: only regular files are opened.

    Raises:
        HardnetError: it is something else.
        OSError: it does not exist or may not be looked at.
    """
    status = path.stat()
    if stat.S_ISDIR(status.st_mode):
        raise HardnetError(f"{path} is a folder: name one file in it")
    if not stat.S_ISREG(status.st_mode):
        raise HardnetError(f"{path} is a pipe, device or socket: save it as a file first")
    return status.st_size


def read_image_file(path: Path, max_bytes: int | None = None) -> bytes:
    """The bytes of an image file that is safe to decode.

    Args:
        path: the file.
        max_bytes: limit on the decoded pixels and on the file; None for :func:`max_image_bytes`.

    Raises:
        HardnetError: it cannot be read, is no whole image, or would take too much memory or time.
    """
    limit = max_image_bytes() if max_bytes is None else max_bytes
    try:
        size = require_regular_file(path)
        if size <= limit:
            with path.open("rb") as file:
                data = file.read(limit + 1)  # files of the kernel have no size until they are read
            size = len(data)
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    if size > limit:
        raise HardnetError(f"{path} is a file of {_megabytes(size)}{_over(limit)}")
    if not data:
        raise HardnetError(f"{path} is empty: copy or download it again")
    _check(path, data, limit)
    return data


def check_frame(path: Path, width: int, height: int) -> None:
    """Raise if a colour picture of this size, a frame of a video, is over the limit."""
    limit = max_image_bytes()
    if (size := width * height * 3) > limit:
        raise _too_large(path, width, height, size, limit)


def _check(path: Path, data: bytes, limit: int) -> None:
    if is_truncated(data):
        raise HardnetError(f"{path} is truncated: copy or download it again")
    header = read_header(data)
    if header is None:
        raise HardnetError(
            f"{path} is damaged or not an image that can be read safely: convert it to JPEG or PNG"
        )
    if header.decoded_bytes > limit:
        raise _too_large(path, header.width, header.height, header.decoded_bytes, limit)
    if (count := scans(data)) > MAX_SCANS:
        raise HardnetError(
            f"{path} is a progressive JPEG of {count} scans, more than {MAX_SCANS}, which would "
            "take minutes: convert it to PNG"
        )


def _too_large(path: Path, width: int, height: int, size: int, limit: int) -> HardnetError:
    return HardnetError(
        f"{path} claims {width}x{height} pixels, {_megabytes(size)} decoded{_over(limit)}"
    )


def _over(limit: int) -> str:
    return (
        f": more than {_megabytes(limit)}, shrink it or raise the limit "
        f"(--max-image-bytes, {ENVIRONMENT})"
    )


def _megabytes(size: int) -> str:
    return f"{size / 10**6:.{0 if size >= 10**7 else 1}f} MB"
