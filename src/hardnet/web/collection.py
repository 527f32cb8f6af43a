"""Photos of requests and of the served index: looked up by id, searched, added, removed.

Uploads are checked before they are decoded. Requests name photos and folders of the index by ids,
which are looked up in the index and on disk. No text of a request ever becomes part of a path.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException, UploadFile

from hardnet.features import Features
from hardnet.image_files import SUFFIXES, read_header, state_of
from hardnet.images import Pixels, decode_image
from hardnet.retrieval.groups import find_groups
from hardnet.retrieval.index import Index
from hardnet.retrieval.photos import LEFT_OUT, path_of
from hardnet.retrieval.query import Box
from hardnet.retrieval.search import DEFAULT_MODE, LocalShard, mode_named
from hardnet.retrieval.store.segment import unpack_frames
from hardnet.retrieval.store.snapshot import Snapshot
from hardnet.retrieval.verification import Verification
from hardnet.web.work import Check, Job

MOST_FOLDERS = 2000
"""Of a listing: below the folders that were named at the start."""
MAX_PIXELS = 64_000_000
"""Of an uploaded photo, by its header: above any camera, and a few fit in memory."""
MAX_BYTES = 4 * MAX_PIXELS
"""Of its pixels."""
THUMBNAIL, PREVIEW = 256, 1600
"""Longer side in pixels of a photo in the grid, and of one shown alone."""
QUALITY = {THUMBNAIL: 80, PREVIEW: 88}


@dataclass(frozen=True)
class Upload:
    """A photo from a request: its bytes, and its name in answers, which never becomes a path."""

    name: str
    data: bytes

    def pixels(self) -> Pixels:
        """(H, W) grey or (H, W, 3) RGB, upright; refused if there are too many pixels."""
        header = read_header(self.data)
        if header is not None and header.width * header.height > MAX_PIXELS:
            raise HTTPException(
                413,
                f"{self.name} claims {header.width}x{header.height} pixels, "
                f"{header.width * header.height / 1e6:.0f} megapixels: more than "
                f"{MAX_PIXELS / 1e6:.0f}, shrink it",
            )
        return decode_image(self.data, self.name, MAX_BYTES)


def read_upload(file: UploadFile) -> Upload:
    """An uploaded file; the guard has limited its bytes."""
    name = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    printable = "".join(c for c in name if c.isprintable())[:120]
    return Upload(printable or "photo", file.file.read())


def id_of(text: str) -> str:
    """The id of a photo or folder in requests."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:20]


@dataclass(frozen=True)
class Photo:
    """A photo of the index."""

    id: str  # its name in requests
    path: str  # absolute
    image: int  # its number in the snapshot
    size: tuple[int, int]  # (width, height)
    features: int  # their number
    state: tuple[int, int]  # size and modification time of its file when it was indexed

    def tag(self, size: int) -> str:
        """Of a picture of this photo with that longer side, as HTTP's ETag."""
        return f'"{id_of(f"{self.path} {self.state} {size}")}"'

    def to_json(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in ("id", "path", "size", "features")}
        return facts | {"name": "/".join(Path(self.path).parts[-2:])}


class Listing:
    """All photos of one snapshot, in the order of their paths."""

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self.snapshot = snapshot
        counts = snapshot.feature_counts()
        found = [
            Photo(
                id_of(name),
                path_of(name, folder),
                number,
                snapshot.size(number),
                counts[name],
                snapshot.file(number),
            )
            for name, number in zip(counts, snapshot.find_many(list(counts)).tolist(), strict=True)
        ]
        found.sort(key=lambda photo: photo.path)
        self.photos = {photo.id: photo for photo in found}
        self.by_path = {photo.path: photo for photo in found}

    def photo(self, id: str) -> Photo:
        if (found := self.photos.get(id)) is None:
            raise HTTPException(404, "there is no such photo in the index")
        return found

    def ids(self, *paths: str) -> list[str | None]:
        """Of photos by their paths; they may have been removed meanwhile."""
        return [photo.id if (photo := self.by_path.get(path)) else None for path in paths]


