"""Pictures of patch sets on disk: their size from the header alone, their pixels as grey.

Both say which file is cut short or damaged; OpenCV by itself returns half a picture or nothing.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import read_image_file, require_regular_file
from hardnet.images import quiet_opencv

_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_END = b"IEND\xaeB`\x82"
_BMP = b"BM"


def picture_size(path: Path) -> tuple[int, int]:
    """(width, height) of a png or bmp file; nothing is decoded, but a file cut short is noticed."""
    try:
        require_regular_file(path)
        with path.open("rb") as stream:
            head = stream.read(34)
            length = stream.seek(0, 2)
            stream.seek(max(0, length - 64))
            tail = stream.read()
    except FileNotFoundError:
        raise HardnetError(f"{path} is missing") from None
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from None
    if head.startswith(_PNG) and len(head) >= 24:
        if _PNG_END not in tail:
            raise HardnetError(f"{path} is truncated: copy or download it again")
        return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")
    if head.startswith(_BMP) and len(head) >= 34:
        width, height, bits, packed = (
            int.from_bytes(head[a:b], "little", signed=True)
            for a, b in ((18, 22), (22, 26), (28, 30), (30, 34))
        )
        start = int.from_bytes(head[10:14], "little")
        row = (width * bits + 31) // 32 * 4  # rows are padded to 4 bytes
        if not packed and length < start + row * abs(height):
            raise HardnetError(f"{path} is truncated: copy or download it again")
        return width, abs(height)
    raise HardnetError(f"{path} is damaged or neither png nor bmp: copy or download it again")


def read_picture(path: Path) -> NDArray[np.uint8]:
    """(H, W) grey pixels of a png or bmp file; colour is converted."""
    width, height = picture_size(path)
    # Not cv2.imread: it cannot open every unicode path on every system.
    data = np.frombuffer(read_image_file(path), np.uint8)
    pixels = None
    with suppress(cv2.error), quiet_opencv():
        pixels = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE)
    if pixels is None or pixels.shape != (height, width):
        raise HardnetError(f"{path} is truncated or damaged: copy or download it again")
    return np.asarray(pixels, np.uint8)
