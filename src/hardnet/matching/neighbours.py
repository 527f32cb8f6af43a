"""Nearest neighbours between two sets of descriptors, and which of them to trust.

They are found by comparing everything, or approximately by FLANN or faiss for very large sets. The
second neighbour of the ratio test may have to be a different place: a keypoint found twice (at two
scales, with two orientations) has two descriptors that look alike, and each is the other's rival in
the test. The first geometrically inconsistent neighbour (Mishkin et al., 2015) is the nearest
descriptor that lies farther than some pixels from the nearest one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import InputError, MissingExtraError
from hardnet.matching.distances import (
    CHUNK,
    Rows,
    centred,
    check_finite,
    check_rows,
    distance_matrix,
    pair_distances,
    squared_blocks,
    two_nearest,
    two_nearest_and_back,
)

Neighbours = Literal["exact", "flann", "faiss"]
Method = Literal["flann", "faiss"]
Found = tuple[NDArray[np.intp], NDArray[np.float32]]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]
Places = NDArray[np.floating]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test: MAGSAC++ gains
more from the further correct matches than it loses by the false ones."""

TREES = 4
CHECKS = 128
"""FLANN: randomised kd-trees, and how many leaves are looked at for each query, as MODS does."""

LINKS = 16
EFFORT = 64
"""faiss: a navigable small world (HNSW) with 2 x 16 links per row, and how many candidates a search
keeps."""

_SEED = 7
_MORE = 8  # approximate neighbours to look for one at another place among; the rest is exact
_OTHERS = CHUNK // 4  # if all keypoints are in one place, every distance has to be struck out
_MARGIN = 3  # empty cells of a grid on each side: the neighbours of a cell never wrap to a row


class FarSecond(NamedTuple):
    """Where descriptors are, and how far from the nearest neighbour the second one has to be."""

    xy_a: Places
    xy_b: Places
    pixels: float


