from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hardnet.matching.distances import two_nearest
from hardnet.matching.fginn import far_second, other_nearest
from hardnet.matching.neighbours import FarSecond, match_descriptors

APART = 10.0


def distance(x: np.ndarray, y: np.ndarray) -> float:
    if x.dtype == np.uint8:
        return float(np.unpackbits(x ^ y).sum())
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)))


def vectors(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.normal(size=(count, 6)).astype(np.float32)


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 256, (count, 9), dtype=np.uint8)


def crowd(rng: np.random.Generator, count: int) -> np.ndarray:
    """Places in a few clusters: many neighbours of a place are close to it."""
    centres = rng.uniform(0, 100, (4, 2))
    return centres[rng.integers(0, 4, count)] + rng.normal(0, 4, (count, 2))


def slow_second(a: np.ndarray, b: np.ndarray, xy_b: np.ndarray, i: int) -> tuple[int, float, float]:
    """Nearest neighbour, its distance, and that of the first inconsistent neighbour."""
    row = [distance(a[i], b[j]) for j in range(len(b))]
    first = row.index(min(row))
    far = [
        row[j]
        for j in range(len(b))
        if math.hypot(xy_b[j][0] - xy_b[first][0], xy_b[j][1] - xy_b[first][1]) > APART
    ]
    return first, row[first], min(far, default=math.inf)


@pytest.mark.parametrize("make", [vectors, bits])
def test_second_equals_explicit_loops(make: object) -> None:
    rng = np.random.default_rng(0)
    a, b = make(rng, 60), make(rng, 50)  # type: ignore[operator]
    xy_b = crowd(rng, 50)
    index, distances = two_nearest(a, b)
    second = far_second(a, b, index, distances, xy_b, APART)
    expected = [slow_second(a, b, xy_b, i)[2] for i in range(len(a))]
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    assert (second > distances[:, 1]).any()  # the plain second is too close for some
    assert (second == distances[:, 1]).any()


