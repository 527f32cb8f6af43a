"""The loops of :mod:`hardnet.retrieval.words.assignment`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import MissingExtraError

try:
    from numba import njit
except ImportError as error:
    raise MissingExtraError("numba", "search") from error

BLOCK = 64
"""Words whose best score is found at once; only a promising block is looked at word by word."""

WORST = -(2**31)


@njit(nogil=True, cache=True)
def collect(
    products: NDArray[np.int32],
    bias: NDArray[np.int32],
    first: int,
    scores: NDArray[np.int32],
    found: NDArray[np.int32],
) -> None:
    """Keep the best words of each row, best first.

    Args:
        products: (N, T) of the rows with the words ``first`` to ``first + T``; T is a multiple of
            BLOCK.
        bias: (T,) added to the products of each word to give its score; the highest is best,
            and WORST is no word at all.
        first: number of the first of these words.
        scores: (N, C) of the best words so far, changed in place; WORST where there is none.
        found: (N, C) their numbers, changed in place. Of equal words the earlier stays in front.
    """
    rows, words = products.shape
    last = scores.shape[1] - 1
    tops = np.empty(words // BLOCK, np.int32)
    for n in range(rows):
        for block in range(len(tops)):
            top = np.int32(WORST)
            # Whole blocks and int32 throughout, or it is not vectorised.
            for j in range(block * BLOCK, block * BLOCK + BLOCK):
                top = max(top, np.int32(products[n, j] + bias[j]))
            tops[block] = top
        least = scores[n, last]
        for block in range(len(tops)):
            if tops[block] <= least:
                continue
            for j in range(block * BLOCK, block * BLOCK + BLOCK):
                score = np.int32(products[n, j] + bias[j])
                if score > least:
                    place = last
                    while place > 0 and scores[n, place - 1] < score:
                        scores[n, place] = scores[n, place - 1]
                        found[n, place] = found[n, place - 1]
                        place -= 1
                    scores[n, place] = score
                    found[n, place] = first + j
                    least = scores[n, last]


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def refine(
    rows: NDArray[np.float32],
    words: NDArray[np.float32],
    half: NDArray[np.float32],
    found: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """The nearest of a few words of each row.

    Args:
        rows: (N, D).
        words: (K, D).
        half: (K,) half their squared lengths.
        found: (N, C) words to choose from; -1 for none.
        out: (N, M) the nearest, nearest first, of equal ones the lower number; M <= C.
    """
    dim = rows.shape[1]
    wanted = out.shape[1]
    nearest = np.empty(wanted, np.float32)
    for n in range(len(rows)):
        nearest[:] = np.inf
        out[n] = -1
        for word in found[n]:
            if word < 0:
                break
            dot = np.float32(0)
            for d in range(dim):
                dot += rows[n, d] * words[word, d]
            far = half[word] - dot
            place = wanted
            while place > 0 and (
                far < nearest[place - 1] or (far == nearest[place - 1] and word < out[n, place - 1])
            ):
                place -= 1
            for move in range(wanted - 1, place, -1):
                nearest[move] = nearest[move - 1]
                out[n, move] = out[n, move - 1]
            if place < wanted:
                nearest[place] = far
                out[n, place] = word


@njit(nogil=True, cache=True)
def add_rows(
    rows: NDArray[np.float32],
    labels: NDArray[np.int32],
    sums: NDArray[np.float64],
    counts: NDArray[np.int64],
) -> None:
    """Add the rows (N, D) to the sums (K, D) of their words (N,), and count them (K,)."""
    for n in range(len(rows)):
        counts[labels[n]] += 1
        for d in range(rows.shape[1]):
            sums[labels[n], d] += rows[n, d]


@njit(nogil=True, cache=True)
def group_rows(
    probes: NDArray[np.int32], cells: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The rows that look into each cell.

    Args:
        probes: (N, P) cells each row looks into; -1 for none.
        cells: number of cells C.

    Returns:
        starts (C + 1,) and rows: those of cell c are ``rows[starts[c]:starts[c + 1]]``, ascending.
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


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def scan_cells(
    rows: NDArray[np.float32],
    words: NDArray[np.float32],
    half: NDArray[np.float32],
    cell_starts: NDArray[np.int64],
    row_starts: NDArray[np.int64],
    row_numbers: NDArray[np.int32],
    out: NDArray[np.int32],
) -> None:
    """The nearest words of each row in the cells it looks into.

    Cell after cell, so that its words are in the cache for all rows that look into it.

    Args:
        rows: (N, D).
        words: (K, D), those of a cell next to each other.
        half: (K,) half their squared lengths.
        cell_starts: (C + 1,) where the words of each cell begin.
        row_starts: (C + 1,) of ``group_rows``.
        row_numbers: of ``group_rows``.
        out: (N, M) the nearest, nearest first; -1 where there are not so many.
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
