"""Similarity of a query to every image: bag of words and Hamming embedding.

Both are sums over the postings of the query's words. An image's sum is made in the order of the
query's terms and nothing else enters it, so a score does not depend on the other images, on how
images are divided among segments, or on the number of threads: not in the last bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.kernels import BITS, LINE, compiled, popcount, prefetch
from hardnet.retrieval.query import MA, BowTerms, Query, Terms, bow_terms, he_terms
from hardnet.retrieval.store.segment import lower_bound

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Segment
    from hardnet.retrieval.store.snapshot import Alive


_ALL = np.zeros(0, np.bool_)  # as ``finish`` wants to hear that all images are alive


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


@dataclass(frozen=True, eq=False)
class Lookup:
    """Terms as the kernels take them; the same for every segment."""

    words: NDArray[np.int32]  # (T,) int32, all of them in the vocabulary
    weights: NDArray[np.float64]  # (T,) float64, what a posting of each term counts
    scale: float  # what every score is multiplied by
    normalise: bool  # whether scores are divided by the length of the image's vector
    matching: Matching | None = None  # how signatures match; None for bag of words


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
    words, weights, matching = lookup.words, lookup.weights, lookup.matching
    offsets, image_ids, images = segment.offsets, segment.image_ids, np.int64(segment.images)
    sums = np.zeros(last - first)
    if matching is None:
        add_bow(words, weights, offsets, image_ids, np.int64(first), images, sums)
    else:
        postings = offsets, image_ids, segment.signatures
        add_he(words, weights, *matching, *postings, np.int64(first), images, sums)
    scores = np.empty(last - first, np.float32)
    # Kernels are compiled once per kind of array; those of a snapshot are read-only.
    living, lengths = _ALL if alive is None else alive[first:last], norms[first:last]
    lengths.flags.writeable = living.flags.writeable = False
    finish(sums, lookup.scale, lookup.normalise, lengths, living, scores)
    return scores


# Each pass over the postings covers the images from ``first`` on, as many as ``sums`` is long, so
# that threads can share a segment; an image's sum is made in the order of the terms all the same.

AHEAD = 8
"""The list of the term this much later is asked for: half the time of a large index is waiting."""
AHEAD_LINES = 8
"""Lines of it; the processor continues by itself with a list that is longer."""


@compiled
def find_lists(
    words: Any, offsets: Any, image_ids: Any, first: np.int64, last: np.int64, images: np.int64
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(T,) begin and (T,) end of the postings of each word in the images ``first`` to ``last``.

    Where these begin or end with the ``images`` of the segment, no posting is looked at.
    """
    begins, ends = np.empty(len(words), np.int64), np.empty(len(words), np.int64)
    for term in range(len(words)):
        begins[term], ends[term] = offsets[words[term]], offsets[words[term] + 1]
    if first > 0:
        for term in range(len(words)):
            begins[term] = lower_bound(image_ids, begins[term], ends[term], first)
    if last < images:
        for term in range(len(words)):
            ends[term] = lower_bound(image_ids, begins[term], ends[term], last)
    return begins, ends


@compiled
def ask_for(address: int, begin: np.int64, end: np.int64, width: int) -> None:
    """Start to load the rows ``begin`` to ``end`` of an array, or the first of many."""
    start, stop = address + begin * width, address + end * width
    for line in range(start, min(stop, start + AHEAD_LINES * LINE), LINE):
        prefetch(line)


@compiled
def add_bow(
    words: Any, weights: Any, offsets: Any, image_ids: Any, first: Any, images: Any, sums: Any
) -> None:
    """Add to ``sums`` (n,) the weight (T,) of a term for each of its postings."""
    begins, ends = find_lists(words, offsets, image_ids, first, first + len(sums), images)
    address = image_ids.ctypes.data
    count = np.uint64(len(sums))
    for term in range(len(words)):
        ahead = term + AHEAD
        if ahead < len(words):
            ask_for(address, begins[ahead], ends[ahead], 2)
        weight = weights[term]
        for number in image_ids[begins[term] : ends[term]]:
            # Below 0 becomes huge: one comparison, and nothing beside the sums is written to,
            # whatever a damaged segment says.
            image = np.uint64(np.int64(number) - first)
            if image < count:
                sums[image] += weight


