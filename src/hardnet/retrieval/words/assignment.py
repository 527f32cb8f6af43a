"""The nearest words of descriptors: products of 8-bit integers, the best few of them exactly.

The results of ``benchmarks/assign_words.py`` have speed and recall beside faiss: with 8192 words
all nearest words of HardNet descriptors are found, eleven times as fast as by a flat search. In
trials a product of float32 matrices and faiss's 4-bit codes with refinement took twice as long or
more.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.threads import map_threads
from hardnet.retrieval.words.assignment_kernels import BLOCK, WORST, collect, refine
from hardnet.retrieval.words.integer_product import IntegerProduct

Rows = NDArray[np.float32]

ROWS, TILE = 128, 2048
"""Products held at once by a thread: 1 MB, which stay in its cache until they have been read."""

MORE = 3
"""So many words more than are wanted have their distance computed exactly.

With one more, 99.88% of the three nearest words are found; with three more, 99.997%."""

FEW = 256
"""Of so few words all distances are computed exactly.

Words that are means of many descriptors are short, and the descriptors far outside their range: of
16 words, integer products find 98% to 99% of the nearest in random vectors."""

_HEADROOM = 1.25  # descriptors reach further out than words, which are means; beyond it: clipped


def half_squares(words: Rows) -> Rows:
    """Half the squared lengths (K,) of words (K, D): with these, products order by distance."""
    halves: Rows = 0.5 * np.einsum("kd,kd->k", words, words)
    return halves


class Assigner:
    """Finds the nearest of ``words`` (K, D) for rows (N, D) of about unit length."""

    def __init__(self, words: Rows) -> None:
        # Writable, or another variant of the kernels is compiled for it.
        self._words = np.require(words, np.float32, ["C", "W"])
        self._half = half_squares(self._words)
        largest = float(np.abs(self._words).max(initial=1e-6))
        word_scale, self._row_scale = 127 / largest, np.float32(63 / (_HEADROOM * largest))
        whole = -len(words) % BLOCK  # words that complete the last block: zero, and never found
        small = np.pad(np.rint(self._words * word_scale).astype(np.int8), ((0, whole), (0, 0)))
        # Rows are moved from -63..63 to 1..127, which adds 64 times the sum of the word.
        shift = 64 * small[: len(words)].sum(axis=1, dtype=np.int64)
        length = np.rint(self._half.astype(np.float64) * word_scale * self._row_scale)
        bias = (-shift - length.astype(np.int64)).astype(np.int32)
        self._bias = np.pad(bias, (0, whole), constant_values=WORST)
        self._tiles = {
            start: IntegerProduct(small[start : start + TILE])
            for start in range(0, len(small), TILE)
        }

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        # The few rows of a query are shared out evenly.
        step = max(1, min(ROWS, -(-len(rows) // cv2.getNumThreads())))

        def assign(start: int) -> None:
            part = np.ascontiguousarray(rows[start : start + step], np.float32)
            if len(self._words) <= FEW:
                found = np.tile(np.arange(len(self._words), dtype=np.int32), (len(part), 1))
            else:
                found = self.candidates(part, count + MORE)
            refine(part, self._words, self._half, found, out[start : start + step])

        map_threads(assign, range(0, len(rows), step))
        return out

    def candidates(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, count) words that are near by their integer products, -1 for none; on this thread."""
        moved = rows * self._row_scale
        moved += np.float32(64.5)
        small = np.clip(moved, 1, 127, out=moved).astype(np.uint8)
        scores = np.full((len(rows), count), WORST, np.int32)
        found = np.full((len(rows), count), -1, np.int32)
        for start, product in self._tiles.items():
            collect(product(small), self._bias[start : start + TILE], start, scores, found)
        return found
