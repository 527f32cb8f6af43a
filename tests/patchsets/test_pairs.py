"""Training batches."""

from __future__ import annotations

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.pairs import PairSampler


def test_one_pair_per_point_two_distinct_patches() -> None:
    rng = np.random.default_rng(0)
    points = rng.permutation(np.repeat(np.arange(50), rng.integers(1, 6, 50)))
    sampler = PairSampler(points, 20, seed=3)
    singles = {p for p in range(50) if (points == p).sum() == 1}
    drawn = set()
    for step in range(200):
        a, b = sampler(step)
        assert (points[a] == points[b]).all()
        assert (a != b).all()
        assert len(set(points[a])) == 20
        drawn |= set(points[a]) | set(zip(a, b, strict=True))
    assert not singles & drawn
    # Every point and every ordered pair of patches is reachable, the last ones included.
    for p in set(range(50)) - singles:
        members = np.flatnonzero(points == p)
        assert p in drawn
        assert {(x, y) for x in members for y in members if x != y} <= drawn


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    points = np.repeat(np.arange(30), 3)
    one, other = PairSampler(points, 8, 1), PairSampler(points, 8, 2)
    again = PairSampler(points, 8, 1)
    one(0)
    assert np.array_equal(one(7), again(7))
    assert not np.array_equal(one(7), one(8))
    assert not np.array_equal(one(7), other(7))


def test_points_are_drawn_evenly_whatever_their_size() -> None:
    points = np.repeat([0, 1, 2, 3], [2, 2, 40, 2])
    sampler = PairSampler(points, 2, 0)
    counts = np.zeros(4)
    for step in range(2000):
        counts[points[sampler(step)[0]]] += 1
    assert np.abs(counts / counts.sum() - 0.25).max() < 0.03


def test_too_large_a_batch_is_refused() -> None:
    with pytest.raises(HardnetError, match="a batch of 5"):
        PairSampler(np.repeat(np.arange(4), 2), 5, 0)