def match_descriptors(
    a: Rows,
    b: Rows,
    ratio: float = RATIO,
    mutual: bool = True,
    chunk: int = CHUNK,
    *,
    symmetric: bool = False,
    fginn: FarSecond | None = None,
    neighbours: Neighbours = "exact",
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Nearest neighbours that are mutual and clearly nearer than the second nearest.

    Args:
        a: (N, D) descriptors, float vectors or packed bits.
        b: (M, D) descriptors of the same kind.
        ratio: keep a match if its distance is below ``ratio`` times the distance to the second
            nearest neighbour in b (Lowe's test); 1 keeps all but exact ties.
        mutual: keep a match only if it is also the nearest one seen from b.
        chunk: how many distances to hold at once.
        symmetric: the ratio test must hold seen from b, too: among the rows of a.
        fginn: places of the descriptors, if the second neighbour has to be at another place.
        neighbours: how they are searched; "flann" and "faiss" may miss some.

    Returns:
        (K, 2) index pairs and (K,) scores, best first: one minus the ratio of the distances (of the
        two ratios the worse, if symmetric), so 0 is ambiguous and 1 is unique. Without a second
        neighbour, as with a single descriptor in b, the score is 1.
    """
    if not len(a) or not len(b):
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    index, distances, rows = _nearest(
        a, b, mutual, chunk, neighbours, 2 if fginn is None else _MORE
    )
    index, distances = index[rows], distances[rows]
    nearest, first = distances[:, 0], index[:, 0]
    if fginn is None:
        second = distances[:, 1]
    else:
        second = far_second(a[rows], b, index, distances, fginn.xy_b, fginn.pixels)
    keep = np.flatnonzero(nearest < ratio * second)
    rows, first, nearest = rows[keep], first[keep], nearest[keep]
    ratios = nearest / second[keep]
    if symmetric:
        places = (None, 0.0) if fginn is None else (fginn.xy_a, fginn.pixels)
        second = other_nearest(b[first], a, rows, *places)
        keep = np.flatnonzero(nearest < ratio * second)
        rows, first = rows[keep], first[keep]
        ratios = np.maximum(ratios[keep], nearest[keep] / second[keep])
    scores = 1 - ratios
    order = np.argsort(-scores, kind="stable")
    return np.stack([rows, first], 1)[order], scores[order].astype(np.float32)


def _nearest(
    a: Rows, b: Rows, mutual: bool, chunk: int, neighbours: Neighbours, count: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """Neighbours (N, K >= 2) of all rows of a, their distances, and which rows to continue with."""
    everyone = np.arange(len(a))
    if neighbours == "exact":
        if not mutual:
            return *two_nearest(a, b, chunk), everyone
        index, distances, back = two_nearest_and_back(a, b, chunk)
        return index, distances, np.flatnonzero(back[index[:, 0]] == everyone)
    index, distances = approximate_nearest(a, b, count, neighbours)
    if len(b) == 1:  # no second neighbour, as in exact search
        index = np.repeat(index, 2, 1)
        distances = np.insert(distances, 1, np.inf, 1)
    if not mutual:
        return index, distances, everyone
    seen, place = np.unique(index[:, 0], return_inverse=True)
    back = approximate_nearest(b[seen], a, 1, neighbours)[0][:, 0]
    return index, distances, np.flatnonzero(back[place] == everyone)


def far_second(
    a: Rows,
    b: Rows,
    index: NDArray[np.intp],
    distances: NDArray[np.float32],
    xy_b: Places,
    apart: float,
) -> NDArray[np.float32]:
    """Distance of each row of a to its first geometrically inconsistent neighbour in b, exact.

    The neighbours that are known already usually hold it; only for rows whose known neighbours are
    all in one place the descriptors are compared again.

    Args:
        a: (N, D) descriptors.
        b: (M, D) descriptors.
        index: (N, K) nearest rows of b, nearest first.
        distances: (N, K) their distances.
        xy_b: (M, 2) places of the rows of b.
        apart: pixels; the neighbour lies farther than this from the nearest one.

    Returns:
        (N,) distances; infinite where every row of b lies close to the nearest one.
    """
    places = np.asarray(xy_b, np.float64)
    offset = places[index] - places[index[:, :1]]
    far = (offset**2).sum(2) > apart**2
    second: NDArray[np.float32] = distances[np.arange(len(a)), far.argmax(1)]
    rest = np.flatnonzero(~far.any(1))
    second[rest] = other_nearest(a[rest], b, index[rest, 0], places, apart)
    return second


def other_nearest(
    a: Rows,
    b: Rows,
    first: NDArray[np.intp],
    xy_b: Places | None = None,
    apart: float = 0.0,
    chunk: int = _OTHERS,
) -> NDArray[np.float32]:
    """Distance of each row of a to the nearest row of b that is not its ``first``, exact.

    Args:
        a: (N, D) descriptors.
        b: (M, D) descriptors.
        first: (N,) a row of b for each row of a.
        xy_b: (M, 2) places of the rows of b, if those near the first do not count either.
        apart: pixels; rows of b up to this far from the first do not count.
        chunk: how many distances to hold at once.

    Returns:
        (N,) distances; infinite where no row of b is left.
    """
    index = np.zeros(len(a), np.intp)
    best = np.full(len(a), np.inf, np.float32)
    grid, start = None, -1
    for rows, columns, squared in squared_blocks(*centred(a, b), chunk):
        if xy_b is not None:
            if columns.start != start:
                grid, start = Grid(xy_b[columns], apart), columns.start
            assert grid is not None
            squared[grid.near(xy_b[first[rows]])] = np.inf
        here = np.flatnonzero((first[rows] >= columns.start) & (first[rows] < columns.stop))
        squared[here, first[rows][here] - columns.start] = np.inf
        nearest = squared.argmin(1)
        value = squared[np.arange(len(nearest)), nearest]
        closer = value < best[rows]
        best[rows][closer] = value[closer]
        index[rows][closer] = nearest[closer] + columns.start
    distance = np.full(len(a), np.inf, np.float32)
    found = np.flatnonzero(best < np.inf)
    distance[found] = pair_distances(a[found], b[index[found]])
    return distance


def approximate_nearest(a: Rows, b: Rows, count: int, method: Method) -> Found:
    """Some of the rows of b nearest to each row of a, probably the nearest.

    The same rows give the same neighbours, in any process and on any number of threads. Distances
    are exact; only which neighbours are found is approximate.

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
        raise InputError(
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


class Grid:
    """Which points of the plane are near which.

    Points are sorted into cells of one radius; those near a query are in the 3 x 3 cells around it.
    """

    def __init__(self, points: ArrayLike, radius: float) -> None:
        """Sort ``points`` (N, 2) into cells of side ``radius``."""
        self.points = np.asarray(points, np.float64).reshape(-1, 2)
        self.radius = radius
        self._origin = self.points.min(0) if len(self.points) else np.zeros(2)
        cells = np.floor((self.points - self._origin) / radius)
        self._size = cells.max(0) + 1 if len(cells) else np.ones(2)
        keys = self._keys(*cells.T.astype(np.int64))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def near(self, queries: ArrayLike) -> Pairs:
        """All pairs of a query and a point at a distance of at most the radius.

        Args:
            queries: (Q, 2); one that is not finite is near nothing.

        Returns:
            (K,) indices of queries and (K,) indices of points.
        """
        queries = np.asarray(queries, np.float64).reshape(-1, 2)
        known = np.flatnonzero(np.isfinite(queries).all(1))
        place = np.floor((queries[known] - self._origin) / self.radius)
        cells = np.clip(place, -2, self._size + 1).astype(np.int64)
        found = [self._row(known, cells[:, 0], cells[:, 1] + shift) for shift in (-1, 0, 1)]
        query, point = (np.concatenate(parts) for parts in zip(*found, strict=True))
        offset = queries[query] - self.points[point]
        close = (offset**2).sum(1) <= self.radius**2
        return query[close], point[close]

    def _row(
        self, queries: NDArray[np.intp], column: NDArray[np.int64], row: NDArray[np.int64]
    ) -> Pairs:
        """Candidates in three neighbouring cells of one row of the grid: one run of the order."""
        start = np.searchsorted(self._sorted, self._keys(column - 1, row), side="left")
        stop = np.searchsorted(self._sorted, self._keys(column + 1, row), side="right")
        count = stop - start
        first = np.cumsum(count) - count
        place = np.arange(count.sum()) + np.repeat(start - first, count)
        return np.repeat(queries, count), self._order[place]

    def _keys(self, column: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        """One number per cell, in the order of reading."""
        stride = int(self._size[0]) + 2 * _MARGIN
        keys: NDArray[np.int64] = (row + _MARGIN) * stride + column + _MARGIN
        return keys
