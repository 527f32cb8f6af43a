"""A searchable collection of photos on disk."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet.detectors import spread_over
from hardnet.errors import HardnetError, Progress, silent
from hardnet.features import Features, extract, find, prepare
from hardnet.features import describe as describe_found
from hardnet.frames import centres
from hardnet.image_files import as_path
from hardnet.images import Source, as_array, read_image
from hardnet.retrieval import search as searching
from hardnet.retrieval import vocabulary as vocabularies
from hardnet.retrieval.photos import (
    DESCRIPTOR,
    KEYPOINTS,
    MAX_SIZE,
    IndexSettings,
    check_begun,
    compare,
    name_of,
    named_photos,
    path_of,
    stored_settings,
    weights_of,
)
from hardnet.retrieval.query import Box, Query, Results, inside, make_query, view_boxes
from hardnet.retrieval.search import DEFAULT_MODE, LocalShard, Mode, Shard, mode_named
from hardnet.retrieval.store.snapshot import Report, open_snapshot, verify
from hardnet.retrieval.vocabulary import Vocabulary

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor
    from hardnet.detectors import Detector
    from hardnet.retrieval.build import BuildReport
    from hardnet.retrieval.store.writer import Writer


Photos = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""Image files, and folders that are searched recursively."""

QueryPhoto = Source | Features
Views = QueryPhoto | Sequence[QueryPhoto]
Boxes = Box | Sequence[Box | None] | None


