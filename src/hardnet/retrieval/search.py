"""The stages of a search, in order: score, verify, expand, score again, verify again, rank.

The stages know nothing of files or machines: they ask a
:class:`~hardnet.retrieval.shard.Shard`, which may be all of an index in this process or
many parts on many machines.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.expansion import average_expansion, hqe_expansion
from hardnet.retrieval.query import Query, Terms
from hardnet.retrieval.results import Hit, QueryImage, Results, region_of
from hardnet.retrieval.scoring import Scoring, query_terms
from hardnet.retrieval.shard import Shard
from hardnet.retrieval.verification import Verification, Verified, features_in_region, rerank

Expansion = Literal["average", "hqe"]


@dataclass(frozen=True)
class Mode:
    """How to search; the names and values are those of the papers.

    Attributes:
        scoring: how images are scored; with ``expansion``, in the second pass.
        verification: the best images are verified by geometry and re-ranked by their inliers.
        expansion: what the first pass finds extends the query of a second one. "average": the
            word vectors of the images that are verified for sure (``Verification.is_sure``) are
            averaged with the query's (Chum et al. 2007).
            "hqe": the signatures of reliable images are joined per word (Tolias and Jegou 2014).
        first: how images are scored in the first pass, where that differs.
        shortlist: hqe: so many of the best images may be reliable.
        h_t_strict: hqe: correspondences of at most this Hamming distance count for reliability.
        reliable: hqe: an image with so many of them is reliable. With ``verification``, an image
            that is verified for sure is reliable instead, and of it only what lies in the region
            that the query asks for.
        alpha: hqe: new words, as a share of the words of the query.
        seed: hqe: of bits that are undecided.
    """

    scoring: Scoring
    verification: Verification | None = None
    expansion: Expansion | None = None
    first: Scoring | None = None
    shortlist: int = 100
    h_t_strict: int = 32
    reliable: int = 5
    alpha: float = 0.5
    seed: int = 0


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


Ranked = tuple[NDArray[np.int64], NDArray[np.float32]]


def search(query: Query, shards: Shard, mode: str | Mode = DEFAULT_MODE, k: int = 10) -> Results:
    """The ``k`` best photos for a query.

    Args:
        query: words and signatures of the query, for the vocabulary of the index.
        shards: the index.
        mode: which stages run.
        k: at most so many hits; photos that have nothing in common with the query are none.

    Returns:
        The hits, verified ones first, by their inliers; the others by their score.
    """
    flow = _Flow(query, shards, mode_named(mode))
    images, scores = flow.run(k)
    with flow.stage("rank"):
        found = [
            (image, score)
            for image, score in zip(images.tolist(), scores.tolist(), strict=True)
            # The score of a word that every photo has is zero: geometry may know better.
            if score > 0 or flow.is_verified(image)
        ][:k]
        names = shards.names(np.array([image for image, _ in found], np.int64))
        hits = [
            flow.hit(name, image, score) for name, (image, score) in zip(names, found, strict=True)
        ]
    views = [
        QueryImage(size, int(np.sum(query.view == view)), box)
        for view, (size, box) in enumerate(zip(query.view_sizes, query.boxes, strict=True))
    ]
    return Results(hits, flow.seconds, list(getattr(shards, "missing", ())), tuple(views))


def ranking(query: Query, shards: Shard, mode: str | Mode = DEFAULT_MODE) -> NDArray[np.int64]:
    """All images of the index, best first, after all stages of the mode: what benchmarks need."""
    return _Flow(query, shards, mode_named(mode)).run(None)[0]


@dataclass
class _Flow:
    """One search on its way."""

    query: Query
    shards: Shard
    mode: Mode
    seconds: dict[str, float] = field(default_factory=dict)
    verified: dict[int, Verified] = field(default_factory=dict)

    def run(self, k: int | None) -> Ranked:
        """Image numbers and scores, best first; all of them if ``k`` is None."""
        mode = self.mode
        if mode.expansion is None:
            ranked = self._score("score", query_terms(self.query, mode.scoring), mode.scoring, k)
            return self._rerank("verify", ranked)
        first = mode.first or mode.scoring
        ranked = self._score("score", query_terms(self.query, first), first, mode.shortlist)
        terms = self._expand(self._rerank("verify", ranked)[0])
        ranked = self._score("score again", terms, mode.scoring, k)
        return self._rerank("verify again", ranked)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Note how long a stage takes."""
        start = perf_counter()
        yield
        self.seconds[name] = perf_counter() - start

    def is_verified(self, image: int) -> bool:
        """Whether there is a transform from the query to the image."""
        found = self.verified.get(image)
        return found is not None and found.transform is not None

    def is_sure(self, image: int) -> bool:
        """Whether it has more inliers than chance gives: one wrong image spoils an expansion."""
        verification, found = self.mode.verification, self.verified.get(image)
        return verification is not None and found is not None and verification.is_sure(found)

    def hit(self, name: str, image: int, score: float) -> Hit:
        """The hit that an image becomes."""
        if not self.is_verified(image):
            return Hit(name, image, score)
        found = self.verified[image]
        assert found.transform is not None
        view, sure = found.view, self.is_sure(image)
        region = region_of(self.query.boxes[view], self.query.view_sizes[view], found.transform)
        return Hit(name, image, score, found.inliers, sure, found.transform, region, view)

    def _score(self, stage: str, terms: Terms, scoring: Scoring, k: int | None) -> Ranked:
        """The best images; more than ``k`` if more than that are to be verified."""
        verification = self.mode.verification
        if k is not None and verification is not None:
            k = max(k, verification.shortlist)
        with self.stage(stage):
            return self.shards.score(terms, scoring, k)

    def _rerank(self, stage: str, ranked: Ranked) -> Ranked:
        """Verified images first, by their inliers; the others keep their order."""
        verification = self.mode.verification
        if verification is None:
            return ranked
        images, scores = ranked
        with self.stage(stage):
            shortlist = images[: verification.shortlist]
            # Geometry compares the images with the query itself: once is enough.
            new = [image for image in shortlist.tolist() if image not in self.verified]
            for found in self.shards.verify(self.query, np.array(new, np.int64), verification):
                self.verified[found.image] = found
            order = rerank(images, scores, list(self.verified.values()))
        return images[order], scores[order]

    def _expand(self, images: NDArray[np.int64]) -> Terms:
        """The terms of the second pass, from the best images of the first."""
        mode = self.mode
        with self.stage("expand"):
            sure = [self.verified[i] for i in images.tolist() if self.is_sure(i)]
            if mode.expansion == "average":
                return average_expansion(self.query, sure, self.shards.features_of)
            if mode.verification is not None:
                chosen = np.array([one.image for one in sure], np.int64)
                features = [
                    features_in_region(self.query, one, image)
                    for one, image in zip(sure, self.shards.features_of(chosen), strict=True)
                ]
            else:
                images = images[: mode.shortlist]
                # Correspondences of the first pass: of the words that it looks up, no others.
                query = self.query.nearest((mode.first or mode.scoring).ma)
                counts = self.shards.reliable(query, images, mode.h_t_strict)
                features = self.shards.features_of(images[counts >= mode.reliable])
            return hqe_expansion(self.query, features, mode.alpha, mode.seed, mode.scoring.ma)
