"""Approximate nearest neighbours by the kd-trees of FLANN, as MODS finds them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import InputError
from hardnet.matching.neighbours import (
    CHUNK,
    Found,
    Rows,
    check_rows,
    distance_matrix,
    finite_squares,
    pair_distances,
)

TREES = 4
CHECKS = 128
"""FLANN: randomised kd-trees, and how many leaves are looked at for each query, as MODS does."""

_SEED = 7


def approximate_nearest(a: Rows, b: Rows, count: int) -> Found:
    """Some of the rows of b nearest to each row of a, probably the nearest: indices, distances.

    The same rows give the same neighbours, in any process and on any number of threads. Distances
    are exact; only which of the ``count`` neighbours are found is approximate. A set of no more
    rows than FLANN would check anyway is searched exactly.
    """
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        raise InputError(
            "flann does not search packed bits: match binary descriptors by exact neighbours"
        )
    finite_squares(a)
    finite_squares(b)
    count = min(count, len(b))
    if len(b) <= CHECKS:
        return _exact(a, b, count)
    queries, rows = (np.ascontiguousarray(part, np.float32) for part in (a, b))
    index = _flann(queries, rows, count)
    missing = np.flatnonzero((index < 0).any(1))  # too few in the cells that were searched
    if len(missing):
        index[missing] = _exact(a[missing], b, count)[0]
    return _sorted(a, b, index)


def _flann(a: NDArray[np.float32], b: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    def search() -> NDArray[np.intp]:
        cv2.setRNGSeed(_SEED)
        index = cv2.flann.Index(b, {"algorithm": 1, "trees": TREES})
        return np.asarray(index.knnSearch(a, count, params={"checks": CHECKS})[0], np.intp)

    # OpenCV has one random generator per thread: in a thread of its own the seed is ours and the
    # caller's generator is left alone.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(search).result()


def _exact(a: Rows, b: Rows, count: int) -> Found:
    index = np.empty((len(a), count), np.intp)
    height = max(CHUNK // len(b), 1)
    for start in range(0, len(a), height):
        part = slice(start, start + height)
        order = np.argsort(distance_matrix(a[part], b), axis=1, kind="stable")
        index[part] = order[:, :count]
    return _sorted(a, b, index)


def _sorted(a: Rows, b: Rows, index: NDArray[np.intp]) -> Found:
    """Exact distances, nearest first; of equal ones the lowest index wins, as in exact search."""
    columns = range(index.shape[1])
    distance = np.stack([pair_distances(a, b[index[:, k]]) for k in columns], 1)
    order = np.lexsort((index, distance), axis=1)
    return np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)