@compiled
def add_he(
    words: Any,
    weights: Any,
    signatures: Any,
    starts: Any,
    decay: Any,
    h_t: int,
    burstiness: bool,
    offsets: Any,
    image_ids: Any,
    posting_signatures: Any,
    first: np.int64,
    images: np.int64,
    sums: Any,
) -> None:
    """Add to ``sums`` (n,) the matches of each query feature, a burst per image.

    The terms of feature g are ``starts[g]`` to ``starts[g + 1]``; a match at distance h weighs
    ``decay[h]`` times the weight of its term.
    """
    begins, ends = find_lists(words, offsets, image_ids, first, first + len(sums), images)
    address, owner_address = posting_signatures.ctypes.data, image_ids.ctypes.data
    burst = np.zeros(len(sums))
    sizes = np.zeros(len(sums), np.int32)
    touched = np.empty(len(sums), np.int32)
    for feature in range(len(starts) - 1):
        count = 0
        for term in range(starts[feature], starts[feature + 1]):
            ahead = term + AHEAD
            if ahead < len(words):
                ask_for(address, begins[ahead], ends[ahead], 16)
                ask_for(owner_address, begins[ahead], ends[ahead], 2)
            low, high, weight = signatures[term, 0], signatures[term, 1], weights[term]
            # Slices: with indices known to be at least 0, this loop is a third faster.
            theirs = posting_signatures[begins[term] : ends[term]]
            owners = image_ids[begins[term] : ends[term]]
            for posting in range(len(theirs)):
                h = popcount(low ^ theirs[posting, 0]) + popcount(high ^ theirs[posting, 1])
                if h <= h_t:
                    image = np.int64(owners[posting]) - first
                    if image < 0 or image >= len(sums):  # the segment is damaged
                        continue
                    if sizes[image] == 0:
                        touched[count] = image
                        count += 1
                    sizes[image] += 1
                    burst[image] += weight * decay[h]
        for place in range(count):
            image = touched[place]
            total = burst[image]
            sums[image] += total / np.sqrt(sizes[image]) if burstiness else total
            burst[image] = 0.0
            sizes[image] = 0


@compiled
def finish(sums: Any, scale: float, normalise: bool, norms: Any, alive: Any, scores: Any) -> None:
    """Fill ``scores`` (n,): scaled sums over norms; -inf for images that are not alive.

    An image whose norm is 0 has no word that tells it from others; it scores 0. ``alive`` is empty
    if all images are.
    """
    for image in range(len(sums)):
        if len(alive) > 0 and not alive[image]:
            scores[image] = -np.inf
        elif not normalise:
            scores[image] = sums[image] * scale
        elif norms[image] > 0:
            scores[image] = sums[image] * scale / np.float64(norms[image])
        else:
            scores[image] = 0.0


def order(
    images: NDArray[np.int64], scores: NDArray[np.float32], limit: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Images (n,) and their scores, best first, equal scores by image number; ``limit`` at most."""
    ranking = np.lexsort((images, -scores))[:limit]
    return images[ranking], scores[ranking]


@compiled
def best(scores: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """(n,) places of the ``limit`` highest scores, in no order; the first of equals; none is -inf.

    A heap whose root is the worst of those kept: of equal scores, the one that came last.
    """
    kept = np.empty(min(limit, len(scores)), np.int64)
    size = 0
    for place in range(len(scores)):
        score = scores[place]
        if score == -np.inf:
            continue
        if size < len(kept):
            child = size
            size += 1
            # Places come ascending: the newcomer is worse than any of equal score.
            while child > 0 and scores[kept[(child - 1) // 2]] >= score:
                kept[child] = kept[(child - 1) // 2]
                child = (child - 1) // 2
            kept[child] = place
        elif size > 0 and score > scores[kept[0]]:
            hole = 0
            while 2 * hole + 1 < size:
                child = 2 * hole + 1
                if child + 1 < size:
                    left, right = kept[child], kept[child + 1]
                    worse = scores[right] < scores[left]
                    worse |= scores[right] == scores[left] and right > left
                    child += worse
                if scores[kept[child]] >= score:
                    break
                kept[hole] = kept[child]
                hole = child
            kept[hole] = place
    return kept[:size]
