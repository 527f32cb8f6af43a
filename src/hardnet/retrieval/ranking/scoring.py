"""Similarity of a query to every image: bag of words and Hamming embedding.

Both are sums over the postings of the query's words. An image's sum is made in the order of the
query's terms and nothing else enters it, so a score does not depend on the other images, on how
images are divided among segments, or on the number of threads: not in the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.ranking.query import MA, Query
from hardnet.retrieval.ranking.terms import BowTerms, Terms, bow_terms, he_terms

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Segment
    from hardnet.retrieval.store.statistics import Alive

REMOVED = np.float32(-np.inf)
"""The score of images that are no longer in the index."""


@dataclass(frozen=True)
class Scoring:
    """How images are scored; names and values of the papers.

    Attributes:
        method: "bow", the cosine of tf-idf vectors; "he", Hamming embedding.
        ma: words per query feature (multiple assignment); images of the index have one.
        h_t: signatures further apart than this many of 128 bits do not match.
        sigma: a match at Hamming distance h weighs exp(-(h / sigma)^2).
        burstiness: the matches of one query feature with one image count as their sum over the
            square root of their number.
        idf: a match weighs idf^2 of its word: that of the query times that of the image.
        normalise: scores are divided by the length of the image's vector (of both vectors for bow).
    """

    method: Literal["bow", "he"] = "he"
    ma: int = MA
    h_t: int = 48
    sigma: float = 32.0
    burstiness: bool = True
    idf: bool = True
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.method not in ("bow", "he"):
            raise HardnetError(f"scoring method {self.method!r}: choose bow or he")
        if self.ma < 1:
            raise HardnetError(f"ma is {self.ma}: a feature needs at least 1 word")
        if not self.sigma > 0:
            raise HardnetError(f"sigma is {self.sigma}: give a number above 0")
        if self.normalise and not self.idf:
            raise HardnetError("normalise=True needs idf=True: the lengths are of idf vectors")


def query_terms(query: Query, scoring: Scoring) -> Terms:
    """The terms of a query for a way of scoring."""
    make = bow_terms if scoring.method == "bow" else he_terms
    return make(query, scoring.ma)


@dataclass(frozen=True, eq=False)
class Matching:
    """What a Hamming embedding adds to the words of its terms.

    Attributes:
        signatures: (T, 2) uint64.
        starts: (G + 1,) int64, where the terms of each query feature begin.
        decay: (129,) float64, weight of a match by its Hamming distance.
        h_t: largest distance of a match.
        burstiness: whether bursts are divided by the square root of their size.
    """

    signatures: NDArray[np.uint64]
    starts: NDArray[np.int64]
    decay: NDArray[np.float64]
    h_t: int
    burstiness: bool


@dataclass(frozen=True, eq=False)
class Lookup:
    """Terms as the kernels take them; the same for every segment.

    Attributes:
        words: (T,) int32, all of them in the vocabulary.
        weights: (T,) float64, what a posting of each term counts.
        scale: what every score is multiplied by.
        normalise: whether scores are divided by the length of the image's vector.
        matching: how signatures match; None for bag of words.
    """

    words: NDArray[np.int32]
    weights: NDArray[np.float64]
    scale: float
    normalise: bool
    matching: Matching | None = None


def prepare_terms(terms: Terms, idf: NDArray[np.float32], scoring: Scoring) -> Lookup:
    """Weigh the terms of a query; words that the vocabulary does not have are left out.

    Args:
        terms: of the query.
        idf: (K,) of the whole index.
        scoring: how; its method must be that of the terms.
    """
    from hardnet.retrieval.words.hamming import BITS

    if isinstance(terms, BowTerms) != (scoring.method == "bow"):
        raise ValueError(f"{type(terms).__name__} cannot be scored by method {scoring.method!r}")
    known = (terms.words >= 0) & (terms.words < len(idf))
    words = np.ascontiguousarray(terms.words[known], np.int32)
    rarity = idf[words].astype(np.float64) if scoring.idf else np.ones(len(words))
    if isinstance(terms, BowTerms):
        tf = terms.tf[known].astype(np.float64)
        length = float(np.sqrt(np.sum((tf * rarity) ** 2))) if scoring.normalise else 1.0
        scale = 1 / length if length > 0 else 0.0
        return Lookup(words, tf * rarity**2, scale, scoring.normalise)
    begins = np.diff(terms.feature[known], prepend=-1) != 0
    matching = Matching(
        np.ascontiguousarray(terms.signatures[known], np.uint64),
        np.append(np.flatnonzero(begins), len(words)),
        np.exp(-((np.arange(BITS + 1) / scoring.sigma) ** 2)),
        scoring.h_t,
        scoring.burstiness,
    )
    return Lookup(words, rarity**2, 1.0, scoring.normalise, matching)


def score_segment(
    terms: Terms,
    segment: Segment,
    idf: NDArray[np.float32],
    norms: NDArray[np.float32],
    alive: Alive,
    scoring: Scoring,
) -> NDArray[np.float32]:
    """The score of every image of a segment.

    Args:
        terms: of the query.
        segment: the postings.
        idf: (K,) of the whole index.
        norms: (I,) lengths of the images' vectors, for this method.
        alive: (I,) which images are in the index; None for all.
        scoring: how.

    Returns:
        (I,) float32, 0 where nothing matches; :data:`REMOVED` for images that are not alive.
    """
    lookup = prepare_terms(terms, idf, scoring)
    return score_images(lookup, segment, 0, segment.images, norms, alive)


def score_images(
    lookup: Lookup,
    segment: Segment,
    first: int,
    last: int,
    norms: NDArray[np.float32],
    alive: Alive,
) -> NDArray[np.float32]:
    """(last - first,) scores of the images ``first`` to ``last`` of a segment."""
    from hardnet.retrieval.compiled import readonly
    from hardnet.retrieval.ranking import scoring_kernels as kernels

    words, weights, matching = lookup.words, lookup.weights, lookup.matching
    offsets, image_ids = readonly(segment.offsets), readonly(segment.image_ids)
    images = np.int64(segment.images)
    sums = np.zeros(last - first)
    if matching is None:
        kernels.add_bow(words, weights, offsets, image_ids, np.int64(first), images, sums)
    else:
        kernels.add_he(
            words,
            weights,
            matching.signatures,
            matching.starts,
            matching.decay,
            matching.h_t,
            matching.burstiness,
            offsets,
            image_ids,
            readonly(segment.signatures),
            np.int64(first),
            images,
            sums,
        )
    scores = np.empty(last - first, np.float32)
    living = np.zeros(0, np.bool_) if alive is None else alive[first:last]
    kernels.finish(
        sums, lookup.scale, lookup.normalise, readonly(norms[first:last]), readonly(living), scores
    )
    return scores
