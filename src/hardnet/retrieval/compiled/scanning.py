"""``scoring.add_bow`` and ``scoring.add_he`` as machine code, for long lists of postings."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled.kernels import LINE, compiled, popcount, prefetch

AHEAD = 8
"""The list of the term this much later is asked for: half the time of a large index is waiting."""
AHEAD_LINES = 8
"""Lines of it; the processor continues by itself with a list that is longer."""


@compiled
def lower_bound(
    image_ids: NDArray[np.uint16], begin: np.int64, end: np.int64, image: np.int64
) -> np.int64:
    """The first of the postings ``begin`` to ``end`` of one word whose image is not below."""
    while begin < end:
        middle = (begin + end) // 2
        if image_ids[middle] < image:
            begin = middle + 1
        else:
            end = middle
    return begin


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
    """See ``scoring.add_bow``."""
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
    """See ``scoring.add_he``."""
    begins, ends = find_lists(words, offsets, image_ids, first, first + len(sums), images)
    address, owner_address = posting_signatures.ctypes.data, image_ids.ctypes.data
    burst = np.zeros(len(sums))
    sizes = np.zeros(len(sums), np.int32)
    touched = np.empty(len(sums), np.int32)
    longest = 0
    for term in range(len(words)):
        longest = max(longest, ends[term] - begins[term])
    close, distances = np.empty(longest + 1, np.int32), np.empty(longest + 1, np.int32)
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
            # First the close ones, without a branch that the processor would often guess wrong.
            found = 0
            for posting in range(len(theirs)):
                h = popcount(low ^ theirs[posting, 0]) + popcount(high ^ theirs[posting, 1])
                close[found], distances[found] = posting, h
                found += h <= h_t
            for place in range(found):
                image = np.int64(owners[close[place]]) - first
                if image < 0 or image >= len(sums):  # the segment is damaged
                    continue
                if sizes[image] == 0:
                    touched[count] = image
                    count += 1
                sizes[image] += 1
                burst[image] += weight * decay[distances[place]]
        for place in range(count):
            image = touched[place]
            total = burst[image]
            sums[image] += total / np.sqrt(sizes[image]) if burstiness else total
            burst[image] = 0.0
            sizes[image] = 0
