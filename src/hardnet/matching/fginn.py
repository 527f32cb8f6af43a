"""The second neighbour of the ratio test: the nearest one that is a different place.

A keypoint found twice (at two scales, with two orientations) has two descriptors that look alike,
and each is the other's rival in the ratio test. The first geometrically inconsistent neighbour
(Mishkin et al., 2015) is the nearest descriptor that lies farther than some pixels from the nearest
one.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.matching.distances import CHUNK, Rows, centred, pair_distances, squared_blocks
from hardnet.matching.grid import Grid

Places = NDArray[np.floating]

_CHUNK = CHUNK // 4  # if all keypoints are in one place, every distance has to be struck out


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
    chunk: int = _CHUNK,
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
