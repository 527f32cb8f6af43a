"""What the requests share: settings, threads, the collection; pictures that come in and go out.

Uploads are checked before they are decoded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from fastapi import HTTPException, UploadFile

from hardnet.cache import Cache
from hardnet.errors import HardnetError
from hardnet.image_files import read_header
from hardnet.images import Pixels, decode_image, read_image, shrink, to_colour
from hardnet.web import objects
from hardnet.web.collection import Collection
from hardnet.web.guard import LOOPBACK
from hardnet.web.stored_results import StoredResults
from hardnet.web.work import Jobs, Pool

MAX_UPLOAD = 64_000_000
"""Bytes of a request: two photos as cameras write them."""
QUEUE = 8
"""Requests that may wait for each thread that works."""
PICTURES = 256
"""Small pictures that may be asked for at a time: the grid of a page, of a few people."""


@dataclass(frozen=True)
class Settings:
    """How to serve."""

    index: Path | None = None  # folder of the index; None: there is nothing to search
    roots: Sequence[Path] = ()  # folders from which photos may be added
    results: Path | None = None  # folder of stored benchmark results
    descriptor: str | None = None  # for an index that was made with a Python function
    hosts: frozenset[str] = LOOPBACK  # see :class:`~hardnet.web.guard.Guard`, like the following
    any_address: bool = False  # see there
    token: str | None = None  # see there
    max_upload: int = MAX_UPLOAD  # bytes of a request
    workers: int | None = None  # threads that work; by default one per core
    queue: int = QUEUE  # requests that may wait for each of them


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
        """(H, W) grey or (H, W, 3) RGB, upright; refused if it has too many."""
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
        """A photo as JPEG with a longer side of at most ``size`` pixels."""
        facts = photo.stat()
        state = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
        about = {"path": str(photo), "size": size, "state": state}

        def write(path: Path, data: bytes) -> None:
            path.write_bytes(data)

        def make() -> bytes:
            return to_jpeg(read_image(photo), size)

        return self._cache.get(about, make, write, Path.read_bytes, ".jpg")


@dataclass
class State:
    """What the requests share."""

    settings: Settings
    pool: Pool
    pictures: Pool
    jobs: Jobs
    previews: Previews
    results: StoredResults
    collection: Collection | None

    def searched(self) -> Collection:
        """The collection, if there is one."""
        if self.collection is None:
            raise HTTPException(404, "no index is served: start `hardnet serve INDEX`")
        return self.collection

    def source(self, upload: Upload | None, photo: str | None) -> Upload | Path:
        """Where the pixels of a request are: in it, or in a photo of the index."""
        if (upload is None) == (photo is None):
            raise HTTPException(422, "give either a file or the id of a photo of the index")
        if upload is not None:
            return upload
        collection = self.searched()
        return collection.file(collection.photo(photo or ""))

    def image(self, upload: Upload | None, photo: str | None) -> Pixels | Path:
        """The same, with the pixels of what is in the request."""
        source = self.source(upload, photo)
        return source.pixels() if isinstance(source, Upload) else source


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": objects.Problem, "description": words}
    for status, words in {
        400: "A photo cannot be read, or the work cannot be done.",
        401: "The token is missing.",
        403: "The request comes from the page of another site.",
        404: "There is no such photo, folder, job or results file.",
        408: "The request took too long to arrive.",
        409: "Another job is at work, or there is nothing to undo.",
        413: "The request has too many bytes, or a photo too many pixels.",
        421: "The host name is not this server's.",
        422: "A parameter is missing or out of range.",
        429: "Too much work at the moment; Retry-After says when to try again.",
    }.items()
}
"""What any request may be answered with, for the description of the API."""

IMAGE = {"content": {JPEG: {}}, "description": "A picture."}
FIGURE = {"content": {"image/png": {}}, "description": "A picture."}
