"""The photos of the served index: looked up by id, searched, added, removed.

Requests name photos and folders by ids, which are looked up in the index and on disk. No text of a
request ever becomes part of a path.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import HTTPException

from hardnet.features import Features
from hardnet.image_files import SUFFIXES, state_of
from hardnet.images import Source
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

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        own = {name: getattr(self, name) for name in ("id", "path", "size", "features")}
        return own | {"name": "/".join(Path(self.path).parts[-2:])}


class Listing:
    """All photos of one snapshot."""

    def __init__(self, snapshot: Snapshot, folder: Path) -> None:
        self.snapshot, self._folder = snapshot, folder

    @cached_property
    def photos(self) -> dict[str, Photo]:
        """By id, in the order of their paths."""
        counts = self.snapshot.feature_counts()
        numbers = self.snapshot.find_many(list(counts)).tolist()
        found = [
            Photo(
                id_of(name),
                path_of(name, self._folder),
                number,
                self.snapshot.size(number),
                count,
                self.snapshot.file(number),
            )
            for (name, count), number in zip(counts.items(), numbers, strict=True)
        ]
        return {photo.id: photo for photo in sorted(found, key=lambda photo: photo.path)}

    @cached_property
    def by_path(self) -> dict[str, Photo]:
        """By absolute path."""
        return {photo.path: photo for photo in self.photos.values()}

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
        self._listing = Listing(self.index.snapshot, folder)
        self.found_groups: dict[str, Any] | None = None  # by the last comparison
        # Photos removed before this server started can also be restored.
        self._undo = self.index.removed()

    @property
    def listing(self) -> Listing:
        """The photos as they are now."""
        with self._lock:
            snapshot = self.index.snapshot
            if self._listing.snapshot is not snapshot:
                self._listing = Listing(snapshot, self.index.folder)
            return self._listing

    def info(self) -> dict[str, Any]:
        """The object of `hardnet index info --json`, and how many removals can be undone."""
        return self.index.info() | {"undo": len(self._undo)}

    def photo(self, id: str) -> Photo:
        """A photo by its id."""
        found = self.listing.photos.get(id)
        if found is None:
            raise HTTPException(404, "there is no such photo in the index")
        return found

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

    def search(
        self, image: Source | Features, k: int, box: Box | None, mode: str, check: Check
    ) -> dict[str, Any]:
        """The object of `hardnet search --json`, with the ids and sizes of the hits."""
        mode_named(mode)
        views, seconds = self.index.described(image, box)
        check()
        found = self.index.search(views, k, box, mode)
        listing = self.listing.by_path
        seconds |= {stage: seconds.get(stage, 0.0) + time for stage, time in found.seconds.items()}
        answer = replace(found, seconds=seconds).to_json(self.index.folder, len(self.index), mode)
        for hit in answer["hits"]:
            photo = listing.get(hit["path"])  # it may have been removed in the meantime
            hit["id"] = None if photo is None else photo.id
            hit["size"] = None if photo is None else photo.size
        return answer

    def explain(
        self, image: Source | Features, photo: Photo, box: Box | None, check: Check
    ) -> dict[str, Any]:
        """What a photo has in common with a query."""
        listing = self.listing
        photo = listing.photos.get(photo.id, photo)
        views, _ = self.index.described(image, box)
        check()
        snapshot = listing.snapshot
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
        from hardnet.retrieval.groups import find_groups

        found = find_groups(self.index, mirrored=mirrored, progress=job.tell)
        listing, answer = self.listing, found.to_json()
        for pair, facts in zip(found.pairs, answer["pairs"], strict=True):
            facts["ids"] = listing.ids(pair.a, pair.b)
            facts["points"] = np.round(pair.points, 2).tolist()
        for facts in answer["groups"]:
            facts["ids"] = listing.ids(*facts["photos"])
        answer["photos"], answer["compared"] = found.photos, found.compared
        answer["removable"], answer["unread"] = found.removable(), found.unread
        self.found_groups = answer
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
        """A folder of :meth:`folders` by its id."""
        found = self.folders().get(id)
        if found is None:
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
        """Undo the last removal."""
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

    def compact(self, job: Job) -> dict[str, Any]:
        """Free the space of removed photos, which then cannot be restored."""
        self.index.compact(job.tell)
        with self._change:
            self._undo.clear()
        return self.info()

    def _changed(self, removed: int) -> dict[str, Any]:
        return {
            "index": str(self.index.folder),
            "removed": removed,
            "images": len(self.index),
            "undo": len(self._undo),
        }
