"""``verification.find_correspondences`` as machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled.kernels import compiled, hamming, prefetch
from hardnet.retrieval.compiled.scanning import lower_bound
from hardnet.retrieval.store.segment import Segment
from hardnet.retrieval.verification import Correspondences, WordTable
from hardnet.retrieval.vocabulary import BITS

SIGNATURE_BYTES = BITS // 8


def find_correspondences(
    table: WordTable,
    segment: Segment,
    images: NDArray[np.int64],
    h_t: int,
    limit: int | None = None,
) -> Correspondences:
    """See ``verification.find_correspondences``."""
    arrays = (
        *(segment.offsets, segment.image_ids, segment.signatures),
        *(segment.forward_offsets, segment.forward_words),
        *(table.numbers, table.starts, table.features, table.signatures),
    )
    most = 1 << 62 if limit is None else limit
    features = int(table.features.max(initial=-1)) + 1
    numbers = np.ascontiguousarray(images, np.int64)
    totals, bounds, found = gather(numbers, *arrays, features, h_t, most)
    return Correspondences(totals, bounds, *np.ascontiguousarray(found.T))


@compiled
def gather(
    images: Any,
    offsets: Any,
    image_ids: Any,
    signatures: Any,
    forward_offsets: Any,
    forward_words: Any,
    word_numbers: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    query_features: int,
    h_t: int,
    limit: int,
) -> Any:
    """Correspondences of ``images`` (n,) of a segment with the terms of a :class:`WordTable`.

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
            images[at], offsets, image_ids, forward_offsets, forward_words, word_numbers, runs
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
    word_numbers: Any,
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
        row = forward_words[place]
        word = np.int64(row[0]) | np.int64(row[1]) << 8 | np.int64(row[2]) << 16
        # No number: the query does not have the word, or the segment is damaged.
        number = word_numbers[word] if word < len(word_numbers) else np.int32(-1)
        if number < 0:
            place += 1
            continue
        stop, length = np.int64(offsets[word + 1]), 0
        low = lower_bound(image_ids, np.int64(offsets[word]), stop, np.int64(image))
        while low + length < stop and image_ids[low + length] == image:
            length += 1
        runs[count, 0] = number
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
