"""Similarity of a query to every image: bag of words and Hamming embedding.

Both are sums over the postings of the query's words. An image's sum is made in the order of the
query's terms and nothing else enters it, so a score does not depend on the other images, on how
images are divided among segments, or on the number of threads: not in the last bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.query import MA, BowTerms, Query, Terms, bow_terms, he_terms
from hardnet.retrieval.store.segment import counting, lower_bounds
from hardnet.retrieval.vocabulary import BITS, distances

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Segment
    from hardnet.retrieval.store.snapshot import Alive


@dataclass(frozen=True)
class Scoring:
    """How images are scored; the names are those of the papers.

    ``h_t`` and ``sigma`` are for vocabularies of thousands of words, where few of the features that
    share a word are the same: close signatures count for more than the papers' values make of them.
    """

    # "bow", the cosine of tf-idf vectors; "he", Hamming embedding
    method: Literal["bow", "he"] = "he"
    ma: int = MA  # words per query feature (multiple assignment); images of the index have one
    h_t: int = 56  # signatures further apart than this many of 128 bits do not match
    sigma: float = 24.0  # a match at Hamming distance h weighs exp(-(h / sigma)^2)
    # The matches of one query feature with one image count as their sum over the square root of
    # their number
    burstiness: bool = True
    idf: bool = True  # a match weighs idf^2 of its word: that of the query times that of the image
    # Scores are divided by the length of the image's vector (of both vectors for bow)
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


class Matching(NamedTuple):
    """What a Hamming embedding adds to the words of its terms."""

    signatures: NDArray[np.uint64]  # (T, 2) uint64
    starts: NDArray[np.int64]  # (G + 1,) int64, where the terms of each query feature begin
    decay: NDArray[np.float64]  # (129,) float64, weight of a match by its Hamming distance
    h_t: int  # largest distance of a match
    burstiness: bool  # whether bursts are divided by the square root of their size


class Lookup(NamedTuple):
    """T terms as they are looked up; the same for every segment."""

    words: NDArray[np.int32]  # (T,) int32, all of them in the vocabulary
    weights: NDArray[np.float64]  # (T,) float64, what a posting of each term counts
    scale: float  # what every score is multiplied by
    normalise: bool  # whether scores are divided by the length of the image's vector
    matching: Any = None  # a Matching; None for bag of words


def prepare_terms(terms: Terms, idf: NDArray[np.float32], scoring: Scoring) -> Lookup:
    """Weigh the terms of a query by the idf (K,) of the whole index; unknown words are left out."""
    if isinstance(terms, BowTerms) != (scoring.method == "bow"):
        raise ValueError(f"{type(terms).__name__} cannot be scored by method {scoring.method!r}")
    known: Any = (terms.words >= 0) & (terms.words < len(idf))
    if known.all():
        known = slice(None)
    # Copies: kernels would be compiled again for what came, read-only, from another process.
    words = np.array(terms.words[known], np.int32)
    rarity = idf[words].astype(np.float64) if scoring.idf else np.ones(len(words))
    if isinstance(terms, BowTerms):
        tf = terms.tf[known].astype(np.float64)
        length = float(np.sqrt(np.sum((tf * rarity) ** 2))) if scoring.normalise else 1.0
        scale = 1 / length if length > 0 else 0.0
        return Lookup(words, tf * rarity**2, scale, scoring.normalise)
    begins = np.diff(terms.feature[known], prepend=-1) != 0
    matching = Matching(
        np.array(terms.signatures[known], np.uint64),
        np.append(np.flatnonzero(begins), len(words)),
        np.exp(-((np.arange(BITS + 1) / scoring.sigma) ** 2)),
        scoring.h_t,
        scoring.burstiness,
    )
    return Lookup(words, rarity**2, 1.0, scoring.normalise, matching)


def score_images(
    lookup: Lookup,
    segment: Segment,
    first: int,
    last: int,
    norms: NDArray[np.float32],
    alive: Alive,
) -> NDArray[np.float32]:
    """The scores (last - first,) of the images ``first`` to ``last`` of a segment.

    ``norms`` (I,) are the lengths of the images' vectors, for this method; ``alive`` (I,) which
    images are in the index, None for all. 0 where nothing matches; -inf for images not alive.
    """
    sums = np.zeros(last - first)
    add = add_bow if lookup.matching is None else add_he
    faster(add)(lookup, segment, first, sums)
    sums *= lookup.scale
    if lookup.normalise:
        # An image whose norm is 0 has no word that tells it from others.
        lengths = norms[first:last].astype(np.float64)
        sums = np.divide(sums, lengths, out=np.zeros(len(sums)), where=lengths > 0)
    scores = sums.astype(np.float32)
    if alive is not None:
        scores[~alive[first:last]] = -np.inf
    return scores


# Each pass over the postings covers len(sums) images starting at ``first``, so that threads can
# share a segment; every image's sum is still made in the order of the terms.


def add_bow(lookup: Lookup, segment: Segment, first: int, sums: NDArray[np.float64]) -> None:
    """Add to ``sums`` (n,) the weight of a term for each of its postings."""
    begins, counts = _find_lists(lookup.words, segment, first, first + len(sums))
    for terms in portions(counts, np.arange(len(counts) + 1)):
        owners = segment.image_ids[counting(begins[terms], counts[terms])].astype(np.int64) - first
        here = (owners >= 0) & (owners < len(sums))  # or the segment is damaged
        np.add.at(sums, owners[here], np.repeat(lookup.weights[terms], counts[terms])[here])


def add_he(lookup: Lookup, segment: Segment, first: int, sums: NDArray[np.float64]) -> None:
    """Add to ``sums`` (n,) the matches of each query feature, a burst per image."""
    begins, counts = _find_lists(lookup.words, segment, first, first + len(sums))
    signatures, starts, decay, h_t, burstiness = lookup.matching
    feature = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for terms in portions(counts, starts):
        postings = counting(begins[terms], counts[terms])
        term = np.repeat(np.arange(terms.start, terms.stop), counts[terms])
        h = distances(signatures[term], segment.signatures[postings])
        close = np.flatnonzero(h <= h_t)
        owners = segment.image_ids[postings[close]].astype(np.int64) - first
        here = (owners >= 0) & (owners < len(sums))  # or the segment is damaged
        owners, term, h = owners[here], term[close[here]], h[close[here]]
        # A burst is what one feature has in one image; they are added feature by feature.
        bursts, member = np.unique(feature[term] * len(sums) + owners, return_inverse=True)
        totals: Any = np.bincount(member, lookup.weights[term] * decay[h], len(bursts))
        if burstiness:
            totals = totals / np.sqrt(np.bincount(member, minlength=len(bursts)))
        np.add.at(sums, bursts % len(sums), totals)


def _find_lists(
    words: NDArray[np.int32], segment: Segment, first: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(T,) begin and (T,) length of the postings of each word in the images ``first`` to ``last``.

    Where these begin or end with the images of the segment, no posting is looked at.
    """
    begins = segment.offsets[words].astype(np.int64)
    ends = segment.offsets[words + 1].astype(np.int64)
    if first > 0:
        begins = lower_bounds(segment.image_ids, begins, ends, first)
    if last < len(segment.forward_offsets) - 1:
        ends = lower_bounds(segment.image_ids, begins, ends, last)
    return begins, ends - begins


