"""Which points of the plane are near which: a grid of cells, sorted, so that lookups are arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]

_MARGIN = 3  # empty cells on each side: the neighbours of a cell never wrap to the next row


class Grid:
    """Points in cells of one radius; those near a query are in the 3 x 3 cells around it."""

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
