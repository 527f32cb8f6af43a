"""Passes over the postings of a query's words.

Each call covers the images from ``first`` on, as many as ``sums`` is long, so that threads can
share a segment; the sum of an image is made in the order of the terms however it is shared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled import compiled
from hardnet.retrieval.ranking.prefetch import LINE, prefetch
from hardnet.retrieval.store.statistics_kernels import read_word
from hardnet.retrieval.words.hamming import popcount

AHEAD = 8
"""The list of so many terms later is asked for: half the time of a large index is waiting."""
AHEAD_LINES = 8
"""So many lines of it; the processor goes on by itself with a list that is longer."""


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
    words: NDArray[np.int32],
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    first: np.int64,
    last: np.int64,
    images: np.int64,
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
    words: NDArray[np.int32],
    weights: NDArray[np.float64],
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    first: np.int64,
    images: np.int64,
    sums: NDArray[np.float64],
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
    words: NDArray[np.int32],
    weights: NDArray[np.float64],
    signatures: NDArray[np.uint64],
    starts: NDArray[np.int64],
    decay: NDArray[np.float64],
    h_t: int,
    burstiness: bool,
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    posting_signatures: NDArray[np.uint64],
    first: np.int64,
    images: np.int64,
    sums: NDArray[np.float64],
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
def finish(
    sums: NDArray[np.float64],
    scale: float,
    normalise: bool,
    norms: NDArray[np.float32],
    alive: NDArray[np.bool_],
    scores: NDArray[np.float32],
) -> None:
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


@compiled
def count_close(
    words: NDArray[np.int32],
    signatures: NDArray[np.uint64],
    h: int,
    images: NDArray[np.int64],
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    posting_signatures: NDArray[np.uint64],
    forward_offsets: NDArray[np.uint32],
    forward_words: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> None:
    """Fill ``counts`` (n,): pairs of a term and a feature of image i within Hamming distance h.

    ``words`` (T,) are ascending, as are the words of an image: the two lists are walked together.
    """
    for row in range(len(images)):
        image, term, close = images[row], 0, 0
        place, stop = np.int64(forward_offsets[image]), np.int64(forward_offsets[image + 1])
        while place < stop and term < len(words):
            word = read_word(forward_words, place)
            if word > words[term]:
                term += 1
                continue
            if word < words[term]:
                place += 1
                continue
            end = np.int64(offsets[word + 1])
            begin = lower_bound(image_ids, np.int64(offsets[word]), end, image)
            posting = begin
            while posting < end and image_ids[posting] == image:
                posting += 1
            place += posting - begin
            while term < len(words) and words[term] == word:
                for other in range(begin, posting):
                    distance = popcount(signatures[term, 0] ^ posting_signatures[other, 0])
                    distance += popcount(signatures[term, 1] ^ posting_signatures[other, 1])
                    close += distance <= h
                term += 1
        counts[row] = close
