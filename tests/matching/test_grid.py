from __future__ import annotations

import numpy as np
import pytest

from hardnet.matching.grid import Grid


def slow_near(queries: np.ndarray, points: np.ndarray, radius: float) -> set[tuple[int, int]]:
    return {
        (q, p)
        for q in range(len(queries))
        for p in range(len(points))
        if (queries[q][0] - points[p][0]) ** 2 + (queries[q][1] - points[p][1]) ** 2 <= radius**2
    }


@pytest.mark.parametrize("radius", [0.5, 3.0, 40.0, 1000.0])
def test_equals_explicit_loops(radius: float) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-50, 100, (80, 2))
    queries = rng.uniform(-200, 200, (70, 2))
    query, point = Grid(points, radius).near(queries)
    pairs = list(zip(query.tolist(), point.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == slow_near(queries, points, radius)


def test_the_radius_itself_is_near() -> None:
    query, point = Grid([[0.0, 0], [3, 4], [6, 8]], 5.0).near([[0.0, 0]])
    assert query.tolist() == [0, 0]
    assert sorted(point.tolist()) == [0, 1]


def test_rows_do_not_wrap() -> None:
    # The last cell of one row and the first of the next are neighbours in memory only.
    points = np.array([[0.0, 0], [9, 0], [0, 1], [9, 1]])
    query, point = Grid(points, 1.0).near(points)
    assert sorted(zip(query.tolist(), point.tolist(), strict=True)) == [
        (0, 0), (0, 2), (1, 1), (1, 3), (2, 0), (2, 2), (3, 1), (3, 3),
    ]  # fmt: skip


def test_what_is_not_finite_is_near_nothing() -> None:
    query, point = Grid([[0.0, 0]], 2.0).near([[np.nan, 0], [0, 1], [np.inf, 0], [-1e300, 0]])
    assert query.tolist() == [1]
    assert point.tolist() == [0]


def test_nothing_is_near_nothing() -> None:
    for points, queries in ((np.zeros((0, 2)), np.zeros((3, 2))), (np.zeros((3, 2)), [])):
        query, point = Grid(points, 1.0).near(queries)
        assert query.shape == point.shape == (0,)
