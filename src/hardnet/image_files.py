"""What the bytes of an image file say of its picture: whether it is whole, whether transparent.

OpenCV decodes half a file without an error and fills the rest with grey; this is found here, from
the bytes alone.
"""

from __future__ import annotations

from hardnet.image_headers import JPEG, JPEG_END, PNG, jpeg_segments

_PNG_END = b"IEND\xaeB`\x82"
_PNG_WITH_ALPHA = (b"\x04", b"\x06")  # colour types: grey and alpha, RGB and alpha


def is_truncated(data: bytes) -> bool:
    """True if the file ends before its picture does, as far as its format shows that."""
    if data.startswith(JPEG):
        return all(marker != JPEG_END for marker, _ in jpeg_segments(data))
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
