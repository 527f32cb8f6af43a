"""The nearest words of descriptors: products of 8-bit integers, the best few of them exactly.

A large vocabulary is searched only where it is near: its words are divided into cells, which are
stored with them, so that nothing is built when it is loaded. The near cells are found in the same
way.

Speed and recall beside faiss, flat and graphs: ``benchmarks/assign_words.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.matching.integers import IntegerProduct
from hardnet.retrieval.compiled import faster
from hardnet.threads import map_threads

Rows = NDArray[np.float32]

PRODUCTS = 1 << 19
"""Products a thread holds at a time: 2 MB, which stay in the cache until they are read."""

PIECE = 512
"""Rows that a thread takes at once, if there are that many."""

MORE = 3
"""Exact distances are computed for this many more words than are wanted."""

FEW = 256
"""Up to this many words, all distances are computed exactly: words that are means of many
descriptors are short, and the descriptors lie far outside the range of their integers."""

GROUP = 256
"""Words whose best score is found at once, to know which scores are worth a look."""

_HEADROOM = 1.25  # descriptors reach further out than words, which are means; beyond it: clipped


def half_squares(words: Rows) -> Rows:
    """Half the squared lengths (K,) of words (K, D): with these, products order by distance."""
    halves: Rows = 0.5 * np.einsum("kd,kd->k", words, words)
    return halves


def project(rows: Rows, axes: Rows) -> Rows:
    """(N, d) rows (N, D) along axes (D, d).

    Each row is summed by itself, in one order, so that it does not depend on the others; a product
    by BLAS would, and its threads would keep a core busy that the search for words needs.
    """
    sums: Rows = np.einsum("nd,dk->nk", rows, axes)
    return sums


class Assigner:
    """Finds the nearest of ``words`` (K, D) for rows (N, D) of about unit length."""

    def __init__(self, words: Rows) -> None:
        self._words = np.ascontiguousarray(words, np.float32)
        self._half = half_squares(self._words)
        self._integer = IntegerScores(self._words, self._half)
        self._product = IntegerProduct(self._integer.words)

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores.

        The first is almost always the nearest; of several, one in a thousand may be missing.
        """
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)

        def assign(part: slice) -> None:
            few = np.ascontiguousarray(rows[part], np.float32)
            if len(self._words) <= FEW:
                owner, found = (side.ravel() for side in np.indices((len(few), len(self._words))))
            else:
                owner, found = promising(self._scores(few), count + MORE)
            out[part] = faster(nearest_of)(few, self._words, self._half, owner, found, count)

        map_threads(assign, self._parts(len(rows)))
        return out

    def roughly(self, rows: Rows) -> NDArray[np.int32]:
        """(N,) words as near as their integers tell: what k-means needs until it ends."""
        if len(self._words) <= FEW:
            return self(rows)[:, 0]
        out = np.empty(len(rows), np.int32)

        def assign(part: slice) -> None:
            out[part] = self._scores(rows[part]).argmax(axis=1)

        map_threads(assign, self._parts(len(rows)))
        return out

    def candidates(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, min(count, K)) words that are near by their integers, in no order; on this thread."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        step = self._step
        for start in range(0, len(rows), step):
            scores = self._scores(rows[start : start + step])
            out[start : start + step] = np.argpartition(scores, -count, axis=1)[:, -count:]
        return out

    def _scores(self, rows: Rows) -> NDArray[np.int32]:
        """(N, K) of rows (N, D)."""
        return self._product(self._integer.integers(rows))

    @property
    def _step(self) -> int:
        """Rows whose products are held at once."""
        return min(max(PRODUCTS // max(len(self._words), 1), 16), PIECE)

    def _parts(self, rows: int) -> list[slice]:
        """The rows in parts; the few of a query are shared out evenly."""
        threads = max(cv2.getNumThreads(), 1)
        pieces = threads * max(1, -(-rows // (threads * self._step)))
        step = max(1, -(-rows // pieces))
        return [slice(start, start + step) for start in range(0, rows, step)]


def promising(scores: NDArray[np.int32], count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns of the highest of scores (N, K): in each row ``count`` or a few more."""
    group = max(min(GROUP, scores.shape[1] // (4 * count)), 1)
    return faster(find_promising)(scores, count, group)


def find_promising(
    scores: NDArray[np.int32], count: int, group: int
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows and columns that reach what ``count`` groups of neighbouring columns reach."""
    columns = scores.shape[1]
    tops = np.maximum.reduceat(scores, np.arange(0, columns, group), axis=1)
    last = max(tops.shape[1] - count, 0)
    least = np.partition(tops, last, axis=1)[:, last]
    return np.divmod(np.flatnonzero(scores >= least[:, None]), columns)


def nearest_of(
    rows: Rows,
    words: Rows,
    half: Rows,
    owner: NDArray[np.intp],
    found: NDArray[np.intp],
    count: int,
) -> NDArray[np.int32]:
    """(N, count) the nearest of the words that were found for each row, by exact distances.

    ``found`` (P,) are words, ``owner`` (P,) their rows, both ascending; a row has at least
    ``count``. The nearest comes first, of equal ones the lower number; ``half`` (K,) are half the
    squared lengths of the words (K, D).
    """
    # In double precision, so that the order of the sums does not matter.
    dots = np.einsum("pd,pd->p", rows[owner], words[found], dtype=np.float64)
    far = half[found] - dots.astype(np.float32)
    sizes = np.bincount(owner, minlength=len(rows))
    most = int(sizes.max(initial=count))
    table = np.full((len(rows), most), np.inf, np.float32)
    table[np.arange(most) < sizes[:, None]] = far
    order = np.argsort(table, axis=1, kind="stable")[:, :count]
    nearest: NDArray[np.int32] = found[(np.cumsum(sizes) - sizes)[:, None] + order].astype(np.int32)
    return nearest


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of K words; those of a cell are next to each other."""

    centres: Rows  # (C, D) float32
    starts: NDArray[np.int64]  # (C + 1,) int64, where the words of each cell begin


LARGE = 8192
"""Larger vocabularies are searched by cells; up to this size it is quick to look at all words."""

ROUGH_PROBES, PROBES, MORE_PROBES = 16, 24, 48
"""Cells searched for a near word, for the nearest, and for several nearest."""

_ROUNDS = 3
_FEWEST_ROWS, _MOST_ROWS = 64, 32_768
_LOWEST = -np.iinfo(np.int32).max


def make_cells(words: Rows) -> tuple[Rows, Cells]:
    """The words in the order of their cells, and the cells: k-means of the words themselves.

    Some sqrt(K) cells, so that each has enough words for a look at it to be worth the call; and
    more than FEW, whose centres would be compared one by one.
    """
    count = min(max(round(math.sqrt(len(words))), FEW + 1), len(words))
    # Words that come ordered by cells, as from the last iteration of k-means, give a good start.
    centres = words[np.linspace(0, len(words) - 1, count).astype(np.intp)]
    for _ in range(_ROUNDS):
        sums, counts = np.zeros(centres.shape), np.zeros(count, np.int64)
        add_rows(words, Assigner(centres)(words)[:, 0], sums, counts)
        used = counts > 0
        centres[used] = sums[used] / counts[used, None]
    labels = Assigner(centres)(words)[:, 0]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(count + 1)).astype(np.int64)
    return words[order], Cells(centres, starts)


class CellAssigner:
    """Finds almost always the nearest of ``words`` (K, D), which are in the order of ``cells``."""

    def __init__(
        self, words: Rows, cells: Cells, probes: int = PROBES, more_probes: int = MORE_PROBES
    ) -> None:
        """Looks into ``probes`` cells for the nearest word, into ``more_probes`` for several."""
        self._probes, self._more_probes = probes, more_probes
        self._words = np.ascontiguousarray(words, np.float32)
        self._half = half_squares(self._words)
        self._starts = np.ascontiguousarray(cells.starts, np.int64)
        self._near_cells = Assigner(cells.centres)
        self._integer = IntegerScores(self._words, self._half)
        self._product = IntegerProduct()

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores."""
        count = min(count, len(self._words))
        probes = max(self._probes if count == 1 else self._more_probes, count)
        out = np.empty((len(rows), count), np.int32)

        def assign(part: slice) -> None:
            some = np.ascontiguousarray(rows[part], np.float32)
            scores, found = self._best_of_cells(some, probes, count + 2)
            # The highest, in the order of the words.
            best = np.argsort(-scores, axis=1, kind="stable")[:, : count + MORE]
            found = np.sort(np.take_along_axis(found, best, 1), axis=1)
            short = (found < len(self._words)).sum(axis=1) < count  # near cells are all but empty
            found[short, :count] = np.arange(count)
            found[short, count:] = len(self._words)
            owner, place = np.nonzero(found < len(self._words))
            near = found[owner, place]
            out[part] = faster(nearest_of)(some, self._words, self._half, owner, near, count)
            if short.any():
                out[part][short] = Assigner(self._words)(some[short], count)

        map_threads(assign, _parts(len(rows)))
        return out

    def roughly(self, rows: Rows) -> NDArray[np.int32]:
        """(N,) words that are near by their integers; see :meth:`Assigner.roughly`."""
        out = np.empty(len(rows), np.int32)

        def assign(part: slice) -> None:
            scores, found = self._best_of_cells(rows[part], ROUGH_PROBES, 1)
            out[part] = found[np.arange(len(found)), scores.argmax(axis=1)]
            none = out[part] == len(self._words)  # all near cells are empty
            if none.any():
                out[part][none] = Assigner(self._words).roughly(rows[part][none])

        map_threads(assign, _parts(len(rows)))
        return out

    def _best_of_cells(
        self, rows: Rows, probes: int, most: int
    ) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """(N, P) scores and words of rows (N, D): the ``most`` best of each of the nearest cells.

        Where a cell has fewer, the word is K. Cell after cell, all rows that look into it at once.
        """
        near = self._near_cells.candidates(rows, probes)
        looks = np.argsort(near, axis=None, kind="stable")
        edges = np.searchsorted(near.ravel()[looks], np.arange(len(self._starts)))
        integers = self._integer.integers(rows)
        scores = np.full((near.size, most), _LOWEST, np.int32)
        found = np.full((near.size, most), len(self._words), np.intp)
        for cell in np.flatnonzero(np.diff(edges)).tolist():
            first, last = self._starts[cell : cell + 2].tolist()
            some = looks[edges[cell] : edges[cell + 1]]
            here = self._product(integers[some // near.shape[1]], self._integer.words[first:last])
            each = np.arange(len(some))
            for k in range(min(most, last - first)):
                best = here.argmax(axis=1)
                scores[some, k], found[some, k] = here[each, best], first + best
                here[each, best] = _LOWEST
        return scores.reshape(len(rows), -1), found.reshape(len(rows), -1)


def _parts(rows: int) -> list[slice]:
    """Rows in as few parts as there are cores: the more at once, the more share a cell."""
    step = min(max(-(-rows // max(cv2.getNumThreads(), 1)), _FEWEST_ROWS), _MOST_ROWS)
    return [slice(start, start + step) for start in range(0, rows, step)]


def recall(assign: CellAssigner, words: Rows, rows: Rows) -> float:
    """Share of rows (N, D) whose nearest word is found."""
    nearest, which = np.full(len(rows), np.inf, np.float32), np.zeros(len(rows), np.int64)
    for start in range(0, len(words), LARGE):
        part = words[start : start + LARGE]
        far = half_squares(part) - rows @ part.T
        here = far.argmin(axis=1)
        better = far[np.arange(len(rows)), here] < nearest
        which[better] = here[better] + start
        nearest[better] = far[better, here[better]]
    return float((assign(rows)[:, 0] == which).mean())


def add_rows(
    rows: Rows, labels: NDArray[np.int32], sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """Add the rows (N, D) to the sums (K, D) of their words (N,), and count them (K,)."""
    counts += np.bincount(labels, minlength=len(counts))
    for d, column in enumerate(cv2.transpose(rows)):  # several times as fast as numpy's copy
        sums[:, d] += np.bincount(labels, column, len(counts))


class IntegerScores:
    """Products of rows with words in 8 bits, less half the squared lengths of the words.

    What does not depend on the row is part of the product, in a few columns of the words: it is a
    number in the base of 127, which is what the rows have in these columns.
    """

    def __init__(self, words: Rows, half: Rows) -> None:
        """Words (K, D), and half their squared lengths (K,)."""
        largest = float(np.abs(words).max(initial=1e-6))
        word_scale, self._row_scale = 127 / largest, np.float32(63 / (_HEADROOM * largest))
        small = np.rint(words * word_scale).astype(np.int8)
        # Rows are moved from -63..63 to 1..127, which adds 64 times the sum of the word.
        shift = 64 * small.sum(axis=1, dtype=np.int64)
        length = np.rint(half.astype(np.float64) * word_scale * self._row_scale)
        bias = -shift - length.astype(np.int64)
        bias -= (bias.max(initial=0) + bias.min(initial=0)) // 2
        tens = np.rint(bias / 127).astype(np.int64)
        share = max(-(-int(np.abs(tens).max(initial=0)) // 127), 1)  # columns that share the tens
        parts = [(tens + part) // share for part in range(share)]
        columns = np.stack([*parts, bias - 127 * tens], 1).astype(np.int8)
        self._constants = np.array([127] * share + [1], np.uint8)
        self.words = np.concatenate([small, columns], 1)  # (K, D + a few) int8

    def integers(self, rows: Rows) -> NDArray[np.uint8]:
        """(N, D + a few) of rows (N, D): their products with ``words`` are the scores."""
        dim = rows.shape[1]
        small = np.empty((len(rows), dim + len(self._constants)), np.uint8)
        moved = rows * self._row_scale
        moved += np.float32(64.5)
        small[:, :dim] = np.clip(moved, 1, 127, out=moved)
        small[:, dim:] = self._constants
        return small
