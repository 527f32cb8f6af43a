"""Rankings of a collection by every descriptor and mode, with more and more distractors.

They are judged by mean average precision per protocol and by N-S, each with an interval. Average
precision has several definitions. That of Oxford buildings is the area under the precision-recall
curve by trapezoids. The usual one (scikit-learn's, mean of the precision at each positive) gives
other numbers for the same ranking, so the two cannot be compared.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hardnet.bench.development import Setup
from hardnet.bench.metrics import mean_interval
from hardnet.bench.retrieval.collections import Box, PhotoCollection, Question
from hardnet.bench.retrieval.features import (
    BenchPhoto,
    FeatureStore,
    check_names,
    for_words,
)
from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError, MissingExtraError, Progress, Steps, silent, within
from hardnet.features import Features
from hardnet.images import read_image
from hardnet.retrieval import compiled
from hardnet.retrieval.photos import quantise_many
from hardnet.retrieval.query import MA, inside, make_query
from hardnet.retrieval.search import MODES, LocalShard, Mode, mode_named, search
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer
from hardnet.retrieval.vocabulary import Vocabulary

AP_RULE = (
    "area under the precision-recall curve by trapezoids, as the program of Oxford buildings "
    "computes it; images that share nothing with the query are not in its ranking, so not found"
)

Query = tuple[Features, Box | None]
NamedFeatures = Iterable[tuple[str, Features]]

ASSIGNMENT = re.compile(r":(?:sa|ma([1-9]\d*))$")
"""Suffix of a mode: single assignment, or this many words per feature of the query."""


@cache
def parse_mode(name: str) -> Mode:
    """A mode by its name.

    ``hqe:sa`` is ``hqe`` with one word per query feature, ``hqe:ma8`` with eight, in scoring and
    in verification.
    """
    mode = mode_named(ASSIGNMENT.sub("", name))
    found = ASSIGNMENT.search(name)
    if found is None:
        return mode
    ma = int(found[1] or 1)
    return replace(
        mode,
        scoring=replace(mode.scoring, ma=ma),
        first=mode.first and replace(mode.first, ma=ma),
        verification=mode.verification and replace(mode.verification, ma=ma),
    )


class OurIndex:
    """A growing index; every :meth:`add` is a commit, after which ``shard`` is the whole index."""

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        compiled.load()  # there are many queries
        self.folder, self.vocabulary = folder, vocabulary
        self._images = 0

    def add(self, photos: NamedFeatures) -> None:
        new: NewIndex = {"settings": {}, "vocabulary": self.vocabulary}
        with Writer(self.folder, None if self._images else new) as writer:
            writer.add(quantise_many(photos, self.vocabulary))
            writer.commit()
        snapshot = open_snapshot(self.folder)
        self._images = snapshot.images
        self.shard = LocalShard(snapshot)

    def rank(self, features: Features, box: Box | None, mode: str) -> tuple[list[str], float]:
        """Names of all images that have anything in common with the query, best first; seconds.

        The seconds do not include naming the hits, because here all images are hits.
        """
        chosen = parse_mode(mode)
        start = perf_counter()
        query = make_query(features, self.vocabulary, max(MA, chosen.scoring.ma), box)
        words = perf_counter() - start
        found = search(query, self.shard, chosen, self._images)
        taken = sum(seconds for stage, seconds in found.seconds.items() if stage != "rank")
        return [hit.path for hit in found], words + taken


ASMK = "asmk"
PARAMETERS: dict[str, Any] = {
    "index": {"gpu_id": None},
    "train_codebook": {"codebook": {"size": 0}},
    "build_ivf": {
        "kernel": {"binary": True},
        "ivf": {"use_idf": False},
        "quantize": {"multiple_assignment": 1},
        "aggregate": {},
    },
    "query_ivf": {
        "quantize": {"multiple_assignment": 5},
        "aggregate": {},
        "search": {"topk": None},
        "similarity": {"similarity_threshold": 0.0, "alpha": 3.0},
    },
}
"""As its authors publish them: binary signatures of the aggregated residuals, similarity to the
power of 3 above 0, five words per query feature and one per indexed feature, no idf."""


def require_asmk() -> None:
    try:
        import asmk  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("asmk", "peers") from error


class AsmkIndex:
    """A growing asmk index in memory; the codebook is our vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        require_asmk()
        from asmk import asmk_method, codebook, index

        words = np.ascontiguousarray(vocabulary.words, np.float32)
        book = codebook.Codebook(
            index_factory=index.initialize_index(**PARAMETERS["index"]), size=len(words)
        )
        book.index(words)
        self._vocabulary = vocabulary
        self._method = asmk_method.ASMKMethod(PARAMETERS, {}, codebook=book)
        self._builder = self._method.create_ivf_builder()
        self._names: list[str] = []

    def add(self, photos: NamedFeatures) -> None:
        rows, numbers = [np.zeros((0, self._vocabulary.words.shape[1]), np.float32)], []
        for name, features in photos:
            if len(features):
                rows.append(self._vocabulary.prepare(features.descriptors))
                numbers.append(np.full(len(features), len(self._names)))
            self._names.append(name)
        if numbers:
            self._builder.add(np.concatenate(rows), np.concatenate(numbers))

    def rank(
        self, features: Features, box: Box | None, mode: str = ASMK
    ) -> tuple[list[str], float]:
        """Names of all images of a similarity above 0, best first; seconds. It has one mode."""
        keep = slice(None) if box is None else inside(features.frames, box)
        start = perf_counter()
        rows = self._vocabulary.prepare(features.descriptors[keep])
        if not len(rows):
            return [], perf_counter() - start
        _, order, scores = self._method.accumulate_scores(
            self._method.codebook,
            self._builder.kernel,
            self._builder.ivf,
            rows,
            np.zeros(len(rows), np.int64),
            params=PARAMETERS["query_ivf"],
        )
        seconds = perf_counter() - start
        return [self._names[i] for i in order[0][scores[0] > 0].tolist()], seconds

    def bytes(self) -> int:
        ivf = self._builder.ivf
        return sum(
            rows[:count].nbytes + ids[:count].nbytes
            for rows, ids, count in zip(ivf.ivf_vecs, ivf.ivf_image_ids, ivf.counts, strict=True)
            if count
        )