class Index:
    """A searchable collection of photos in a folder.

    It shows the photos that were committed when it was opened, or at the last :meth:`refresh`. Any
    number of threads and processes may search while one changes it.

    >>> index = hardnet.Index.build("photos.index", "photos")  # doctest: +SKIP
    >>> for hit in index.search("query.jpg", box=(100, 80, 300, 200)):  # doctest: +SKIP
    ...     print(hit.path, hit.inliers)
    """

    def __init__(self, folder: str | os.PathLike[str], *, descriptor: str | None = None) -> None:
        """Open the index in a folder.

        The descriptor it was made with is needed only if that was a function of yours
        (``module:function``): an index, which may come from anybody, cannot name code to run.
        """
        self.folder = as_path(folder)
        self._descriptor = descriptor
        check_begun(self.folder)
        self.snapshot = open_snapshot(self.folder)  # what this object shows of the folder
        self._lock = Lock()
        self._loaded: tuple[Detector, Descriptor] | None = None

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        images: Photos,
        *,
        vocabulary: Vocabulary | str | os.PathLike[str] | None = None,
        words: int | None = None,
        detector: str = "dog",
        descriptor: str = DESCRIPTOR,
        keypoints: int = KEYPOINTS,
        max_size: int | None = MAX_SIZE,
        upright: bool = False,
        spread: bool = True,
        hidden: bool = False,
        workers: int | None = None,
        progress: Progress = silent,
    ) -> Index:
        """Make an index of photos, or continue one that was begun with the same settings.

        ``images`` are photos, and folders of photos. Those that cannot be read are skipped;
        :meth:`add`, which does the same for an index that exists, says which. With ``hidden``,
        photos in hidden folders and thumbnails that other programs made are taken too.

        ``vocabulary`` are visual words or their file; by default, ``words`` of them are trained on
        the photos, or a number that suits the collection. How photos are described is as for
        :func:`hardnet.extract`, with up to ``workers`` threads, by default one per usable core;
        the descriptor "hardnet-int8" is quicker. ``progress`` is called with what is done, how
        many are done, how many there are.
        """
        from hardnet.retrieval import build as building  # who only searches does not wait for it

        folder = as_path(folder)
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = vocabularies.load(as_path(vocabulary))
        form = building.form_for(folder, descriptor, vocabulary)
        settings = IndexSettings(detector, form, keypoints, max_size, upright, spread)
        building.build(
            folder,
            named_photos(_paths(images), folder, hidden=hidden),
            settings,
            vocabulary=vocabulary,
            words=words,
            workers=workers,
            progress=progress,
        )
        return cls(folder, descriptor=settings.descriptor)

    @cached_property
    def settings(self) -> IndexSettings:
        """How its photos, and every query, are described.

        Raises:
            HardnetError: only a person may name this descriptor, and none has.
        """
        return stored_settings(self.snapshot.settings, self.folder, self._descriptor)

    def __len__(self) -> int:
        return self.snapshot.images

    def search(
        self,
        image: Views,
        k: int = 10,
        box: Boxes = None,
        mode: str | Mode = DEFAULT_MODE,
        *,
        shards: Shard | None = None,
    ) -> Results:
        """Find the photos that show the same object or place.

        Args:
            image: path, array or features of the query; a list of them is several views of one
                object.
            k: at most this many hits.
            box: x, y, width, height of the region to look for, in pixels; one per view.
            mode: which stages run; see ``hardnet.retrieval.search.MODES``.
            shards: who answers; by default the files of this folder.

        Returns:
            The hits, best first; ``.path`` is absolute. None for a query without features.
        """
        if k < 1:
            raise HardnetError(f"k is {k}: ask for at least 1 hit")
        mode = mode_named(mode)  # a wrong one is refused before the query is described
        snapshot = self.snapshot  # one for all stages, whatever refresh does meanwhile
        vocabulary = snapshot.vocabulary
        with ThreadPoolExecutor(1) as pool:  # words are made ready while OpenCV describes
            warming = pool.submit(_make_ready, vocabulary)
            views, extraction = self.described(image, box)
        seconds = {"load": warming.result()}
        seconds |= {s: seconds.get(s, 0.0) + time for s, time in extraction.items()}
        start = perf_counter()
        query = self.query(views, box, vocabulary)
        seconds["words"] = perf_counter() - start
        results = searching.search(query, shards or LocalShard(snapshot), mode, k)
        hits = [replace(hit, path=path_of(hit.path, self.folder)) for hit in results.hits]
        shown = tuple(
            replace(one, path=view.path, pixels=view.pixels)
            for one, view in zip(results.query, views, strict=True)
        )
        return Results(hits, seconds | results.seconds, results.missing, shown)

    def query(self, views: Sequence[Features], box: Boxes, vocabulary: Vocabulary) -> Query:
        """Features of one or several views as a query to this index."""
        query = make_query(views, vocabulary, box=box)
        for region, view in zip(query.boxes, views, strict=True):
            if region is not None:
                _check_inside(region, view.image_size)
        return query

    def described(self, image: Views, box: Boxes = None) -> tuple[list[Features], dict[str, float]]:
        """Features of the views of a query, and the seconds that each stage took."""
        views: list[Features] = []
        seconds: dict[str, float] = {}
        images: list[Any] = list(image) if isinstance(image, list | tuple) else [image]
        for one, region in zip(images, view_boxes(box, len(images)), strict=True):
            if not isinstance(one, Features):
                one = self.extract(one, region)
                for stage, time in one.seconds.items():
                    seconds[stage] = seconds.get(stage, 0.0) + time
            views.append(one)
        return views, seconds

    def extract(self, image: Source, box: Box | None = None) -> Features:
        """Features of an image, as those of the index were made.

        A box (x, y, width, height) is the only region to look at. It has as many keypoints, of
        the same size of photo, as if it had been cut out; frames at its border see beyond it.
        """
        start = perf_counter()
        loaded, settings = self._load(), self.settings
        seconds = {"load": perf_counter() - start}
        if box is None:
            limits = settings.keypoints, settings.max_size
            found = extract(image, *loaded, *limits, upright=settings.upright)
        else:
            found = _extract_box(image, box, settings, *loaded)
        return replace(found, seconds=found.seconds | seconds)

    @property
    def describer(self) -> Descriptor:
        """What describes the patches of photos; loaded when first asked for."""
        return self._load()[1]

    def _load(self) -> tuple[Detector, Descriptor]:
        with self._lock:
            if self._loaded is None:
                detect, describe = self.settings.load()
                now = self.settings.to_json() | weights_of(self.settings, describe)
                compare(self.snapshot.settings, now, self.folder)
                self._loaded = detect, describe
            return self._loaded

    def add(
        self,
        images: Photos,
        *,
        hidden: bool = False,
        workers: int | None = None,
        progress: Progress = silent,
    ) -> BuildReport:
        """Add photos; those that changed are replaced, those that did not are passed over.

        See :meth:`build` for the options.
        """
        from hardnet.retrieval import build as building

        photos = named_photos(_paths(images), self.folder, hidden=hidden)
        now = open_snapshot(self.folder).settings
        settings = stored_settings(now, self.folder, self._descriptor)
        report = building.build(self.folder, photos, settings, workers=workers, progress=progress)
        self.refresh()
        return report

    def remove(self, images: Photos) -> int:
        """Remove photos, and all photos of folders; returns how many. The files stay."""
        self.refresh()
        names: set[str] = set()
        for photo in _paths(images):
            name = name_of(photo, self.folder)
            found = [n for n in (name, str(photo)) if self.snapshot.find(n) is not None][:1]
            found = found or [n for n in self.snapshot.names() if n.startswith(f"{name}/")]
            if not found:
                raise HardnetError(f"{photo} is not in the index {self.folder}: check the path")
            names.update(found)
        return self._remove(names)

    def remove_gone(self) -> int:
        """Remove photos whose files are gone; returns how many. Refused if all of them are."""
        self.refresh()
        names = self.snapshot.names()
        gone = {name for name in names if not os.path.exists(path_of(name, self.folder))}
        if gone and len(gone) == len(names):
            raise HardnetError(
                f"every photo of {self.folder} is gone ({len(gone)}): is their disk there, and is "
                "the index where it was? If so, name their folder to remove them"
            )
        return self._remove(gone)

    def _remove(self, names: set[str]) -> int:
        with self._changing() as writer:
            missing = writer.remove(sorted(names))
        return len(names) - len(missing)

    def removed(self) -> list[str]:
        """Photos that were removed and can be restored at once: until :meth:`compact`."""
        return [path_of(name, self.folder) for name in self.snapshot.removed_names()]

    def restore(self, images: Photos) -> int:
        """Undo the removal of photos; returns how many are in the index again.

        Raises:
            HardnetError: one was never removed, or a compaction has freed its space: the index
                cannot tell which. Nothing is restored then.
        """
        paths = {name_of(path, self.folder): path for path in _paths(images)}
        self.refresh()
        before = len(self)
        with self._changing() as writer:
            if missing := writer.restore(paths):
                raise HardnetError(
                    f"{paths[missing[0]]} was not removed from this index, or its space has been "
                    "freed since: `hardnet index add` adds it"
                )
        return len(self) - before

    def compact(self, progress: Progress = silent) -> None:
        """Merge small segments and free the space of removed photos."""
        with self._changing() as writer:
            writer.compact(waste=0.0, progress=progress)

    @contextmanager
    def _changing(self) -> Iterator[Writer]:
        from hardnet.retrieval.store.writer import Writer

        with Writer(self.folder) as writer:
            yield writer
            writer.commit()
        self.refresh()

    def refresh(self) -> bool:
        """Switch to the newest commit; returns whether there was one."""
        snapshot = open_snapshot(self.folder)
        if snapshot.generation == self.snapshot.generation:
            return False
        self.snapshot = snapshot
        return True

    def paths(self) -> list[str]:
        """The photos, sorted."""
        return sorted(path_of(name, self.folder) for name in self.snapshot.names())

    def features(self) -> dict[str, int]:
        """How many features each photo has, by path, sorted; a photo without any is never found."""
        counts = self.snapshot.feature_counts()
        return {path_of(name, self.folder): counts[name] for name in sorted(counts)}

    def info(self) -> dict[str, Any]:
        """Numbers and settings, as JSON values.

        ``bytes`` are those of the segments and the statistics; the vocabulary is counted by itself,
        as it does not grow with the photos.
        """
        snapshot = self.snapshot
        vocabulary, manifest = snapshot.vocabulary, snapshot.manifest
        size = manifest.state.bytes + sum(part.facts.file.bytes for part in manifest.segments)
        return {
            "folder": str(snapshot.folder),
            "images": snapshot.images,
            "features": snapshot.features,
            "removed": manifest.removed,
            "segments": len(snapshot.segments),
            "generation": snapshot.generation,
            "bytes": size,
            "bytes_per_feature": round(size / snapshot.features, 2) if snapshot.features else None,
            "words": len(vocabulary),
            "vocabulary": {
                "digest": vocabulary.digest,
                "descriptor": vocabulary.descriptor,
                "bytes": manifest.vocabulary.file.bytes,
                "provenance": vocabulary.provenance,
            },
            "settings": dict(snapshot.settings),
        }

    def verify(self) -> Report:
        """Read every file and compare its checksum."""
        return verify(self.folder)


