"""Correspondences: pairs of a query feature and a feature of an image that may be the same.

They share a word, and their signatures are close. Every feature of an image has one word, so that
a pair occurs once, however many words a query feature has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.kernels import BITS, compiled, hamming, popcount
from hardnet.retrieval.query import Query, he_terms
from hardnet.retrieval.store.segment import Segment, lower_bound, read_word


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Those of one query with several images, one image after the other.

    Attributes:
        totals: (n,) int64, how many each image has, also beyond the limit.
        bounds: (n + 1,) int64, where those of each image begin.
        features: (m,) int64, query features, ascending within an image.
        postings: (m,) int64, ascending within a query feature.
        places: (m,) int64, the place of the posting in the image's own list.
        distances: (m,) int64, Hamming distances.
    """

    totals: NDArray[np.int64]
    bounds: NDArray[np.int64]
    features: NDArray[np.int64]
    postings: NDArray[np.int64]
    places: NDArray[np.int64]
    distances: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WordTable:
    """The terms of a query, by word; see :func:`word_table`.

    Attributes:
        present: (K // 64 + 1,) uint64, a bit for each word of the vocabulary, set for U of them.
        before: (K // 64 + 1,) int64, how many bits are set before each 64.
        starts: (U + 1,) int64, where the terms of each of these words begin.
        features: (T,) int32 and signatures: (T, 2) uint64, of those terms.
        query_features: how many features the query has.
    """

    present: NDArray[np.uint64]
    before: NDArray[np.int64]
    starts: NDArray[np.int64]
    features: NDArray[np.int32]
    signatures: NDArray[np.uint64]
    query_features: int


