from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hardnet.matching import duplicates
from hardnet.matching.duplicates import without_duplicates


def slow(a: np.ndarray, b: np.ndarray, pixels: float) -> list[int]:
    """From the best match on: keep it unless it repeats one that is kept."""
    kept: list[int] = []
    for i in range(len(a)):
        if all(math.dist(a[i], a[k]) > pixels or math.dist(b[i], b[k]) > pixels for k in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("block", [1, 7, 64, 1024])
@pytest.mark.parametrize("side", [3.0, 15.0, 200.0])
def test_equals_explicit_loops(block: int, side: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duplicates, "_BLOCK", block)
    rng = np.random.default_rng(0)
    a = rng.uniform(0, side, (300, 2))
    b = a * 1.2 + rng.normal(0, 1.5, (300, 2))
    expected = slow(a, b, 2.0)
    assert 1 < len(expected) < 300 or side == 200
    assert without_duplicates(a, b, 2.0).tolist() == expected


def test_by_hand() -> None:
    # 1 repeats 0. 2 repeats 1, which is gone, and not 0: it stays. 3 is elsewhere in b.
    a = np.array([[0.0, 0], [1.5, 0], [3, 0], [0, 0]])
    b = np.array([[0.0, 0], [0, 2], [0, 3], [9, 9]])
    assert without_duplicates(a, b, 2.0).tolist() == [0, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_all_in_one_place(count: int) -> None:
    place = np.ones((count, 2), np.float32)
    assert without_duplicates(place, place, 2.0).tolist() == [0][:count]


def test_memory_does_not_grow_with_the_square() -> None:
    rng = np.random.default_rng(1)
    a = rng.uniform(0, 2000, (20_000, 2))
    a[:10_000] = rng.uniform(0, 3, (10_000, 2))  # half of them in one place of both images
    tracemalloc.start()
    kept = without_duplicates(a, a, 2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 5000 < len(kept) < 10_020
    assert peak < 150e6
