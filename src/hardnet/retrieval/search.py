"""The stages of a search, in order: score, verify, expand, score again, verify again, rank.

The stages know nothing of files or machines: they ask a :class:`Shard`, which may be all of an
index in this process or many parts on many machines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Literal, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval import compiled
from hardnet.retrieval.expansion import (
    AVERAGED_IMAGES,
    are_reliable,
    average_expansion,
    features_in_region,
    hqe_expansion,
)
from hardnet.retrieval.query import (
    Hit,
    Lookup,
    Query,
    QueryImage,
    Results,
    Scoring,
    Terms,
    best,
    order,
    prepare_terms,
    query_terms,
    region_of,
    score_images,
)
from hardnet.retrieval.store.segment import read_words, unpack_frames
from hardnet.retrieval.verification import (
    NO_LIMIT,
    Part,
    Verification,
    Verified,
    find_correspondences,
    verify_parts,
    word_table,
)
from hardnet.retrieval.vocabulary import BITS
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot

POSTINGS_PER_PIECE = 1_000_000
"""Less work than this, about two milliseconds, is not worth another thread."""
LIST_POSTINGS = 64
"""Finding a list in memory takes as long as reading this many postings."""

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Image numbers (n,) and their scores (n,)."""


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the index knows of one image."""

    image: int  # its number
    words: NDArray[np.int32]  # (n,) int32, ascending
    signatures: NDArray[np.uint64]  # (n, 2) uint64
    frames: Frames  # (n, 2, 3) in pixels of the image, rounded as the index stores them
    size: tuple[int, int]  # (width, height) of the image

    def __len__(self) -> int:
        return len(self.words)

    def as_query(self) -> Query:
        """What the index knows of the image as a query: one word per feature."""
        return Query(
            words=self.words[:, None],
            signatures=self.signatures[:, None],
            frames=self.frames,
            view=np.zeros(len(self), np.int32),
            view_sizes=(self.size,),
            boxes=(None,),
        )


class Shard(Protocol):
    """What a search asks of an index or of a part of it. Images have their numbers in the index."""

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """The ``limit`` best images (None: all), best first, equal scores by image number."""

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        """Spatial verification of each of ``images``, in their order."""

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        """(n, 2) words shared with each image: with a pair within the distance ``h``, and all."""

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        """The features of each of ``images``, in their order."""

    def names(self, images: NDArray[np.int64]) -> list[str]:
        """The name of each of ``images``, in their order."""


class LocalShard:
    """Segments of a snapshot, mapped into this process; any number of threads may ask."""

    def __init__(self, snapshot: Snapshot, positions: Sequence[int] | None = None) -> None:
        """Some segments, by position, of the snapshot; with the statistics of the whole index."""
        self.snapshot, self.statistics = snapshot, snapshot.statistics
        self.positions = tuple(range(len(snapshot.segments)) if positions is None else positions)

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """Images that match nothing score 0 and are in the ranking."""
        for position in self.positions:
            self.snapshot.segments[position].require_whole()
        lookup = prepare_terms(terms, self.statistics.idf, scoring)
        bow = scoring.method == "bow"
        norms = self.statistics.bow_norms if bow else self.statistics.he_norms

        def piece(part: tuple[int, int, int]) -> Ranking:
            position, first, last = part
            segment, alive = self.snapshot.segments[position], self.snapshot.alive[position]
            scores = score_images(lookup, segment, first, last, norms[position], alive)
            kept = best(scores, len(scores) if limit is None else limit)
            return kept + (self.snapshot.bases[position] + first), scores[kept]

        work = self._work(lookup, self.positions)
        compiled.note_work(work)
        threads = None if work > POSTINGS_PER_PIECE else 1
        rankings = map_threads(piece, self._pieces(lookup, work), threads)
        images = np.concatenate([np.zeros(0, np.int64), *(images for images, _ in rankings)])
        scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in rankings)])
        return order(images, scores, limit)

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        found = verify_parts(query, self._by_segment(images), verification)
        return [found[image] for image in images.tolist()]

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        table = word_table(query, len(self.statistics.idf))
        found: dict[int, list[int]] = {}
        for segment, base, local in self._by_segment(images):
            pairs = compiled.faster(find_correspondences)(table, segment, local, BITS, NO_LIMIT)
            owner = np.repeat(np.arange(len(local)), np.diff(pairs.bounds))
            rows = segment.forward_offsets[local].astype(np.int64)[owner] + pairs.places
            words = table.numbers[read_words(segment.forward_words[rows])]
            has = np.zeros((2, len(local), len(table.starts)), bool)
            close = pairs.distances <= h
            has[0, owner[close], words[close]] = True
            has[1, owner, words] = True
            found |= zip((base + local).tolist(), has.sum(axis=2).T.tolist(), strict=True)
        return np.array([found[int(image)] for image in images], np.int64).reshape(-1, 2)

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        found, packed, sizes = [], [np.zeros((0, 3), np.uint16)], []
        for image in images.tolist():
            position, local = self.snapshot.locate(image)
            segment = self.snapshot.segments[position]
            postings, size = segment.postings_of(local), segment.size(local)
            found.append((image, segment.words_of(local), segment.signatures[postings], size))
            packed.append(segment.geometry[postings])
            sizes.append(size)
        # All frames at once: for a single image the calls would take longer than the work.
        counts = [len(rows) for rows in packed]
        each = np.repeat(np.array(sizes, np.int64).reshape(-1, 2), counts[1:], axis=0)
        frames, ends = unpack_frames(np.concatenate(packed), each), np.cumsum(counts)
        return [
            ImageFeatures(image, words, signatures, frames[first:last], size)
            for (image, words, signatures, size), (first, last) in zip(
                found, pairwise(ends.tolist()), strict=True
            )
        ]

    def names(self, images: NDArray[np.int64]) -> list[str]:
        return [self.snapshot.name(int(image)) for image in images]

    def _by_segment(self, images: NDArray[np.int64]) -> list[Part]:
        numbers = np.asarray(images, np.int64)
        bases = np.asarray(self.snapshot.bases, np.int64)
        positions = np.searchsorted(bases, numbers, side="right") - 1
        return [
            (self.snapshot.segments[one], int(bases[one]), numbers[positions == one] - bases[one])
            for one in np.flatnonzero(np.bincount(positions)).tolist()
        ]

    def _work(self, lookup: Lookup, positions: Sequence[int]) -> int:
        """Roughly how long a query takes, in postings, as if all words were equally frequent."""
        features: int = sum(self.snapshot.segments[position].features for position in positions)
        each = features // max(len(self.statistics.idf), 1) + LIST_POSTINGS * len(positions)
        return each * len(lookup.words)

    def _pieces(self, lookup: Lookup, work: int) -> list[tuple[int, int, int]]:
        """Ranges of images (position of the segment, first, last) that share the work.

        The division does not change any score. There are no more pieces than needed: each has to
        find where the lists of all words begin, a tenth of the work on a whole segment.
        """
        share = max(-(-work // max(cv2.getNumThreads(), 1)), POSTINGS_PER_PIECE)
        pieces = []
        for position in self.positions:
            images = self.snapshot.segments[position].images
            count = max(min(-(-self._work(lookup, [position]) // share), images), 1)
            edges = [images * number // count for number in range(count + 1)]
            pieces += [(position, first, last) for first, last in pairwise(edges)]
        return pieces


Expansion = Literal["average", "hqe"]


@dataclass(frozen=True)
class Mode:
    """How to search; the names and values are those of the papers."""

    scoring: Scoring  # with ``expansion``, in the second pass
    verification: Verification | None = None  # the best images are re-ranked by their inliers
    # What the first pass finds extends the query of a second one. "average": the word vectors of
    # images that are verified for sure are averaged with the query's (Chum et al. 2007). "hqe": the
    # signatures of reliable images are joined per word (Tolias and Jegou 2014).
    expansion: Expansion | None = None
    first: Scoring | None = None  # how images are scored in the first pass, where that differs
    shortlist: int = 100  # hqe: how many of the best images may be reliable
    # HQE: words with a correspondence of at most this Hamming distance count for reliability
    h_t_strict: int = 32
    # HQE: an image with this many of them is reliable, if they are more than chance gives; see
    # :func:`are_reliable`. With ``verification``, an image that is verified for sure is reliable
    # instead, and of it only what lies in the region that the query asks for.
    reliable: int = 5
    alpha: float = 0.5  # hqe: new words, as a share of the words of the query
    seed: int = 0  # hqe: of bits that are undecided


_BOW = Scoring(method="bow", ma=1)
_HE = Scoring(method="he")
_HQE_FIRST = Scoring(method="he", idf=False, normalise=False)

MODES: dict[str, Mode] = {
    "bow": Mode(_BOW),
    "bow+sv": Mode(_BOW, Verification()),
    "bow+qe": Mode(_BOW, Verification(), "average"),
    "he": Mode(_HE),
    "he+sv": Mode(_HE, Verification()),
    "hqe": Mode(_HE, None, "hqe", _HQE_FIRST),
    "hqe+sv": Mode(_HE, Verification(), "hqe", _HQE_FIRST),
}
"""By name: bag of words or Hamming embedding (he), spatial verification (sv), query expansion."""

DEFAULT_MODE = "he+sv"
"""What a search uses if it is not told; ``hardnet bench retrieval`` compares them all."""


def mode_named(mode: str | Mode) -> Mode:
    """A mode by its name, or as it is."""
    if isinstance(mode, Mode):
        return mode
    if mode not in MODES:
        raise HardnetError(f"no mode '{mode}': choose {', '.join(MODES)}")
    return MODES[mode]


def search(query: Query, shards: Shard, mode: str | Mode = DEFAULT_MODE, k: int = 10) -> Results:
    """The ``k`` best photos for a query: verified ones first, by their inliers; others by score.

    A few inliers, which may be chance, raise the score; see :func:`rerank`. Photos that have
    nothing in common with the query are no hits.
    """
    flow = _Flow(query, shards, mode_named(mode))
    images, scores = flow.run(k)
    with flow.stage("rank"):
        found = [
            (image, score)
            for image, score in zip(images.tolist(), scores.tolist(), strict=True)
            # The score of a word that every photo has is zero: geometry may know better.
            if score > 0 or flow.transform(image) is not None
        ][:k]
        names = shards.names(np.array([image for image, _ in found], np.int64))
        hits = [flow.hit(name, *one) for name, one in zip(names, found, strict=True)]
    views = [
        QueryImage(size, int(np.sum(query.view == view)), box)
        for view, (size, box) in enumerate(zip(query.view_sizes, query.boxes, strict=True))
    ]
    return Results(hits, flow.seconds, list(getattr(shards, "missing", ())), tuple(views))


def ranking(query: Query, shards: Shard, mode: str | Mode = DEFAULT_MODE) -> NDArray[np.int64]:
    """All images of the index, best first, after all stages of the mode: what benchmarks need."""
    return _Flow(query, shards, mode_named(mode)).run(None)[0]


FREE_INLIERS, CHANCE_INLIERS = 3, 0.03
"""Inliers that prove nothing: those a map is made to fit, and this share of all pairs."""


def rerank(
    images: NDArray[np.int64],
    scores: NDArray[np.float32],
    verified: Sequence[Verified],
    first: Collection[int],
) -> NDArray[np.int64]:
    """The order in which ranked images are shown once some of them are verified.

    (n,) positions in ``images``: those of ``first``, by their numbers, come first, those with more
    inliers before those with fewer, then by score and number. The others follow by their scores,
    which count 1 + k times where k inliers are more than chance gives; equal ones by inliers, then
    in the order they had.
    """
    found = {one.image: one for one in verified if one.transform is not None}
    leading, inliers = np.zeros((2, len(images)), np.int64)
    weights = np.ones(len(images))
    for place, image in enumerate(images.tolist()):
        one = found.get(image)
        if one is not None and image in first:
            leading[place] = one.inliers
        elif one is not None:
            inliers[place] = one.inliers
            chance = FREE_INLIERS + CHANCE_INLIERS * one.tentatives
            weights[place] += max(one.inliers - chance, 0)
    tie = np.where(leading > 0, images, np.arange(len(images)))
    return np.lexsort((tie, -inliers, -weights * scores, -leading))


@dataclass
class _Flow:
    """One search on its way."""

    query: Query
    shards: Shard
    mode: Mode
    seconds: dict[str, float] = field(default_factory=dict)
    verified: dict[int, Verified] = field(default_factory=dict)
    # Images with more inliers than chance gives: one wrong image spoils an expansion.
    sure: set[int] = field(default_factory=set)

    def run(self, k: int | None) -> Ranking:
        """Image numbers and scores, best first; all of them if ``k`` is None."""
        mode = self.mode
        if mode.expansion is None:
            return self._rank(query_terms(self.query, mode.scoring), mode.scoring, k)
        first = mode.first or mode.scoring
        images, _ = self._rank(query_terms(self.query, first), first, mode.shortlist)
        with self.stage("expand"):
            terms = self._expand(images)
        return self._rank(terms, mode.scoring, k, " again")

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note how long a stage takes."""
        start = perf_counter()
        yield
        self.seconds[name] = perf_counter() - start

    def transform(self, image: int) -> NDArray[np.float64] | None:
        """The map from the query to an image that has one."""
        return self.verified[image].transform if image in self.verified else None

    def hit(self, name: str, image: int, score: float) -> Hit:
        transform = self.transform(image)
        if transform is None:
            return Hit(name, image, score)
        view, inliers = self.verified[image].view, self.verified[image].inliers
        region = region_of(self.query.region(view), transform)
        return Hit(name, image, score, inliers, image in self.sure, transform, region, view)

    def _rank(self, terms: Terms, scoring: Scoring, k: int | None, again: str = "") -> Ranking:
        verification = self.mode.verification
        if k is not None and verification is not None:
            k = max(k, verification.shortlist)
        with self.stage(f"score{again}"):
            images, scores = self.shards.score(terms, scoring, k)
        if verification is None:
            return images, scores
        with self.stage(f"verify{again}"):
            self._verify(images[: verification.shortlist], verification)
            # Words alone tell little: any image with a transform is better than one without.
            first = self.sure if self.mode.scoring.method == "he" else self.verified
            order = rerank(images, scores, list(self.verified.values()), first)
        return images[order], scores[order]

    def _verify(self, images: NDArray[np.int64], verification: Verification) -> None:
        start, stop = 0, verification.first
        while start < len(images):
            # Geometry compares the images with the query itself: once is enough.
            new = [image for image in images[start:stop].tolist() if image not in self.verified]
            if new:
                for found in self.shards.verify(self.query, np.array(new, np.int64), verification):
                    self.verified[found.image] = found
                    if verification.is_sure(found):
                        self.sure.add(found.image)
            sure = [image in self.sure for image in images[:stop].tolist()]
            if any(sure) and not any(sure[-verification.patience :]):
                return
            start, stop = stop, 3 * stop  # each part has twice as many as the one before

    def _expand(self, images: NDArray[np.int64]) -> Terms:
        mode, average = self.mode, self.mode.expansion == "average"
        if mode.verification is not None:
            sure = [self.verified[image] for image in images.tolist() if image in self.sure]
            sure = sure[: AVERAGED_IMAGES if average else None]
            found = self.shards.features_of(np.array([one.image for one in sure], np.int64))
            features = [
                features_in_region(self.query, one, image)
                for one, image in zip(sure, found, strict=True)
            ]
        else:
            images = images[: mode.shortlist]
            # Correspondences of the first pass: of the words that it looks up, no others.
            query = self.query.nearest((mode.first or mode.scoring).ma)
            close, shared = self.shards.reliable(query, images, mode.h_t_strict).T
            chosen = images[are_reliable(close, shared, mode.reliable)]
            features = self.shards.features_of(chosen)
        if average:
            return average_expansion(self.query, features)
        return hqe_expansion(self.query, features, mode.alpha, mode.seed, mode.scoring.ma)
