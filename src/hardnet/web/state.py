"""What the requests share: settings, threads, the collection, results; pictures in and out.

Uploads are checked before they are decoded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from fastapi import HTTPException, UploadFile

from hardnet.bench import report
from hardnet.errors import HardnetError
from hardnet.image_files import read_header
from hardnet.images import Pixels, decode_image, read_image, shrink, to_colour
from hardnet.provenance import Cache
from hardnet.storage import file_state
from hardnet.web.collection import Collection
from hardnet.web.work import Jobs, Pool

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Settings:
    """How to serve."""

    index: Path | None = None  # folder of the index; None: no search
    roots: Sequence[Path] = ()  # folders from which photos may be added
    results: Path | None = None  # folder of stored benchmark results
    descriptor: str | None = None  # for an index that was built with a Python function
    hosts: frozenset[str] = LOOPBACK  # host names and addresses accepted in requests
    any_address: bool = False  # also accept every numeric address
    token: str | None = None  # required in every request
    max_upload: int = 64_000_000  # bytes of a request: two camera files
    workers: int | None = None  # worker threads; by default one per core
    queue: int = 8  # waiting requests per worker


MAX_PIXELS = 64_000_000
"""Of an uploaded photo, by its header: above any camera, and a few fit in memory."""
MAX_BYTES = 4 * MAX_PIXELS
"""Of its pixels."""
THUMBNAIL, PREVIEW = 256, 1600
"""Longer side in pixels of a photo in the grid, and of one shown alone."""
QUALITY = {THUMBNAIL: 80, PREVIEW: 88}


@dataclass(frozen=True)
class Upload:
    """A photo from a request: its bytes, and its name in answers.

    The name is for display and never becomes a path.
    """

    name: str
    data: bytes

    def pixels(self) -> Pixels:
        """(H, W) grey or (H, W, 3) RGB, upright; refused if there are too many pixels."""
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
        raise HardnetError("the image cannot be written as JPEG")
    return bytes(data)


class StoredResults:
    """The results files (.json) of a folder, as ``results`` of the repository."""

    def __init__(self, folder: Path | None) -> None:
        self._folder, self._cache = folder, Cache("figures")
        self._drawing = threading.Lock()  # matplotlib draws one at a time

    def files(self) -> dict[str, Path]:
        """By the names that requests use."""
        if self._folder is None or not self._folder.is_dir():
            return {}
        return {path.stem: path for path in sorted(self._folder.glob("*.json"))}

    def entries(self) -> list[dict[str, Any]]:
        """The files that have tables."""
        found = []
        for name in self.files():
            try:
                results = self._read(name)
                shown = report.tables(results)
            except (HardnetError, KeyError, TypeError, ValueError):  # some other JSON file
                continue
            if shown:
                kind = str(results.get("kind", "speed"))
                found.append({"name": name, "kind": kind, "title": shown[0].title})
        return found

    def get(self, name: str) -> dict[str, Any]:
        """The tables and figures of one file."""
        results = self._read(name)
        shown = [
            {"title": t.title, "note": t.note, "columns": t.full_headings(": "), "rows": t.rows}
            for t in report.tables(results)
        ]
        return {
            "name": name,
            "kind": str(results.get("kind", "speed")),
            "command": (results.get("provenance") or {}).get("command"),
            "tables": shown,
            "figures": _figures(results),
        }

    def figure(self, name: str, which: str) -> bytes:
        """A figure as PNG, drawn at the first request."""
        results = self._read(name)
        if which not in _figures(results):
            raise HTTPException(404, "there is no such figure")
        about = {"results": name, "figure": which, "state": file_state(self.files()[name])}

        def draw(part: Path, _: None) -> None:
            picture = part.with_name(f"{part.name}.png")
            try:
                report.figure(results, picture, which)
                picture.replace(part)
            finally:
                picture.unlink(missing_ok=True)

        with self._drawing:
            return self._cache.get(about, lambda: None, draw, Path.read_bytes, ".png")

    def _read(self, name: str) -> Any:
        path = self.files().get(name)
        if path is None:
            raise HTTPException(404, "there are no such results")
        return _read_results(path, file_state(path))


@lru_cache(maxsize=256)
def _read_results(path: Path, state: tuple[int, ...]) -> Any:
    return report.read_results(path)


def _figures(results: Any) -> list[str]:
    if "kind" not in results or find_spec("matplotlib") is None:
        return []
    return report.figures(results)


@dataclass
class State:
    """What the requests share."""

    settings: Settings
    pool: Pool
    pictures: Pool
    results: StoredResults
    collection: Collection | None
    jobs: Jobs = field(default_factory=Jobs)
    previews: Cache = field(default_factory=lambda: Cache("previews"))

    def searched(self) -> Collection:
        """The collection, if there is one."""
        if self.collection is None:
            raise HTTPException(404, "no index is served: start `hardnet serve INDEX`")
        return self.collection

    def source(self, upload: Upload | None, photo: str | None) -> Upload | Path:
        """The source of a request's pixels: an upload, or a photo of the index."""
        if upload is not None and photo is None:
            return upload
        if upload is not None or photo is None:
            raise HTTPException(422, "give either a file or the id of a photo of the index")
        collection = self.searched()
        return collection.file(collection.photo(photo))

    def image(self, upload: Upload | None, photo: str | None) -> Pixels | Path:
        """The same, with the pixels of an upload decoded."""
        source = self.source(upload, photo)
        return source.pixels() if isinstance(source, Upload) else source

    def preview(self, photo: Path, size: int) -> bytes:
        """A photo as JPEG with a longer side of at most ``size`` pixels, kept in the cache."""
        about = {"path": str(photo), "size": size, "state": file_state(photo)[1:]}

        def make() -> bytes:
            return to_jpeg(read_image(photo), size)

        return self.previews.get(about, make, Path.write_bytes, Path.read_bytes, ".jpg")
