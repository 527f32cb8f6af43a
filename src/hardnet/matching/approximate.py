"""Nearest neighbours without comparing everything: FLANN and faiss, for very large sets.

Both are deterministic here: the same rows give the same neighbours, in any process and on any
number of threads. Distances are exact; only which neighbours are found is approximate.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, MissingExtraError
from hardnet.matching.distances import (
    CHUNK,
    Rows,
    check_finite,
    check_rows,
    distance_matrix,
    pair_distances,
)

Method = Literal["flann", "faiss"]
Found = tuple[NDArray[np.intp], NDArray[np.float32]]

TREES = 4
CHECKS = 128
"""FLANN: randomised kd-trees, and how many leaves are looked at for each query, as MODS does."""

LINKS = 16
EFFORT = 64
"""faiss: a navigable small world (HNSW) with 2 x 16 links per row, and how many candidates a search
keeps. Of HardNet's matches between photos it finds more than 99%, FLANN as above 83% (41,000
rows)."""

_SEED = 7


def nearest(a: Rows, b: Rows, count: int, method: Method) -> Found:
    """Some of the rows of b nearest to each row of a, probably the nearest.

    Args:
        a: (N, D) float vectors.
        b: (M, D) float vectors, M >= 1.
        count: how many neighbours are wanted.
        method: "flann" or "faiss".

    Returns:
        (N, K) indices into b and (N, K) distances, nearest first. K is ``count``, or M if there are
        fewer. A set of no more rows than FLANN would check anyway is searched exactly.
    """
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        raise HardnetError(
            f"{method} does not search packed bits: match binary descriptors by exact neighbours"
        )
    check_finite(a)
    check_finite(b)
    count = min(count, len(b))
    if len(b) <= CHECKS:
        return _exact(a, b, count)
    search = _flann if method == "flann" else _faiss
    queries, rows = (np.ascontiguousarray(part, np.float32) for part in (a, b))
    index = search(queries, rows, count)
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
    return _in_own_thread(search)


def _faiss(a: NDArray[np.float32], b: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss-cpu", "search") from None
    threads = faiss.omp_get_max_threads()

    def search() -> NDArray[np.intp]:
        # Rows that several threads add at once are linked in a different order every time.
        faiss.omp_set_num_threads(1)
        index = faiss.IndexHNSWFlat(b.shape[1], LINKS)
        index.add(b)
        index.hnsw.efSearch = max(EFFORT, count)
        faiss.omp_set_num_threads(threads)
        return np.asarray(index.search(a, count)[1], np.intp)

    return _in_own_thread(search)  # where the number of threads is nobody else's


def _in_own_thread(search: Callable[[], NDArray[np.intp]]) -> NDArray[np.intp]:
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
    distance = np.empty(index.shape, np.float32)
    for k in range(index.shape[1]):
        distance[:, k] = pair_distances(a, b[index[:, k]])
    order = np.lexsort((index, distance), axis=1)
    return np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)
