from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.matching.neighbours import (
    CHECKS,
    FarSecond,
    approximate_nearest,
    match_descriptors,
    two_nearest,
)


def curved(count: int, seed: int) -> np.ndarray:
    """Vectors that have neighbours, as descriptors of photographs do: few degrees of freedom."""
    rng = np.random.default_rng(seed)
    rows = np.tanh(rng.normal(size=(count, 8)) @ np.random.default_rng(9).normal(size=(8, 64)))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def curved_pair(count: int) -> tuple[np.ndarray, np.ndarray]:
    a = curved(count, 0)
    return a, np.ascontiguousarray((a + 0.02 * curved(count, 1))[::-1])


def test_recall_and_exact_distances() -> None:
    a, b = curved_pair(3000)
    index, distance = approximate_nearest(a, b, 2)
    exact, exact_distance = two_nearest(a, b)
    assert (index[:, 0] == exact[:, 0]).mean() > 0.97
    np.testing.assert_allclose(
        distance, np.linalg.norm(a[:, None] - b[index], axis=2), rtol=1e-3, atol=1e-6
    )
    assert (np.diff(distance, axis=1) >= 0).all()
    assert (distance >= exact_distance - 1e-6).all()


def test_small_sets_are_searched_exactly() -> None:
    a, b = curved_pair(CHECKS)
    for size in (1, 2, 3, len(b)):
        index, distance = approximate_nearest(a, b[:size], 2)
        exact, exact_distance = two_nearest(a, b[:size])
        np.testing.assert_array_equal(index, exact[:, : min(size, 2)])
        np.testing.assert_array_equal(distance, exact_distance[:, : min(size, 2)])


@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("fginn", [True, False])
def test_small_sets_match_as_exact_ones(mutual: bool, fginn: bool) -> None:
    a, b = curved_pair(100)
    xy = np.random.default_rng(2).uniform(0, 60, (100, 2))
    for size in (0, 1, 2, 100):
        part = FarSecond(xy, xy[::-1][:size], 10.0) if fginn else None
        expected = match_descriptors(a, b[:size], 0.9, mutual, fginn=part)
        found = match_descriptors(a, b[:size], 0.9, mutual, fginn=part, neighbours="flann")
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)


def test_large_sets_match_nearly_as_exact_ones() -> None:
    a, b = curved_pair(1200)
    xy = np.random.default_rng(2).uniform(0, 240, (1200, 2))
    places = FarSecond(xy, xy[::-1], 10.0)
    for options in ({}, {"fginn": places}, {"symmetric": True, "fginn": places}):
        exact = set(map(tuple, match_descriptors(a, b, 0.9, **options)[0]))
        found = set(map(tuple, match_descriptors(a, b, 0.9, neighbours="flann", **options)[0]))
        assert len(exact) > 300
        assert len(exact & found) > 0.95 * len(exact)
        assert len(found - exact) < 0.05 * len(exact)


def test_all_vectors_the_same() -> None:
    same = np.ones((300, 16), np.float32)
    index, distance = approximate_nearest(same, same, 2)
    assert index.min() >= 0
    assert (distance == 0).all()
    assert len(match_descriptors(same, same, neighbours="flann")[0]) == 0


_DIGEST = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from test_flann import digest
print(digest())
"""


def digest() -> str:
    index, distance = approximate_nearest(*curved_pair(1000), 2)
    return hashlib.sha256(index.tobytes() + distance.tobytes()).hexdigest()


def test_same_input_same_output() -> None:
    first = digest()
    cv2.setRNGSeed(123)  # what else a program does with OpenCV does not matter
    threads = cv2.getNumThreads()
    try:
        for count in (1, 4):
            cv2.setNumThreads(count)
            assert digest() == first
    finally:
        cv2.setNumThreads(threads)
    run = subprocess.run(
        [sys.executable, "-c", _DIGEST, str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "3"},
    )
    assert run.stdout.strip() == first


def test_the_callers_random_numbers_are_left_alone() -> None:
    def draw() -> np.ndarray:
        return cv2.randu(np.zeros((4, 4), np.float32), 0, 1)

    cv2.setRNGSeed(5)
    expected = draw()
    cv2.setRNGSeed(5)
    digest()
    np.testing.assert_array_equal(draw(), expected)


def test_what_cannot_be_searched_is_said() -> None:
    bits = np.zeros((300, 8), np.uint8)
    with pytest.raises(HardnetError, match="packed bits"):
        match_descriptors(bits, bits, neighbours="flann")
    bad = np.full((300, 8), np.nan, np.float32)
    with pytest.raises(HardnetError, match="NaN"):
        approximate_nearest(bad, bad, 2)
