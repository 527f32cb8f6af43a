"""Cells of words: a large vocabulary is searched only where it is near.

Cells are stored with the words, so nothing is built when a vocabulary is loaded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.assignment import ROWS, Assigner, Rows, half_squares
from hardnet.retrieval.kernels import compiled, compiled_sums
from hardnet.threads import map_threads

LARGE = 32_768
"""More words than these are searched by cells; up to here looking at all of them is quick."""

PROBES, MORE_PROBES = 32, 64
"""Cells that are searched for the nearest word, and for several: the others lie further off."""

_ROUNDS = 3
_MOST_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of K words; those of a cell are next to each other."""

    centres: Rows  # (C, D) float32
    starts: NDArray[np.int64]  # (C + 1,) int64, where the words of each cell begin


def make_cells(words: Rows) -> tuple[Rows, Cells]:
    """The words in the order of their cells, and the cells: k-means of the words themselves.

    Some 4 sqrt(K) cells: finding the near cells and looking into them then take about as long.
    """
    count = 2 ** round(math.log2(4 * math.sqrt(len(words))))
    count = min(count, len(words))
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

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        probes = max(self._probes if count == 1 else self._more_probes, count)
        # The more rows at once, the more of them share a cell while it is in the cache.
        many = min(max(len(rows) // 8, ROWS), _MOST_ROWS)

        def assign(start: int) -> None:
            part = np.ascontiguousarray(rows[start : start + many], np.float32)
            near = self._near_cells.candidates(part, probes)
            grouped = group_rows(near, len(self._starts) - 1)
            here = out[start : start + many]
            scan_cells(part, self._words, self._half, self._starts, *grouped, here)
            for n in np.flatnonzero(here[:, -1] < 0):  # all near cells are all but empty
                far = self._half - np.einsum("kd,d->k", self._words, part[n])
                here[n] = np.argsort(far, kind="stable")[:count]

        map_threads(assign, range(0, len(rows), many))
        return out


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


@compiled
def add_rows(
    rows: Rows, labels: NDArray[np.int32], sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """Add the rows (N, D) to the sums (K, D) of their words (N,), and count them (K,)."""
    for n in range(len(rows)):
        counts[labels[n]] += 1
        for d in range(rows.shape[1]):
            sums[labels[n], d] += rows[n, d]


@compiled
def group_rows(
    probes: NDArray[np.int32], cells: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows that look into each cell, by the cells (N, P) that each row looks into; -1: none.

    Returns starts (C + 1,) and rows: those of cell c are ``rows[starts[c]:starts[c + 1]]``.
    """
    starts = np.zeros(cells + 1, np.int64)
    for n in range(len(probes)):
        for cell in probes[n]:
            if cell >= 0:
                starts[cell + 1] += 1
    for c in range(cells):
        starts[c + 1] += starts[c]
    ends = starts[:-1].copy()
    rows = np.empty(starts[cells], np.int32)
    for n in range(len(probes)):
        for cell in probes[n]:
            if cell >= 0:
                rows[ends[cell]] = n
                ends[cell] += 1
    return starts, rows


@compiled_sums
def scan_cells(
    rows: Rows,
    words: Rows,
    half: Rows,
    cell_starts: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    row_numbers: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """Write to ``out`` (N, M) the nearest words of each row in its cells; -1 where there are fewer.

    Cell after cell, so that its words are in the cache for all rows that look into it. The words of
    cell c begin at ``cell_starts[c]``; ``row_starts`` and ``row_numbers`` are of ``group_rows``.
    """
    last = out.shape[1] - 1
    nearest = np.full(out.shape, np.inf, np.float32)
    out[:] = -1
    for cell in range(len(cell_starts) - 1):
        for k in range(row_starts[cell], row_starts[cell + 1]):
            n = row_numbers[k]
            row = rows[n]
            for word in range(cell_starts[cell], cell_starts[cell + 1]):
                dot = np.float32(0)
                for d in range(len(row)):
                    dot += row[d] * words[word, d]
                far = half[word] - dot
                if far < nearest[n, last]:
                    place = last
                    while place > 0 and nearest[n, place - 1] > far:
                        nearest[n, place] = nearest[n, place - 1]
                        out[n, place] = out[n, place - 1]
                        place -= 1
                    nearest[n, place] = far
                    out[n, place] = word
