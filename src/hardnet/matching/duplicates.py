"""Of matches that are the same in both images, keep the best."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.matching.grid import Grid

_BLOCK = 1024  # matches compared with each other at once


def without_duplicates(
    xy_a: NDArray[np.floating], xy_b: NDArray[np.floating], pixels: float
) -> NDArray[np.intp]:
    """Which matches to keep, if none may repeat a better one.

    A match repeats a better one that is kept if both its ends lie within ``pixels`` of the other's
    ends. Matches are taken block by block: a block is compared with what is kept so far, found by a
    grid, and then within itself, so memory does not grow with the square of their number.

    Args:
        xy_a: (M, 2) positions in image a, the best match first.
        xy_b: (M, 2) positions in image b.
        pixels: how far apart is still the same place.

    Returns:
        (K,) indices of the matches to keep, increasing.
    """
    a, b = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)
    kept = np.zeros(0, np.intp)
    for start in range(0, len(a), _BLOCK):
        block = np.arange(start, min(start + _BLOCK, len(a)))
        mine, theirs = Grid(a[kept], pixels).near(a[block])
        repeats = mine[_close(b[block[mine]], b[kept[theirs]], pixels)]
        fresh = np.delete(block, np.unique(repeats))
        kept = np.concatenate([kept, fresh[_greedy(a[fresh], b[fresh], pixels)]])
    return kept


def _greedy(a: NDArray[np.float64], b: NDArray[np.float64], pixels: float) -> NDArray[np.bool_]:
    """Which to keep of a few: from the best on, each strikes out those that repeat it."""
    first, second = Grid(a, pixels).near(a)
    repeat = (first < second) & _close(b[first], b[second], pixels)
    first, second = first[repeat], second[repeat]
    order = np.argsort(first, kind="stable")
    keep = np.ones(len(a), bool)
    runs = np.flatnonzero(np.diff(first[order])) + 1
    for run in np.split(order, runs):
        if len(run) and keep[first[run[0]]]:
            keep[second[run]] = False
    return keep


def _close(
    one: NDArray[np.float64], other: NDArray[np.float64], pixels: float
) -> NDArray[np.bool_]:
    close: NDArray[np.bool_] = ((one - other) ** 2).sum(1) <= pixels**2
    return close
