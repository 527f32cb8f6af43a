"""What the bytes of an image file say before it is decoded: its size, and whether it is whole.

OpenCV decodes half a file without an error and fills the rest with grey, and it allocates whatever
size a header claims. Both are found here, from the bytes alone.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator

JPEG = b"\xff\xd8"
PNG = b"\x89PNG"

_PNG_END = b"IEND\xaeB`\x82"
_PNG_WITH_ALPHA = (b"\x04", b"\x06")  # colour types: grey and alpha, RGB and alpha
# A marker that ends entropy-coded data: neither a stuffed 0xFF byte nor a restart marker.
_JPEG_MARKER = re.compile(rb"\xff[^\x00\xd0-\xd7\xff]")
_JPEG_END = 0xD9
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # these hold the size
_PNM = re.compile(rb"P[1-6]\s+(?:#.*\n\s*)*(\d{1,9})\s+(?:#.*\n\s*)*(\d{1,9})\s")
_TIFF = {b"II*\x00": "<", b"MM\x00*": ">"}
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_SHORT = 256, 257, 3


def declared_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) that the header claims; None if the format is unknown or the header broken.

    WebP files are not looked at: the format has no room for more than 16383 pixels a side.
    """
    try:
        if data.startswith(PNG):
            width, height = struct.unpack_from(">II", data, 16)
        elif data.startswith(JPEG):
            start = next(at for marker, at in _jpeg_segments(data) if marker in _JPEG_FRAMES)
            height, width = struct.unpack_from(">HH", data, start + 3)
        elif data.startswith(b"BM"):
            width, height = struct.unpack_from("<ii", data, 18)
        elif data[:4] in _TIFF:
            width, height = _tiff_size(data, _TIFF[data[:4]])
        elif match := _PNM.match(data):
            width, height = int(match[1]), int(match[2])
        else:
            return None
    except (struct.error, StopIteration, KeyError):
        return None
    return abs(width), abs(height)  # a BMP stored top row first has a negative height


def is_truncated(data: bytes) -> bool:
    """True if the file ends before its picture does, as far as its format shows that."""
    if data.startswith(JPEG):
        return all(marker != _JPEG_END for marker, _ in _jpeg_segments(data))
    if data.startswith(PNG):
        return _PNG_END not in data
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return len(data) < 8 + int.from_bytes(data[4:8], "little")
    return False


def may_be_transparent(data: bytes) -> bool:
    """False if the picture certainly has no alpha channel."""
    if data.startswith(PNG):
        return data[25:26] in _PNG_WITH_ALPHA or b"tRNS" in data
    return not data.startswith(JPEG)


def _jpeg_segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Each marker and where its segment starts, in order, up to the end marker.

    The segments are walked, not searched: thumbnails and trailers have markers of their own.
    """
    position = 2
    while (found := _JPEG_MARKER.search(data, position)) is not None:
        marker = data[found.start() + 1]
        yield marker, found.end()
        if marker == _JPEG_END:
            return
        position = found.end() + int.from_bytes(data[found.end() : found.end() + 2], "big")


def _tiff_size(data: bytes, order: str) -> tuple[int, int]:
    """(width, height) of the first picture of a TIFF file; ``order`` is that of its bytes."""
    (table,) = struct.unpack_from(order + "I", data, 4)
    (count,) = struct.unpack_from(order + "H", data, table)
    values: dict[int, int] = {}
    for start in range(table + 2, table + 2 + 12 * count, 12):
        tag, kind = struct.unpack_from(order + "HH", data, start)
        (values[tag],) = struct.unpack_from(
            order + ("H" if kind == _TIFF_SHORT else "I"), data, start + 8
        )
    return values[_TIFF_WIDTH], values[_TIFF_HEIGHT]
