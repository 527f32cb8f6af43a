"""The inner loops of spatial verification, first part: which features may be the same.

A pair is a correspondence of a query feature with a feature of an image: they share a word, and
their signatures are close. Every feature of an image has one word, so that a pair occurs once,
however many words a query feature has.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval.kernels import BITS, compiled, hamming, popcount, prefetch
from hardnet.retrieval.store.segment import lower_bound, read_word

SIGNATURE_BYTES = BITS // 8


@compiled
def sort_terms(words: Any, signatures: Any, vocabulary_size: int) -> Any:
    """The terms of N query features by word, then by feature; unknown words are left out.

    Returns the arrays of a :class:`~hardnet.retrieval.verification.WordTable`, of words (N, MA) and
    their signatures (N, MA, 2).
    """
    present = np.zeros(vocabulary_size // 64 + 1, np.uint64)
    for word in words.flat:
        if 0 <= word < vocabulary_size:
            present[word >> 6] |= np.uint64(1) << np.uint64(word & 63)
    before, total = np.empty(len(present), np.int64), 0
    for block in range(len(present)):
        before[block] = total
        total += popcount(present[block])
    starts = np.zeros(total + 2, np.int64)
    for word in words.flat:
        if 0 <= word < vocabulary_size:
            starts[before[word >> 6] + _rank(present[word >> 6], word) + 2] += 1
    for number in range(total):
        starts[number + 2] += starts[number + 1]
    features = np.empty(starts[-1], np.int32)
    sorted_signatures = np.empty((starts[-1], 2), np.uint64)
    for feature in range(len(words)):
        for m in range(words.shape[1]):
            word = words[feature, m]
            if 0 <= word < vocabulary_size:
                number = before[word >> 6] + _rank(present[word >> 6], word) + 1
                to = starts[number]
                starts[number] += 1
                features[to] = feature
                sorted_signatures[to, 0] = signatures[feature, m, 0]
                sorted_signatures[to, 1] = signatures[feature, m, 1]
    return present, before, starts[:-1], features, sorted_signatures


@compiled
def _rank(block: Any, word: Any) -> int:
    """How many bits of a block are set before that of a word."""
    below = (np.uint64(1) << np.uint64(word & 63)) - np.uint64(1)
    rank: int = popcount(block & below)
    return rank


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

    Returns (n,) how many there are, (n + 1,) where those of each image begin, and (m, 4) int64:
    query feature, posting, its place in its image, distance; ascending by feature, then posting.
    """
    totals, bounds = np.zeros(len(images), np.int64), np.zeros(len(images) + 1, np.int64)
    longest = 0
    for image in images:
        longest = max(longest, np.int64(forward_offsets[image + 1]) - forward_offsets[image])
    runs, address = np.empty((longest, 4), np.int64), signatures.ctypes.data
    starts = np.empty(query_features + 1, np.int64)
    found, out = np.empty((1024, 4), np.int64), np.empty((1024, 4), np.int64)
    for at in range(len(images)):
        count = _find_runs(
            images[at], offsets, image_ids, forward_offsets, forward_words, present, before, runs
        )
        most = 0
        for run in runs[:count]:
            prefetch(address + run[1] * SIGNATURE_BYTES)
            most += run[2] * (term_starts[run[0] + 1] - term_starts[run[0]])
        if most > len(found):
            found = np.empty((2 * most, 4), np.int64)
        total = _find_pairs(
            runs[:count], signatures, term_starts, term_features, term_signatures, h_t, found
        )
        totals[at] = total
        kept = min(total, limit)
        if total > limit:
            _keep_nearest(found[:total], limit)
        if bounds[at] + kept > len(out):
            out = _longer(out, 2 * (bounds[at] + kept))
        _sort_by_feature(found[:kept], starts, out[bounds[at] : bounds[at] + kept])
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
        runs[count, 0] = before[word >> 6] + _rank(block, word)
        runs[count, 1], runs[count, 2], runs[count, 3] = low, length, place - begin
        count += 1
        # A word of the list that has no posting, in a damaged segment, must not stop the scan.
        place += max(length, 1)
    return count


@compiled
def _find_pairs(
    runs: Any,
    signatures: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    h_t: int,
    found: Any,
) -> int:
    """Write the pairs of at most the distance ``h_t``, as ``gather`` gives them; how many."""
    count = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for k in range(runs[run, 2]):
                posting = runs[run, 1] + k
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h <= h_t:
                    found[count, 0], found[count, 1] = term_features[term], posting
                    found[count, 2], found[count, 3] = runs[run, 3] + k, h
                    count += 1
    return count


@compiled
def _keep_nearest(found: Any, limit: int) -> None:
    """Move the ``limit`` rows of the smallest distance to the front, in their order."""
    histogram = np.zeros(BITS + 1, np.int64)
    for row in range(len(found)):
        histogram[found[row, 3]] += 1
    # All below the distance ``cut`` are kept, and as many at ``cut`` as there is room for.
    cut, room = 0, limit
    while histogram[cut] <= room:
        room -= histogram[cut]
        cut += 1
    count = 0
    for row in range(len(found)):
        h = found[row, 3]
        if h < cut or (h == cut and room > 0):
            room -= h == cut
            for column in range(4):
                found[count, column] = found[row, column]
            count += 1


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