AT_ONCE = 1 << 18
"""Postings or pairs that are looked at together, or more if a single part has more: tens of MB."""


def portions(counts: NDArray[np.int64], starts: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of ``counts`` (T,), cut at ``starts``, whose sums fit in memory."""
    before = np.append(0, np.cumsum(counts))[starts]
    first = 0
    while first < len(starts) - 1:
        last = max(int(np.searchsorted(before, before[first] + AT_ONCE, "right")) - 1, first + 1)
        yield slice(int(starts[first]), int(starts[last]))
        first = last


def order(
    images: NDArray[np.int64], scores: NDArray[np.float32], limit: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Images (n,) and their scores, best first, equal scores by image number; ``limit`` at most."""
    ranking = np.lexsort((images, -scores))[:limit]
    return images[ranking], scores[ranking]


def best(scores: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """(n,) places of the ``limit`` highest scores, in no order; the first of equals; none is -inf.

    The best scores of parts tell which of all are worth sorting.
    """
    if limit < 1 or not len(scores):
        return np.zeros(0, np.int64)
    part = max(len(scores) // (8 * limit), 1)
    tops = np.maximum.reduceat(scores, np.arange(0, len(scores), part))
    last = max(len(tops) - limit, 0)
    least = np.partition(tops, last)[last]
    places = np.flatnonzero((scores >= least) & (scores > -np.inf))
    return places[np.argsort(-scores[places], kind="stable")[:limit]]
