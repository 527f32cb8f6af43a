"""Rankings of a collection by every descriptor and mode, with more and more distractors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.bench.retrieval.collections import Box, PhotoCollection, Question
from hardnet.bench.retrieval.engines import (
    ASMK,
    AsmkIndex,
    OwnIndex,
    Photos,
    parse_mode,
    require_asmk,
)
from hardnet.bench.retrieval.features import (
    Extraction,
    FeatureStore,
    Progress,
    for_words,
    trained_words,
)
from hardnet.bench.retrieval.judging import judge
from hardnet.bench.retrieval.photos import Photo, check_names
from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.images import read_image
from hardnet.retrieval.vocabulary import Vocabulary

MODES = ("bow", "bow+sv", "bow+qe", "he", "he+sv", "hqe", "hqe+sv")

AP_RULE = (
    "area under the precision-recall curve by trapezoids, as the program of Oxford buildings "
    "computes it; images that share nothing with the query are not in its ranking, so not found"
)

_Query = tuple[Features, Box | None]


@dataclass(frozen=True)
class Settings:
    """How a collection is searched.

    Attributes:
        extraction: how keypoints are found; more of them in the photos of the vocabulary, see
            :func:`~hardnet.bench.retrieval.features.for_words`.
        longer_side: every photo of the collection is brought to this size; None: as it is.
        words: of the vocabulary.
        modes: of our search, see :func:`~hardnet.bench.retrieval.engines.parse_mode`.
        asmk: whether the ``asmk`` package takes part.
        distractors: how many, for each point of the curve; 0 is always there.
        seed: of the vocabulary.
    """

    extraction: Extraction = field(default_factory=Extraction)
    longer_side: int | None = None
    words: int = 8192
    modes: tuple[str, ...] = MODES
    asmk: bool = True
    distractors: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for mode in self.modes:
            parse_mode(mode)  # a wrong name shows now, not after an hour
        if self.asmk:
            require_asmk()

    def counts(self, available: int) -> list[int]:
        """The points of the curve, ascending, at most as many distractors as there are."""
        return sorted({0, *(min(count, available) for count in self.distractors)})


def compare(
    collection: PhotoCollection,
    descriptors: Mapping[str, Descriptor],
    settings: Settings,
    vocabulary_photos: Sequence[Photo],
    distractors: Sequence[Photo],
    store: Path | None,
    work: Path,
    progress: Progress = lambda what, done, total: None,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rank a collection by every descriptor and mode.

    Args:
        collection: photos and questions.
        descriptors: label -> descriptor.
        settings: how.
        vocabulary_photos: other photographs, to train the words on.
        distractors: photographs that no query should find, in the order in which they come.
        store: folder of the cache of features and words; the user's by default.
        work: an empty folder for the indexes.
        progress: called with (what, done, total).

    Returns:
        Name -> why, of photos that cannot be read: they are not searched, and a positive among
        them is never found. Then one row per descriptor, mode and number of distractors: what
        ``judge`` gives (the scores of single queries without distractors only), ``milliseconds``
        per query (median, without extraction), ``features`` per query.
    """
    features = FeatureStore(store, descriptors, settings.extraction)
    examples = FeatureStore(store, descriptors, for_words(settings.extraction))
    photos = {
        name: Photo(name, collection.file_of(name), longer_side=settings.longer_side)
        for name in [*collection.images, *collection.queries_only]
    }
    counts = settings.counts(len(distractors))
    used = list(distractors[: counts[-1]])
    check_names([*photos.values(), *used])
    unreadable = features.fill([*photos.values(), *used], progress)
    unreadable |= examples.fill(vocabulary_photos, progress)
    for question in collection.questions:
        if question.image in unreadable:
            raise HardnetError(unreadable[question.image])
    vocabulary_photos = _readable(vocabulary_photos, unreadable)
    rows = []
    for label in descriptors:
        told = partial(_within, progress, label)
        words = trained_words(
            store,
            examples,
            vocabulary_photos,
            label,
            settings.words,
            settings.seed,
            told,
        )
        queries = [
            _query(question, photos[question.image], features, label)
            for question in collection.questions
        ]
        engines = _engines(words, settings, work / hashlib.sha256(label.encode()).hexdigest()[:8])
        new = [photos[name] for name in collection.images]
        for count, last in zip(counts, [0, *counts], strict=False):
            new += used[last:count]
            for engine in engines:
                engine.add(features.read_all(_readable(new, unreadable), label))
            new = []
            for engine in engines:
                for mode in engine.modes:
                    what = f"{mode}, {count} distractors"
                    scores = _ask(collection, queries, engine, mode, partial(told, what))
                    row = {"descriptor": label, "mode": mode, "distractors": count}
                    rows.append(row | (_without_queries(scores) if count else scores))
    return unreadable, rows


@dataclass(frozen=True)
class _Engine:
    """Something that can be searched.

    Attributes:
        modes: its ways to search.
        add: index photos.
        rank: features, box, mode -> names, best first, and the seconds it took.
    """

    modes: tuple[str, ...]
    add: Callable[[Photos], None]
    rank: Callable[[Features, Box | None, str], tuple[list[str], float]]


def _engines(words: Vocabulary, settings: Settings, folder: Path) -> list[_Engine]:
    own = OwnIndex(folder, words)
    engines = [_Engine(settings.modes, own.add, own.rank)]
    if settings.asmk:
        peer = AsmkIndex(words)
        engines.append(_Engine((ASMK,), peer.add, peer.rank))
    return engines


def _ask(
    collection: PhotoCollection,
    queries: Sequence[_Query],
    engine: _Engine,
    mode: str,
    progress: Callable[[int, int], None],
) -> dict[str, Any]:
    """Ask every question, and judge the answers."""
    engine.rank(*queries[0], mode)  # what is compiled or read for the first time is not timed
    rankings, seconds = [], []
    for done, query in enumerate(queries):
        progress(done, len(queries))
        names, taken = engine.rank(*query, mode)
        rankings.append(names)
        seconds.append(taken)
    return judge(collection.questions, rankings) | {
        "milliseconds": 1000 * float(np.median(seconds)),
        "features": float(np.mean([len(features) for features, _ in queries])),
    }


def _query(question: Question, photo: Photo, store: FeatureStore, label: str) -> _Query:
    """The features of a question and its box, in pixels of the photo as it was described."""
    features = store.read(photo, label)
    if question.box is None or photo.longer_side is None:
        return features, question.box
    height, width = read_image(photo.path).shape[:2]
    fx, fy = features.image_size[0] / width, features.image_size[1] / height
    x, y, wide, high = question.box
    return features, ((x + 0.5) * fx - 0.5, (y + 0.5) * fy - 0.5, wide * fx, high * fy)


def _readable(photos: Sequence[Photo], unreadable: Mapping[str, str]) -> list[Photo]:
    return [photo for photo in photos if photo.name not in unreadable]


def _without_queries(scores: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in scores.items() if name not in ("ap", "ns_each")}


def _within(progress: Progress, where: str, what: str, done: int, total: int) -> None:
    progress(f"{where}: {what}", done, total)
