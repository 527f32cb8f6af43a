"""What the requests share: settings, threads, the collection, stored results, previews."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import HTTPException, UploadFile

from hardnet.bench import report
from hardnet.errors import HardnetError
from hardnet.image_files import file_state
from hardnet.images import read_image
from hardnet.provenance import Cache
from hardnet.retrieval.groups import to_jpeg
from hardnet.web.collection import QUALITY, Collection, Photo, Upload, read_upload
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


class StoredResults:
    """The results files (.json) of a folder, as ``results`` of the repository."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._drawing = threading.Lock()  # matplotlib draws one at a time

    def files(self) -> dict[str, Path]:
        """By the names that requests use."""
        if self._folder is None or not self._folder.is_dir():
            return {}
        return {path.stem: path for path in sorted(self._folder.glob("*.json"))}

    def entries(self) -> list[dict[str, Any]]:
        found = []
        for name in self.files():
            try:
                facts = self.get(name)
            except (HardnetError, KeyError, TypeError, ValueError):  # some other JSON file
                continue
            if facts["tables"]:
                found.append(facts)
        return found

    def get(self, name: str) -> dict[str, Any]:
        """The tables and figures of one file."""
        results = self._read(name)
        tables = [
            {"title": t.title, "note": t.note, "columns": t.full_headings(": "), "rows": t.rows}
            for t in report.tables(results)
        ]
        return {
            "name": name,
            "kind": str(results.get("kind", "speed")),
            "title": tables[0]["title"] if tables else "",
            "command": (results.get("provenance") or {}).get("command"),
            "tables": tables,
            "figures": _figures(results),
        }

    def figure(self, name: str, which: str) -> bytes:
        """A figure as PNG, drawn at the first request."""
        if which not in _figures(self._read(name)):
            raise HTTPException(404, "there is no such figure")
        path = self.files()[name]
        with self._drawing:
            return _draw(path, file_state(path), which)

    def _read(self, name: str) -> Any:
        if (path := self.files().get(name)) is None:
            raise HTTPException(404, "there are no such results")
        return _read_results(path, file_state(path))


@lru_cache(maxsize=256)
def _read_results(path: Path, state: tuple[int, ...]) -> Any:
    return report.read_results(path)


@lru_cache(maxsize=64)
def _draw(path: Path, state: tuple[int, ...], which: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "figure.png"
        report.figure(_read_results(path, state), picture, which)
        return picture.read_bytes()


def _figures(results: Any) -> list[str]:
    drawn = "kind" in results and find_spec("matplotlib") is not None
    return report.figures(results) if drawn else []


@dataclass(frozen=True)
class State:
    """What the requests share."""

    settings: Settings
    pool: Pool
    pictures: Pool
    results: StoredResults
    served: Collection | None
    jobs: Jobs = field(default_factory=Jobs)
    previews: Cache = field(default_factory=lambda: Cache("previews"))

    @property
    def collection(self) -> Collection:
        """The collection, if there is one."""
        if self.served is None:
            raise HTTPException(404, "no index is served: start `hardnet serve INDEX`")
        return self.served

    def source(self, file: UploadFile | None, photo: str | None) -> Upload | Path:
        """The source of a request's pixels: an upload, or a photo of the index."""
        if (file is None) == (photo is None):
            raise HTTPException(422, "give either a file or the id of a photo of the index")
        if file is not None:
            return read_upload(file)
        return self.collection.file(self.collection.listing.photo(photo or ""))

    def preview(self, photo: Photo, size: int) -> bytes:
        """A photo as JPEG with a longer side of at most ``size`` pixels, kept in the cache."""
        path = self.collection.file(photo)
        about = {"path": str(path), "size": size, "state": file_state(path)[1:]}

        def make() -> bytes:
            return to_jpeg(read_image(path), size, QUALITY[size])

        return self.previews.get(about, make, Path.write_bytes, Path.read_bytes, ".jpg")