@dataclass(frozen=True)
class RetrievalSettings:
    """How a collection is searched.

    Photos are brought to ``longer_side`` if it is given. ``asmk``: whether that package takes part.
    ``distractors``: how many, for each point of the curve; 0 is always there.
    """

    extraction: Setup
    longer_side: int | None = None
    words: int = 8192
    modes: tuple[str, ...] = tuple(MODES)
    asmk: bool = True
    distractors: tuple[int, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        for mode in self.modes:
            parse_mode(mode)  # a wrong name fails now, not after an hour
        if self.asmk:
            require_asmk()


def compare(
    collection: PhotoCollection,
    descriptors: Mapping[str, Descriptor],
    settings: RetrievalSettings,
    vocabulary_photos: Sequence[BenchPhoto],
    distractors: Sequence[BenchPhoto],
    store: Path | None,
    work: Path,
    progress: Progress = silent,
) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Rank a collection by every descriptor and mode, with words trained on other photographs.

    Returns name -> why, of photos that cannot be read: they are not searched, and a positive among
    them is never found. Then one row per descriptor, mode and number of distractors: what ``judge``
    gives (the scores of single queries without distractors only), ``milliseconds`` per query
    (median, without extraction), ``features`` per query. ``work`` is an empty folder for the
    indexes.
    """
    features = FeatureStore(store, descriptors, settings.extraction)
    examples = FeatureStore(store, descriptors, for_words(settings.extraction))
    photos = {
        name: BenchPhoto(name, collection.file_of(name), longer_side=settings.longer_side)
        for name in [*collection.images, *collection.queries_only]
    }
    counts = sorted({0, *(min(count, len(distractors)) for count in settings.distractors)})
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
        told = partial(within, progress, label)
        words = examples.words(vocabulary_photos, label, settings.words, settings.seed, told)
        queries = [_query(q, photos[q.image], features, label) for q in collection.questions]
        place = work / hashlib.sha256(label.encode()).hexdigest()[:8]
        ours, peer = OurIndex(place, words), AsmkIndex(words) if settings.asmk else None
        modes: list[tuple[str, OurIndex | AsmkIndex]] = [(mode, ours) for mode in settings.modes]
        modes += [(ASMK, peer)] if peer else []
        new = [photos[name] for name in collection.images]
        for count, last in zip(counts, [0, *counts], strict=False):
            new += used[last:count]
            for engine in (ours, peer) if peer else (ours,):
                engine.add(features.read_all(_readable(new, unreadable), label))
            new = []
            for mode, engine in modes:
                what = f"{mode}, {count} distractors"
                scores = _ask(collection, queries, engine, mode, partial(told, what))
                if count:
                    del scores["ap"], scores["ns_each"]
                rows.append({"descriptor": label, "mode": mode, "distractors": count} | scores)
    return unreadable, rows


def _ask(
    collection: PhotoCollection,
    queries: Sequence[Query],
    engine: OurIndex | AsmkIndex,
    mode: str,
    progress: Steps,
) -> dict[str, Any]:
    engine.rank(*queries[0], mode)  # warm-up: compiling and first reads are not timed
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


def _query(question: Question, photo: BenchPhoto, store: FeatureStore, label: str) -> Query:
    features = store.read(photo, label)
    if question.box is None or photo.longer_side is None:
        return features, question.box
    height, width = read_image(photo.path).shape[:2]
    fx, fy = features.image_size[0] / width, features.image_size[1] / height
    x, y, wide, high = question.box
    return features, ((x + 0.5) * fx - 0.5, (y + 0.5) * fy - 0.5, wide * fx, high * fy)


def _readable(photos: Sequence[BenchPhoto], unreadable: Mapping[str, str]) -> list[BenchPhoto]:
    return [photo for photo in photos if photo.name not in unreadable]


DIGITS = 4


def judge(questions: Sequence[Question], rankings: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The scores of rankings, names of images, best first; what is left out is not found.

    ``map`` and ``map_interval`` by protocol, ``ns`` and ``ns_interval`` (None where N-S is not
    defined), ``ap`` by protocol and ``ns_each`` per query; queries without positives are None
    there and do not count in the means. Intervals draw whole groups of queries.
    """
    scores: dict[str, Any] = {"map": {}, "map_interval": {}, "ap": {}}
    groups = np.array([question.group for question in questions])
    for protocol in questions[0].judgements:
        answers = [question.judgements[protocol] for question in questions]
        both = zip(rankings, answers, strict=True)
        ap = np.array([average_precision(ranking, a.positives, a.junk) for ranking, a in both])
        known = ~np.isnan(ap)
        scores["map"][protocol] = float(ap[known].mean()) if known.any() else None
        scores["map_interval"][protocol] = list(mean_interval(ap[known], groups[known]))
        scores["ap"][protocol] = [
            round(value, DIGITS) if good else None
            for value, good in zip(ap.tolist(), known, strict=True)
        ]
    if not all(question.same for question in questions):
        return scores | {"ns": None, "ns_interval": [None, None], "ns_each": None}
    # UKBench: how many of the first four images show the query's object, itself included.
    ns = [len({*r[:4]} & question.same) for r, question in zip(rankings, questions, strict=True)]
    return scores | {
        "ns": float(np.mean(ns)),
        "ns_interval": list(mean_interval(ns, groups)),
        "ns_each": ns,
    }


def average_precision(
    ranking: Iterable[Hashable], positives: Collection[Hashable], junk: Collection[Hashable] = ()
) -> float:
    """The average precision of one query, without junk in its ranking; NaN without positives.

    The area under the precision-recall curve, by trapezoids.
    """
    wanted, ignored = set(positives), set(junk)
    if not wanted:
        return float("nan")
    counted = (image for image in ranking if image not in ignored)
    rank = np.array([place for place, image in enumerate(counted) if image in wanted], np.float64)
    found = np.arange(len(rank))
    # Before the first place of all, precision is 1.
    before = np.where(rank == 0, 1.0, found / np.maximum(rank, 1))
    after = (found + 1) / (rank + 1)
    return float(((before + after) / 2).sum() / len(wanted))