def _make_ready(vocabulary: Vocabulary) -> float:
    """Do what the first query would wait for; returns the seconds it took."""
    start = perf_counter()
    row = np.ones((1, vocabulary.words.shape[1]), np.float32)
    vocabulary.signatures(row, vocabulary.assign(row))
    return perf_counter() - start


BOX_MARGIN, BOX_PIXELS = 0.25, 32
"""Margin around a box: this share of its longer side, and at least this many pixels."""
_ALL = 1 << 20  # keypoints


def _extract_box(
    image: Source, box: Box, settings: IndexSettings, detect: Detector, describe: Descriptor
) -> Features:
    pixels = read_image(image)
    size = pixels.shape[1], pixels.shape[0]
    _check_inside(box, size)
    margin = max(BOX_MARGIN * max(box[2:]), BOX_PIXELS)
    corner = [max(math.floor(box[a] - margin), 0) for a in range(2)]
    opposite = [min(math.ceil(box[a] + box[a + 2] + margin) + 1, size[a]) for a in range(2)]
    crop = np.ascontiguousarray(pixels[corner[1] : opposite[1], corner[0] : opposite[0]])
    # The box is shrunk as if it were all that there is; the margin comes in addition.
    larger = max(*crop.shape[:2], max(box[2:])) / max(box[2:])
    most = None if settings.max_size is None else math.ceil(settings.max_size * larger)
    # All keypoints, however strong those of the margin are: the budget is for the box.
    found = find(prepare(crop, most), detect, _ALL, settings.upright)
    frames = found.frames.copy()
    frames[:, :, 2] += np.array(corner, np.float32)
    kept = np.flatnonzero(inside(frames, box))
    if settings.spread:
        places = centres(frames[kept]) - np.array(box[:2])
        kept = kept[spread_over(places, found.scores[kept], box[2:], settings.keypoints)]
    kept = kept[np.argsort(-found.scores[kept], kind="stable")[: settings.keypoints]]
    parts = ("frames", "shrunk", "scores")
    chosen = replace(found, **{part: getattr(found, part)[kept] for part in parts})
    is_array = as_array(image) is not None
    return replace(
        describe_found(chosen, describe),
        frames=frames[kept],
        image_size=size,
        path=None if is_array else os.fspath(image),  # type: ignore[arg-type]
        pixels=pixels if is_array else None,
    )


def _check_inside(box: Box, size: tuple[int, int]) -> None:
    x, y, width, height = box
    if x >= size[0] or y >= size[1] or x + width <= 0 or y + height <= 0:
        raise HardnetError(
            f"the box {x:g},{y:g},{width:g},{height:g} lies outside the query, which is "
            f"{size[0]}x{size[1]} pixels"
        )


def _paths(images: Photos) -> list[Path]:
    if isinstance(images, str | os.PathLike):
        return [as_path(images)]
    return [as_path(image) for image in images]