@pytest.mark.parametrize("make", [vectors, bits])
@pytest.mark.parametrize("mutual", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("fginn", [True, False])
def test_every_combination_equals_explicit_loops(
    make: object, mutual: bool, symmetric: bool, fginn: bool
) -> None:
    rng = np.random.default_rng(1)
    ratio = 0.93
    a, b = make(rng, 45), make(rng, 40)  # type: ignore[operator]
    b[:20] = a[5:25]  # some true matches, disturbed
    b[:20] = b[:20] ^ 3 if b.dtype == np.uint8 else b[:20] + 0.5 * vectors(rng, 20)
    xy_a, xy_b = crowd(rng, 45), crowd(rng, 40)
    apart = APART if fginn else -1.0
    places = FarSecond(xy_a, xy_b, APART) if fginn else None

    def second(from_row: np.ndarray, rows: np.ndarray, xy: np.ndarray, first: int) -> float:
        """Nearest other than the first, and farther than ``apart`` from it."""
        return min(
            (
                distance(from_row, rows[k])
                for k in range(len(rows))
                if k != first and math.dist(xy[k], xy[first]) > apart
            ),
            default=math.inf,
        )

    expected = {}
    for i in range(len(a)):
        row = [distance(a[i], b[j]) for j in range(len(b))]
        j = row.index(min(row))
        column = [distance(a[k], b[j]) for k in range(len(a))]
        ratios = [row[j] / second(a[i], b, xy_b, j)]
        if symmetric:
            ratios.append(row[j] / second(b[j], a, xy_a, i))
        if max(ratios) < ratio and (not mutual or column.index(min(column)) == i):
            expected[i, j] = 1 - max(ratios)
    indices, scores = match_descriptors(a, b, ratio, mutual, symmetric=symmetric, fginn=places)
    assert 5 < len(expected) < 45
    found = {(i, j): s for (i, j), s in zip(indices.tolist(), scores.tolist(), strict=True)}
    assert found.keys() == expected.keys()
    for pair, score in found.items():
        assert score == pytest.approx(expected[pair], abs=1e-5)
    assert (np.diff(scores) <= 0).all()


def test_a_keypoint_found_twice_by_hand() -> None:
    # b0 and b1 are one place, at 0 and 5 px; b2 is another one, 20 px away.
    a = np.array([[0.0, 0]], np.float32)
    b = np.array([[1.0, 0], [0, 1.1], [4, 0]], np.float32)
    xy_b = np.array([[0.0, 0], [5, 0], [20, 0]])
    xy_a = np.zeros((1, 2))
    assert len(match_descriptors(a, b, 0.8)[0]) == 0
    indices, scores = match_descriptors(a, b, 0.8, fginn=FarSecond(xy_a, xy_b, 10))
    assert indices.tolist() == [[0, 0]]
    assert scores.tolist() == [0.75]
    # Exactly ten pixels is not farther than ten.
    xy_b[2] = (10, 0)
    _, scores = match_descriptors(a, b, 0.8, fginn=FarSecond(xy_a, xy_b, 10))
    assert scores.tolist() == [1.0]


def test_other_nearest_by_hand() -> None:
    a = np.array([[0.0], [0.0]], np.float32)
    b = np.array([[1.0], [2.0], [3.0]], np.float32)
    assert other_nearest(a, b, np.array([0, 2])).tolist() == [2, 1]
    assert other_nearest(a, b[:1], np.array([0, 0])).tolist() == [np.inf, np.inf]


@pytest.mark.parametrize("chunk", [1, 7, 100, 10**6])
def test_blocks_do_not_matter(chunk: int) -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.integers(0, 9, (n, 4)).astype(np.float32) for n in (40, 30))
    first = two_nearest(a, b)[0][:, 0]
    xy_b = crowd(rng, 30)
    expected = other_nearest(a, b, first, xy_b, APART)
    np.testing.assert_array_equal(other_nearest(a, b, first, xy_b, APART, chunk), expected)
    np.testing.assert_array_equal(
        other_nearest(a, b, first, chunk=chunk), other_nearest(a, b, first)
    )


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0), (1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_few_descriptors(n: int, m: int, symmetric: bool) -> None:
    rng = np.random.default_rng(3)
    places = FarSecond(np.zeros((n, 2)), np.zeros((m, 2)), APART)  # all in one place
    indices, scores = match_descriptors(
        vectors(rng, n), vectors(rng, m), 0.8, symmetric=symmetric, fginn=places
    )
    assert len(indices) == min(n, m, 1) or (n, m) == (2, 2)
    assert (scores == 1).all()  # nothing is a second place


def test_equal_descriptors_are_ambiguous_at_two_places_and_not_at_one() -> None:
    same = np.ones((30, 4), np.float32)
    one, two = np.zeros((30, 2)), np.repeat([[0.0, 0], [90, 0]], 15, 0)
    assert len(match_descriptors(same, same, fginn=FarSecond(two, two, APART))[0]) == 0
    indices, _ = match_descriptors(same, same, fginn=FarSecond(one, one, APART))
    assert indices.tolist() == [[0, 0]]


def test_memory_does_not_grow_with_the_product() -> None:
    """10,000 x 10,000 distances would be 400 MB; a quarter of the keypoints share their place."""
    rng = np.random.default_rng(4)
    count = 10_000
    a = rng.normal(size=(count, 8)).astype(np.float32)
    b = a[::-1] + rng.normal(0, 0.3, (count, 8)).astype(np.float32)
    xy = rng.uniform(0, 4000, (count, 2))
    xy[: count // 4] = xy[0] + rng.normal(0, 1, (count // 4, 2))
    tracemalloc.start()
    indices, _ = match_descriptors(a, b, 0.9, fginn=FarSecond(xy, xy[::-1], APART))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(indices) > 2500
    assert peak < 120e6
