"""Passes over the postings of a query's words.

Each call covers the images from ``first`` on, as many as ``sums`` is long, so that threads can
share a segment; the sum of an image is made in the order of the terms however it is shared.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled import compiled
from hardnet.retrieval.hamming import popcount
from hardnet.retrieval.statistics_kernels import read_word


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
def add_bow(
    words: NDArray[np.int32],
    weights: NDArray[np.float64],
    offsets: NDArray[np.uint32],
    image_ids: NDArray[np.uint16],
    first: np.int64,
    sums: NDArray[np.float64],
) -> None:
    """Add to ``sums`` (n,) the weight (T,) of a term for each of its postings."""
    last = first + len(sums)
    for term in range(len(words)):
        begin, end = np.int64(offsets[words[term]]), np.int64(offsets[words[term] + 1])
        if first > 0:
            begin = lower_bound(image_ids, begin, end, first)
        weight = weights[term]
        for posting in range(begin, end):
            image = np.int64(image_ids[posting])
            if image >= last:
                break
            sums[image - first] += weight


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
    sums: NDArray[np.float64],
) -> None:
    """Add to ``sums`` (n,) the matches of each query feature, a burst per image.

    The terms of feature g are ``starts[g]`` to ``starts[g + 1]``; a match at distance h weighs
    ``decay[h]`` times the weight of its term.
    """
    last = first + len(sums)
    burst = np.zeros(len(sums))
    sizes = np.zeros(len(sums), np.int32)
    touched = np.empty(len(sums), np.int32)
    for feature in range(len(starts) - 1):
        count = 0
        for term in range(starts[feature], starts[feature + 1]):
            begin, end = np.int64(offsets[words[term]]), np.int64(offsets[words[term] + 1])
            if first > 0:
                begin = lower_bound(image_ids, begin, end, first)
            if begin < end and image_ids[end - 1] >= last:
                end = lower_bound(image_ids, begin, end, last)
            low, high, weight = signatures[term, 0], signatures[term, 1], weights[term]
            # Slices: with indices known to be at least 0, this loop is a third faster.
            theirs, owners = posting_signatures[begin:end], image_ids[begin:end]
            for posting in range(len(theirs)):
                h = popcount(low ^ theirs[posting, 0]) + popcount(high ^ theirs[posting, 1])
                if h <= h_t:
                    image = np.int64(owners[posting]) - first
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