class Collection:
    """An index and the server's operations on it; photos may be added from below the roots."""

    def __init__(
        self, folder: Path, roots: Sequence[Path] = (), descriptor: str | None = None
    ) -> None:
        self.index = Index(folder, descriptor=descriptor)
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self._lock, self._change = threading.Lock(), threading.Lock()
        self._listing: Listing | None = None
        self.found_groups: dict[str, Any] | None = None  # by the last comparison
        # Photos removed before this server started can also be restored.
        self._undo = self.index.removed()

    @property
    def listing(self) -> Listing:
        """The photos as they are now."""
        with self._lock:
            snapshot = self.index.snapshot
            if self._listing is None or self._listing.snapshot is not snapshot:
                self._listing = Listing(snapshot, self.index.folder)
            return self._listing

    def info(self) -> dict[str, Any]:
        """The object of `hardnet index info --json`, and how many removals can be undone."""
        return self.index.info() | {"undo": len(self._undo)}

    def file(self, photo: Photo) -> Path:
        """The file of a photo, links followed.

        A link, or a photo below one, may point elsewhere than when it was indexed: then the file
        must have the size and time of the one that was indexed.
        """
        real = os.path.realpath(photo.path)
        try:
            state = tuple(state_of(Path(real)).values())
        except OSError:
            raise HTTPException(404, f"{photo.path} is gone") from None
        if real != photo.path and state != photo.state:
            raise HTTPException(404, f"{photo.path} points to a file that is not in the index")
        return Path(real)

    def _described(
        self, source: Upload | Path, box: Box | None, check: Check
    ) -> tuple[list[Features], dict[str, float]]:
        image = source.pixels() if isinstance(source, Upload) else source
        check()
        views, seconds = self.index.described(image, box)
        check()
        if isinstance(source, Upload):
            views = [replace(view, path=source.name) for view in views]
        return views, seconds

    def search(
        self, source: Upload | Path, k: int, box: Box | None, mode: str, check: Check
    ) -> dict[str, Any]:
        """The object of `hardnet search --json`, with the ids and sizes of the hits."""
        views, seconds = self._described(source, box, check)
        found = self.index.search(views, k, box, mode)
        listing = self.listing.by_path
        seconds |= {stage: seconds.get(stage, 0.0) + time for stage, time in found.seconds.items()}
        answer = replace(found, seconds=seconds).to_json(self.index.folder, len(self.index), mode)
        for hit in answer["hits"]:
            photo = listing.get(hit["path"])  # it may have been removed in the meantime
            hit["id"], hit["size"] = (photo.id, photo.size) if photo else (None, None)
        return answer

    def explain(
        self, source: Upload | Path, id: str, box: Box | None, check: Check
    ) -> dict[str, Any]:
        """What a photo of the index has in common with a query."""
        listing = self.listing
        photo, snapshot = listing.photo(id), listing.snapshot
        views, _ = self._described(source, box, check)
        query = self.index.query(views, box, snapshot.vocabulary)
        how = mode_named(DEFAULT_MODE).verification or Verification()
        number = np.array([photo.image], np.int64)
        [found] = LocalShard(snapshot).verify(query, number, how)
        position, _ = snapshot.locate(photo.image)
        features, postings = found.pairs.T
        geometry = snapshot.segments[position].geometry[postings]
        there = unpack_frames(np.asarray(geometry), photo.size)[:, :, 2]
        pairs = np.concatenate([query.frames[features][:, :, 2], there], 1)
        path, size = views[0].path, views[0].image_size
        return photo.to_json() | {
            "query": {"path": path, "size": size, "features": len(query), "box": box},
            "shared": found.tentatives,
            "inliers": found.inliers,
            "verified": how.is_sure(found),
            "transform": None if found.transform is None else found.transform.tolist(),
            "pairs": np.round(pairs, 2).tolist(),
        }

    def groups(self, job: Job, mirrored: bool) -> dict[str, Any]:
        """Compare all photos with each other; pairs compared before are not compared again."""
        found = find_groups(self.index, mirrored=mirrored, progress=job.tell)
        listing, answer = self.listing, found.to_json()
        for pair, facts in zip(found.pairs, answer["pairs"], strict=True):
            facts["ids"] = listing.ids(pair.a, pair.b)
            facts["points"] = np.round(pair.points, 2).tolist()
        for facts in answer["groups"]:
            facts["ids"] = listing.ids(*facts["photos"])
        answer |= {"photos": found.photos, "compared": found.compared}
        self.found_groups = answer | {"removable": found.removable(), "unread": found.unread}
        return {"groups": len(found.groups), "pairs": len(found.pairs), "photos": found.photos}

    def folders(self) -> dict[str, tuple[Path, int]]:
        """Folders with pictures from which photos may be added, by id, and how many they have."""
        found: dict[str, tuple[Path, int]] = {}
        own = os.path.realpath(self.index.folder)
        for root in self._roots:
            for place, folders, files in os.walk(root):  # does not follow links
                folders[:] = sorted(
                    name
                    for name in folders
                    if not name.startswith(".")
                    and name.lower() not in LEFT_OUT
                    and os.path.join(place, name) != own
                )
                pictures = sum(os.path.splitext(name)[1].lower() in SUFFIXES for name in files)
                if pictures or place == str(root):
                    found.setdefault(id_of(place), (Path(place), pictures))
                if len(found) >= MOST_FOLDERS:
                    return found
        return found

    def folder(self, id: str) -> Path:
        if (found := self.folders().get(id)) is None:
            raise HTTPException(404, "there is no such folder: see GET /folders")
        return found[0]

    def add(self, folder: Path, job: Job) -> dict[str, Any]:
        """Add a folder; returns the object of `hardnet index add --json`."""
        report = self.index.add(folder, progress=job.tell)
        skipped = [{"image": name, "reason": why} for name, why in report.skipped.items()]
        facts = {"index": str(self.index.folder), **vars(report), "skipped": skipped}
        return facts | {"images": len(self.index)}

    def remove(self, photo: Photo) -> dict[str, Any]:
        """Remove a photo from the index; its file is kept."""
        with self._change:
            removed = self.index.remove(photo.path)
            self._undo.append(photo.path)
        return self._changed(removed)

    def undo(self) -> dict[str, Any]:
        with self._change:
            if not self._undo:
                raise HTTPException(409, "there is no removal to undo")
            photo = self._undo[-1]
            self.index.refresh()
            if photo in self.index.removed():
                restored = self.index.restore(photo)
            else:  # its space was freed when photos were added
                restored = self.index.add(photo).indexed
            self._undo.pop()
        return self._changed(-restored)

    def _changed(self, removed: int) -> dict[str, Any]:
        facts = {"index": str(self.index.folder), "removed": removed}
        return facts | {"images": len(self.index), "undo": len(self._undo)}

    def compact(self, job: Job) -> dict[str, Any]:
        """Free the space of removed photos, which then cannot be restored."""
        self.index.compact(job.tell)
        with self._change:
            self._undo.clear()
        return self.info()
