"""Passes over the forward lists of a segment: the words of its images, one image after another."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.kernels import compiled


@compiled
def read_word(forward_words: NDArray[np.uint8], place: int | np.int64) -> np.int64:
    """The word of a row of three bytes, the lowest first."""
    low, middle, high = forward_words[place, 0], forward_words[place, 1], forward_words[place, 2]
    return np.int64(low) | np.int64(middle) << 8 | np.int64(high) << 16


@compiled
def count_documents(
    images: NDArray[np.int64],
    forward_offsets: NDArray[np.uint32],
    forward_words: NDArray[np.uint8],
    counts: NDArray[np.int64],
) -> None:
    """Add one to ``counts`` (K,) for each word of each of ``images`` (n,), however often it is."""
    for image in images:
        previous = np.int64(-1)
        for place in range(forward_offsets[image], forward_offsets[image + 1]):
            word = read_word(forward_words, place)
            if word != previous and word < len(counts):  # or the segment is damaged
                counts[word] += 1
            previous = word


@compiled
def measure_images(
    first: int,
    last: int,
    forward_offsets: NDArray[np.uint32],
    forward_words: NDArray[np.uint8],
    idf: NDArray[np.float32],
    bow: NDArray[np.float32],
    he: NDArray[np.float32],
) -> None:
    """Fill ``bow`` and ``he`` (I,), the lengths of the vectors, of images ``first`` to ``last``.

    The words of an image are ascending, so equal words lie side by side: a run of tf of them adds
    (tf idf)^2 to the one and idf^2 to the other.
    """
    for image in range(first, last):
        bow_sum, he_sum, previous, tf = 0.0, 0.0, np.int64(-1), 0
        for place in range(forward_offsets[image], forward_offsets[image + 1]):
            word = read_word(forward_words, place)
            if word >= len(idf):  # the segment is damaged
                continue
            if word != previous:
                square = np.float64(idf[previous]) ** 2 if tf else 0.0
                bow_sum += tf * tf * square
                he_sum += square
                previous, tf = word, 0
            tf += 1
        if tf:
            square = np.float64(idf[previous]) ** 2
            bow_sum += tf * tf * square
            he_sum += square
        bow[image], he[image] = np.sqrt(bow_sum), np.sqrt(he_sum)
