"""Classical mining against an explicit search, by hand, and what is drawn."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("faiss")

from hardnet.errors import DivergedError, HardnetError, MissingExtraError
from hardnet.learn import batches
from hardnet.learn.batches import mine


def unit(n: int, seed: int, dim: int = 8) -> np.ndarray:
    x = np.random.default_rng(seed).normal(size=(n, dim)).astype(np.float32)
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def on_a_line(*places: float) -> np.ndarray:
    return np.array([[x, 0.0] for x in places], np.float32)


def allowed(descriptors: np.ndarray, points: np.ndarray, i: int, neighbours: int) -> set[int]:
    """The negatives that mining may give patch i, by loops."""
    distances = [float(((d - descriptors[i]) ** 2).sum()) for d in descriptors.astype(np.float64)]
    nearest = sorted(range(len(descriptors)), key=distances.__getitem__)[:neighbours]
    hard = {j for j in nearest if points[j] != points[i]}
    return hard or {j for j in range(len(points)) if points[j] != points[i]}


@pytest.mark.parametrize("neighbours", [2, 5, 12])
def test_draws_from_the_nearest_of_other_points_and_all_of_them(neighbours: int) -> None:
    descriptors, points = unit(60, 1), np.random.default_rng(2).integers(0, 20, 60)
    drawn: list[set[int]] = [set() for _ in range(60)]
    for seed in range(150):
        negatives = mine(descriptors, points, seed, neighbours)
        assert negatives.shape == (60,)
        assert negatives.dtype == np.int64
        for i, j in enumerate(negatives):
            drawn[i].add(int(j))
    for i in range(60):
        hard = allowed(descriptors, points, i, neighbours)
        assert drawn[i] <= hard
        if len(hard) <= 12:  # (11/12)^150 is 2 in a million
            assert drawn[i] == hard


def test_by_hand() -> None:
    # Three neighbours: the patch itself, its partner and the nearest stranger.
    descriptors = on_a_line(0.0, 0.1, 0.5, 0.6, 2.0, 2.1)
    points = np.array([7, 7, 3, 3, 5, 5])
    assert mine(descriptors, points, 0, neighbours=3).tolist() == [2, 2, 1, 1, 3, 3]


def test_each_of_the_hard_ones_equally_often() -> None:
    descriptors, points = on_a_line(0.0, 1.0, 2.0, 3.0, 9.0), np.arange(5)
    drawn = [int(mine(descriptors, points, seed, neighbours=4)[0]) for seed in range(600)]
    counts = np.bincount(drawn, minlength=5)
    assert counts[[0, 4]].tolist() == [0, 0]
    assert (np.abs(counts[1:4] - 200) < 50).all()  # more than four standard deviations


def test_without_a_hard_one_any_other_point_equally_often() -> None:
    descriptors = on_a_line(0.0, 0.1, 0.2, 5.0, 6.0)
    points = np.array([4, 4, 4, 9, 1])  # not in order, and not 0, 1, 2
    drawn = [int(mine(descriptors, points, seed, neighbours=3)[1]) for seed in range(400)]
    counts = np.bincount(drawn, minlength=5)
    assert counts[:3].tolist() == [0, 0, 0]
    assert (np.abs(counts[3:] - 200) < 50).all()


def test_never_the_same_point_even_if_all_patches_look_alike() -> None:
    """A collapsed network: neighbours are any, points still differ."""
    points = np.repeat(np.arange(10), 5)
    negatives = mine(np.ones((50, 4), np.float32), points, 0)
    assert (points[negatives] != points).all()


def test_small_sets_and_many_neighbours() -> None:
    assert mine(unit(2, 1), np.array([0, 1]), 0).tolist() == [1, 0]


def test_seed_decides() -> None:
    descriptors, points = unit(80, 3), np.arange(80) // 2
    first, again, other = (mine(descriptors, points, seed) for seed in (1, 1, 2))
    assert (first == again).all()
    assert (first != other).any()


def test_queries_in_parts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    descriptors, points = unit(90, 4), np.arange(90) // 3
    whole = mine(descriptors, points, 5)
    monkeypatch.setattr(batches, "QUERIES", 32)
    assert (mine(descriptors, points, 5) == whole).all()


def test_errors() -> None:
    with pytest.raises(HardnetError, match="two 3D points"):
        mine(unit(4, 1), np.zeros(4, np.int64), 0)
    with pytest.raises(HardnetError, match="two 3D points"):
        mine(unit(0, 1), np.zeros(0, np.int64), 0)
    broken = unit(4, 1)
    broken[2, 1] = np.nan
    with pytest.raises(DivergedError, match="not finite"):
        mine(broken, np.arange(4), 0)


def test_missing_faiss_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingExtraError, match=r"faiss-cpu .*hardnet\[train\]"):
        mine(unit(4, 1), np.arange(4), 0)


@pytest.mark.slow  # it imports torch
def test_importing_it_does_not_import_faiss() -> None:
    code = "import sys, hardnet.learn.trainer; assert 'faiss' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
