"""What signatures need: a random orthogonal projection, and per word the medians after it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.words.hamming import BITS

Rows = NDArray[np.float32]

FEW = 8
"""A word of fewer training descriptors has its own projection as thresholds, not their medians:
the median of few is noise, and the word is their mean (or, for an empty word, the best guess)."""

_ROWS = 65_536  # projected at once


def random_projection(dim: int, seed: int) -> Rows:
    """(128, D) rows of unit length, drawn evenly from all orthogonal ones.

    More bits than dimensions cannot all be orthogonal: then there are blocks of D orthogonal rows.
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for _ in range(-(-BITS // dim)):
        q, r = np.linalg.qr(rng.normal(size=(dim, dim)))
        blocks.append((q * np.sign(np.diag(r))).T)
    return np.concatenate(blocks)[:BITS].astype(np.float32)


def median_thresholds(
    words: Rows,
    projection: Rows,
    labels: NDArray[np.int32],
    read: Callable[[NDArray[np.intp]], Rows],
) -> NDArray[np.float16]:
    """Thresholds (K, 128).

    Args:
        words: (K, D).
        projection: (128, D).
        labels: (N,) the word of each training descriptor.
        read: gives the prepared training descriptors of such numbers.
    """
    thresholds = words @ projection.T
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(len(words) + 1))
    first = 0
    while first < len(words):  # so many words that their descriptors fit in memory, at least one
        last = max(int(np.searchsorted(ends, ends[first] + _ROWS, "right")) - 1, first + 1)
        projected = read(order[ends[first] : ends[last]]) @ projection.T
        for word in range(first, last):
            part = projected[ends[word] - ends[first] : ends[word + 1] - ends[first]]
            if len(part) >= FEW:
                thresholds[word] = np.median(part, axis=0)
        first = last
    return thresholds.astype(np.float16)