def word_table(query: Query, vocabulary_size: int, ma: int | None = None) -> WordTable:
    """The terms of a query, ordered by word, then by feature; unknown words are left out."""
    terms = he_terms(query, ma)
    known = np.flatnonzero((terms.words >= 0) & (terms.words < vocabulary_size))
    order = known[np.argsort(terms.words[known], kind="stable")]
    words, starts = np.unique(terms.words[order], return_index=True)
    bits = np.zeros((vocabulary_size // 64 + 1) * 64, np.bool_)
    bits[words] = True
    counts = np.bincount(words >> 6, minlength=vocabulary_size // 64 + 1)
    return WordTable(
        present=np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64, copy=False),
        before=(np.cumsum(counts) - counts).astype(np.int64),
        starts=np.append(starts, len(order)).astype(np.int64),
        features=terms.feature[order].astype(np.int32),
        signatures=np.ascontiguousarray(terms.signatures[order], np.uint64),
        query_features=len(query.words),
    )


def find_correspondences(
    table: WordTable,
    segment: Segment,
    images: NDArray[np.int64],
    h_t: int,
    limit: int = 1 << 62,
) -> Correspondences:
    """Correspondences of a query with some images of a segment, on the caller's thread.

    Args:
        table: the query.
        segment: where the images are.
        images: (n,) numbers of the images in the segment.
        h_t: the largest Hamming distance; 128 if the word is enough.
        limit: an image keeps at most this many, those of the smallest distance; at equal
            distance the lower word, query feature and posting come first.
    """
    totals, bounds, found = gather(
        np.ascontiguousarray(images, np.int64),
        segment.offsets,
        segment.image_ids,
        segment.signatures,
        segment.forward_offsets,
        segment.forward_words,
        table.present,
        table.before,
        table.starts,
        table.features,
        table.signatures,
        table.query_features,
        h_t,
        limit,
    )
    return Correspondences(totals, bounds, *np.ascontiguousarray(found.T))


@compiled
def gather(
    images: Any,
    offsets: Any,
    image_ids: Any,
    signatures: Any,
    forward_offsets: Any,
    forward_words: Any,
    present: Any,
    before: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    query_features: int,
    h_t: int,
    limit: int,
) -> Any:
    """Correspondences of ``images`` (n,) of a segment with the terms of a :class:`WordTable`.

    An image's own list of words is read, not the posting lists of the query's words: the time does
    not depend on how many other images the segment holds.

    Returns:
        (n,) how many there are, (n + 1,) where the correspondences of each image begin, and (m, 4)
        int64: query feature, posting, place of the posting in its image, distance; ascending by
        feature, then posting.
    """
    totals, bounds = np.zeros(len(images), np.int64), np.zeros(len(images) + 1, np.int64)
    longest = 0
    for image in images:
        longest = max(longest, np.int64(forward_offsets[image + 1]) - forward_offsets[image])
    runs = np.empty((longest, 4), np.int64)
    histogram = np.empty(BITS + 1, np.int64)
    starts = np.empty(query_features + 1, np.int64)
    out = np.empty((1024, 4), np.int64)
    for at in range(len(images)):
        count = _find_runs(
            images[at], offsets, image_ids, forward_offsets, forward_words, present, before, runs
        )
        total = _count_distances(
            runs[:count], signatures, term_starts, term_signatures, h_t, histogram
        )
        totals[at] = total
        kept = min(total, limit)
        # All below the distance ``cut`` are kept, and as many at ``cut`` as there is room for.
        cut, room = 0, kept
        while cut <= h_t and histogram[cut] <= room:
            room -= histogram[cut]
            cut += 1
        found = _keep(
            runs[:count],
            signatures,
            term_starts,
            term_features,
            term_signatures,
            min(cut, h_t),
            room if cut <= h_t else kept,
            kept,
        )
        if bounds[at] + kept > len(out):
            out = _longer(out, 2 * (bounds[at] + kept))
        _sort_by_feature(found, starts, out[bounds[at] : bounds[at] + kept])
        bounds[at + 1] = bounds[at] + kept
    return totals, bounds, out[: bounds[-1]]


@compiled
def _find_runs(
    image: int,
    offsets: Any,
    image_ids: Any,
    forward_offsets: Any,
    forward_words: Any,
    present: Any,
    before: Any,
    runs: Any,
) -> int:
    """The words that an image shares with the query.

    Writes a row of ``runs`` for each: the number of the word among those of the query, its first
    posting in this image, how many there are, and the place of the first in the image's list.
    Returns the count.
    """
    count = 0
    begin, end = np.int64(forward_offsets[image]), np.int64(forward_offsets[image + 1])
    place = begin
    while place < end:
        word = read_word(forward_words, place)
        if word >> 6 >= len(present):  # the segment is damaged
            place += 1
            continue
        block, bit = present[word >> 6], np.uint64(word & 63)
        if not (block >> bit) & np.uint64(1):
            place += 1
            continue
        stop, length = np.int64(offsets[word + 1]), 0
        low = lower_bound(image_ids, np.int64(offsets[word]), stop, np.int64(image))
        while low + length < stop and image_ids[low + length] == image:
            length += 1
        below = block & ((np.uint64(1) << bit) - np.uint64(1))
        runs[count, 0] = before[word >> 6] + popcount(below)
        runs[count, 1], runs[count, 2], runs[count, 3] = low, length, place - begin
        count += 1
        # A word of the list that has no posting, in a damaged segment, must not stop the scan.
        place += max(length, 1)
    return count


@compiled
def _count_distances(
    runs: Any, signatures: Any, term_starts: Any, term_signatures: Any, h_t: int, histogram: Any
) -> int:
    """How many correspondences there are at each distance, up to ``h_t``, and in all."""
    total = 0
    for h in range(BITS + 1):
        histogram[h] = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for posting in range(runs[run, 1], runs[run, 1] + runs[run, 2]):
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h <= h_t:
                    histogram[h] += 1
                    total += 1
    return total


@compiled
def _keep(
    runs: Any,
    signatures: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    cut: int,
    room: int,
    kept: int,
) -> Any:
    """The ``kept`` correspondences nearer than ``cut``, and the first ``room`` at ``cut``."""
    found = np.empty((kept, 4), np.int64)
    count = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for k in range(runs[run, 2]):
                if count == kept:
                    return found
                posting = runs[run, 1] + k
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h > cut or (h == cut and room == 0):
                    continue
                if h == cut:
                    room -= 1
                found[count, 0], found[count, 1] = term_features[term], posting
                found[count, 2], found[count, 3] = runs[run, 3] + k, h
                count += 1
    return found


@compiled
def _sort_by_feature(found: Any, starts: Any, out: Any) -> None:
    """A stable counting sort; within a feature the postings ascend already."""
    for feature in range(len(starts)):
        starts[feature] = 0
    for row in range(len(found)):
        starts[found[row, 0] + 1] += 1
    for feature in range(1, len(starts)):
        starts[feature] += starts[feature - 1]
    for row in range(len(found)):
        to = starts[found[row, 0]]
        starts[found[row, 0]] += 1
        for column in range(4):
            out[to, column] = found[row, column]


@compiled
def _longer(rows: Any, length: int) -> Any:
    """The same rows with room for more."""
    longer = np.empty((length, 4), np.int64)
    for row in range(len(rows)):
        for column in range(4):
            longer[row, column] = rows[row, column]
    return longer
