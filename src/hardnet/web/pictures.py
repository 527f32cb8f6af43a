"""Pictures that come in, checked before they are decoded; and small ones that go out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from fastapi import HTTPException, UploadFile

from hardnet.cache import Cache
from hardnet.errors import HardnetError
from hardnet.image_files import read_header
from hardnet.images import Pixels, decode_image, read_image, shrink, to_colour

MAX_PIXELS = 64_000_000
"""Of an uploaded photo, by its header: more than cameras have, and memory for a few at a time."""
MAX_BYTES = 4 * MAX_PIXELS
"""Of its pixels."""
THUMBNAIL, PREVIEW = 256, 1600
"""Longer side, in pixels, of a photo in the grid and of one that is looked at."""
QUALITY = {THUMBNAIL: 80, PREVIEW: 88}
JPEG = "image/jpeg"


@dataclass(frozen=True)
class Upload:
    """A photo from a request: its bytes, and what it is called in answers.

    A name is for people: it never becomes a path.
    """

    name: str
    data: bytes

    def pixels(self) -> Pixels:
        """(H, W) grey or (H, W, 3) RGB, upright.

        Raises:
            HTTPException: it has too many pixels (413), or is no picture that can be read (400).
        """
        header = read_header(self.data)
        if header is not None and header.width * header.height > MAX_PIXELS:
            megapixels = header.width * header.height / 1e6
            raise HTTPException(
                413,
                f"{self.name} claims {header.width}x{header.height} pixels, {megapixels:.0f} "
                f"megapixels: more than {MAX_PIXELS / 1e6:.0f}, shrink it",
            )
        return decode_image(self.data, self.name, MAX_BYTES)


async def read_upload(file: UploadFile | None) -> Upload | None:
    """The bytes of an uploaded file, if there is one; the guard has limited them."""
    if file is None:
        return None
    name = Path((file.filename or "photo").replace("\\", "/")).name or "photo"
    printable = "".join(c for c in name if c.isprintable())[:120]
    return Upload(printable or "photo", await file.read())


def to_jpeg(pixels: Pixels, size: int) -> bytes:
    """A picture with a longer side of at most ``size`` pixels."""
    small, _ = shrink(to_colour(pixels), size)
    quality = [cv2.IMWRITE_JPEG_QUALITY, QUALITY.get(size, 85)]
    good, data = cv2.imencode(".jpg", np.ascontiguousarray(small[:, :, ::-1]), quality)
    if not good:
        raise HardnetError("the picture cannot be written as JPEG")
    return bytes(data)


class Previews:
    """Small copies of photos, made when they are first asked for and kept in the user's cache."""

    def __init__(self) -> None:
        self._cache = Cache("previews")

    def get(self, photo: Path, size: int) -> bytes:
        """A photo as JPEG with a longer side of at most ``size`` pixels.

        Raises:
            HardnetError: it cannot be read.
        """
        facts = photo.stat()
        about = {
            "path": str(photo),
            "size": size,
            "state": [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns],
        }
        return self._cache.get(
            about,
            lambda: to_jpeg(read_image(photo), size),
            _write,
            Path.read_bytes,
            ".jpg",
        )


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)
