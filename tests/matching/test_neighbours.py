from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from itertools import product

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.matching.neighbours import (
    FarSecond,
    distance_matrix,
    far_second,
    match_descriptors,
    other_nearest,
    pair_distances,
    two_nearest,
    two_nearest_and_back,
)

Make = Callable[[np.random.Generator, int], np.ndarray]
APART = 10.0


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 256, (count, 9), dtype=np.uint8)


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.normal(size=(count, 16)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def long(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of any length, as in folders written by others."""
    return (unit(rng, count) * rng.uniform(0.01, 500, (count, 1))).astype(np.float32)


def far(rng: np.random.Generator, count: int) -> np.ndarray:
    """Far from the origin and close to each other: their squares alone round everything away."""
    return (1000 + rng.normal(0, 0.1, (count, 16))).astype(np.float32)


def whole(rng: np.random.Generator, count: int) -> np.ndarray:
    """Whole numbers: sums are exact, so ties are real ties whatever the order of additions."""
    return rng.integers(0, 3, (count, 4)).astype(np.float32)


KINDS = [bits, unit, long, far]


def slow_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The definition, digit by digit."""
    if x.dtype == np.uint8:
        return float(sum((int(p) ^ int(q)).bit_count() for p, q in zip(x, y, strict=True)))
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)))


def slow_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([[slow_distance(x, y) for y in b] for x in a]).reshape(len(a), len(b))


def slow_match(
    matrix: np.ndarray,
    ratio: float,
    mutual: bool,
    symmetric: bool = False,
    places: FarSecond | None = None,
) -> dict[tuple[int, int], float]:
    """The definition, as loops over all distances: pairs and their scores, best first."""

    def second(row: np.ndarray, first: int, xy: np.ndarray | None) -> float:
        """Nearest other than the first, and farther than ten pixels from it."""
        others = (k for k in range(len(row)) if k != first)
        if xy is not None:
            others = (k for k in others if math.dist(xy[k], xy[first]) > APART)
        return min((row[k] for k in others), default=math.inf) or 1e-30  # no 0 / 0

    found = {}
    for i, row in enumerate(matrix):
        j = int(row.argmin())
        column = matrix[:, j]
        nearest = row[j] or 1e-30
        ratios = [nearest / second(row, j, places and places.xy_b)]
        if symmetric:
            ratios.append(nearest / second(column, i, places and places.xy_a))
        if max(ratios) < ratio and (not mutual or int(column.argmin()) == i):
            found[i, j] = 1 - max(ratios)
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def related(make: Make, n: int = 45, m: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Two sets, some of the second disturbed copies of the first."""
    rng = np.random.default_rng(1)
    a, b = make(rng, n), make(rng, m)
    if b.dtype == np.uint8:
        b[:20] = a[5:25] ^ 3
    else:
        b[:20] = a[5:25] + rng.normal(0, 0.15, (20, a.shape[1])).astype(np.float32)
    return a, b


def crowd(count: int, seed: int = 0) -> np.ndarray:
    """Places in a few clusters: many neighbours of a place are close to it."""
    rng = np.random.default_rng(seed)
    centres = rng.uniform(0, 100, (4, 2))
    return centres[rng.integers(0, 4, count)] + rng.normal(0, 4, (count, 2))


@pytest.mark.parametrize("make", [bits, unit])
@pytest.mark.parametrize("fginn", [True, False])
def test_every_combination_equals_explicit_loops(make: Make, fginn: bool) -> None:
    a, b = related(make)
    matrix = slow_matrix(a, b)
    places = FarSecond(crowd(45), crowd(40, 1), APART) if fginn else None
    for mutual, symmetric, ratio in product((True, False), (True, False), (0.7, 0.93, 1.0)):
        expected = slow_match(matrix, ratio, mutual, symmetric, places)
        indices, scores = match_descriptors(a, b, ratio, mutual, symmetric=symmetric, fginn=places)
        assert 5 < len(expected) < 45 or (ratio, mutual, symmetric) == (1.0, False, False)
        found = dict(zip(map(tuple, indices.tolist()), scores.tolist(), strict=True))
        assert found.keys() == expected.keys()
        np.testing.assert_allclose(list(found.values()), list(expected.values()), atol=1e-5)


@pytest.mark.parametrize("make", KINDS)
def test_distances_equal_explicit_loops(make: Make) -> None:
    rng = np.random.default_rng(0)
    a, b = make(rng, 30), make(rng, 40)
    expected = slow_matrix(a, b)
    exact = make is bits
    matrix, pairs = distance_matrix(a, b), pair_distances(a, b[:30])
    assert matrix.dtype == pairs.dtype == np.float32
    np.testing.assert_allclose(matrix, expected, rtol=0 if exact else 1e-4)
    np.testing.assert_allclose(pairs, np.diag(expected), rtol=0 if exact else 1e-5)
    order = np.argsort(expected, axis=1, kind="stable")[:, :2]
    for chunk in (1, 7, 60, 10**9):
        index, distance = two_nearest(a, b, chunk)
        np.testing.assert_array_equal(index, order)
        np.testing.assert_allclose(distance, np.take_along_axis(expected, order, 1), rtol=1e-5)


@pytest.mark.parametrize("make", [bits, unit])
def test_second_equals_explicit_loops(make: Make) -> None:
    rng = np.random.default_rng(0)
    a, b = make(rng, 60), make(rng, 50)
    xy_b = crowd(50)
    index, distances = two_nearest(a, b)
    second = far_second(a, b, index, distances, xy_b, APART)
    expected = []
    for row in slow_matrix(a, b):
        first = xy_b[row.argmin()]
        distant = (d for d, place in zip(row, xy_b, strict=True) if math.dist(place, first) > APART)
        expected.append(min(distant, default=math.inf))
    np.testing.assert_allclose(second, expected, rtol=1e-5)
    assert (second > distances[:, 1]).any()  # the plain second is too close for some
    assert (second == distances[:, 1]).any()


def test_blocks_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    a, b = whole(rng, 60), whole(rng, 40)
    expected = two_nearest_and_back(a, b)
    first, xy_b = expected[0][:, 0], crowd(40)
    seconds = other_nearest(a, b, first), other_nearest(a, b, first, xy_b, APART)
    for block in (1, 100, 1000, 10**9):
        for one, other in zip(two_nearest_and_back(a, b, block), expected, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(other_nearest(a, b, first, chunk=block), seconds[0])
        np.testing.assert_array_equal(other_nearest(a, b, first, xy_b, APART, block), seconds[1])
    slow = slow_match(slow_matrix(a, b), 1.0, True)
    assert list(map(tuple, match_descriptors(a, b, 1.0, True)[0].tolist())) == list(slow)


def test_of_equal_distances_the_lowest_index_wins() -> None:
    a = np.zeros((2, 2), np.float32)
    b = np.array([[5, 0], [1, 0], [0, 1], [-1, 0]], np.float32)
    for chunk in (1, 2, 100):
        index, distance, back = two_nearest_and_back(a, b, chunk)
        assert index.tolist() == [[1, 2], [1, 2]]
        assert distance.tolist() == [[1, 1], [1, 1]]
        assert back.tolist() == [0, 0, 0, 0]
    assert len(match_descriptors(a, b, ratio=1.0)[0]) == 0  # an exact tie is no match


def test_swapping_the_images_swaps_mutual_matches() -> None:
    a, b = related(unit, 200, 190)
    one, _ = match_descriptors(a, b, ratio=1.0)
    other, _ = match_descriptors(b, a, ratio=1.0)
    assert sorted(one.tolist()) == sorted(other[:, ::-1].tolist())


def test_a_single_candidate_passes_the_ratio_test_and_has_no_second() -> None:
    for make in (bits, unit):
        rng = np.random.default_rng(5)
        a, b = make(rng, 5), make(rng, 1)
        indices, scores = match_descriptors(a, b, ratio=0.8)
        assert indices.shape == (1, 2)
        assert scores.tolist() == [1.0]
        index, distance = two_nearest(a, b)
        assert index.tolist() == [[0, 0]] * 5
        assert np.isfinite(distance[:, 0]).all()
        assert (distance[:, 1] == np.inf).all()


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


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 3), (3, 0), (1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("symmetric", [True, False])
def test_few_descriptors(n: int, m: int, symmetric: bool) -> None:
    rng = np.random.default_rng(3)
    places = FarSecond(np.zeros((n, 2)), np.zeros((m, 2)), APART)  # all in one place
    indices, scores = match_descriptors(
        unit(rng, n), unit(rng, m), 0.8, symmetric=symmetric, fginn=places
    )
    assert indices.shape == (len(scores), 2)
    assert len(indices) == min(n, m, 1) or (n, m) == (2, 2)
    assert (scores == 1).all()  # nothing is a second place


def test_equal_descriptors_are_ambiguous_at_two_places_and_not_at_one() -> None:
    same = np.ones((30, 4), np.float32)
    one, two = np.zeros((30, 2)), np.repeat([[0.0, 0], [90, 0]], 15, 0)
    assert len(match_descriptors(same, same, fginn=FarSecond(two, two, APART))[0]) == 0
    indices, _ = match_descriptors(same, same, fginn=FarSecond(one, one, APART))
    assert indices.tolist() == [[0, 0]]


def test_more_columns_than_one_block() -> None:
    rng = np.random.default_rng(2)
    b = bits(rng, 40_000)
    a = b[[3, 20_000, 39_999]].copy()
    a[:, 0] ^= 1  # one bit off
    index, distance = two_nearest(a, b)
    counts = np.unpackbits(np.bitwise_xor(a[:, None], b), axis=2).sum(2)
    np.testing.assert_array_equal(distance, np.sort(counts, 1)[:, :2])
    np.testing.assert_array_equal(index, np.argsort(counts, 1, kind="stable")[:, :2])
    np.testing.assert_array_equal(distance_matrix(a, b), counts)


def test_near_duplicates_have_exact_distances() -> None:
    a = unit(np.random.default_rng(3), 5)
    b = np.concatenate([a + np.float32(1e-5), a + np.float32(1e-4)])
    steps = np.array([[slow_distance(a[i], b[i]), slow_distance(a[i], b[i + 5])] for i in range(5)])
    _, distance = two_nearest(a, b)
    np.testing.assert_allclose(distance, steps, rtol=1e-5)
    np.testing.assert_allclose(np.diag(distance_matrix(a, b)), steps[:, 0], rtol=1e-5)
    assert (np.diag(distance_matrix(a, a)) == 0).all()


def test_all_vectors_the_same_have_distance_zero() -> None:
    """Ties must be ties: rounding noise would rank a descriptor that says nothing."""
    same = np.repeat(unit(np.random.default_rng(4), 1), 700, axis=0)
    assert (distance_matrix(same, same) == 0).all()
    index, distance = two_nearest(same, same)
    assert (distance == 0).all()
    assert (index == [0, 1]).all()


def test_empty_sets() -> None:
    none, some = np.zeros((0, 8), np.float32), np.ones((3, 8), np.float32)
    assert pair_distances(none, none).shape == (0,)
    assert distance_matrix(none, some).shape == (0, 3)
    assert distance_matrix(some, none).shape == (3, 0)
    assert two_nearest(none, some)[0].shape == (0, 2)
    with pytest.raises(HardnetError, match="no descriptors"):
        two_nearest(some, none)


@pytest.mark.parametrize("compare", [pair_distances, distance_matrix, two_nearest])
@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((2, 8)), np.zeros((2, 9)), r"got \(2, 8\) and \(2, 9\)"),
        (np.zeros(8), np.zeros(8), r"got \(8,\)"),
        (np.zeros((2, 8), np.float32), np.zeros((2, 8), np.uint8), "float32 with uint8"),
        (np.zeros((2, 8), np.int64), np.zeros((2, 8), np.int64), "int64 with int64"),
        (np.full((2, 8), np.nan), np.zeros((2, 8)), "NaN"),
        (np.zeros((2, 8)), np.full((2, 8), np.inf), "infinity"),
        (np.full((2, 8), 1e30), np.zeros((2, 8)), "too large"),
    ],
)
def test_what_cannot_be_compared_is_said(
    compare: Callable[[np.ndarray, np.ndarray], object], a: np.ndarray, b: np.ndarray, message: str
) -> None:
    with pytest.raises(HardnetError, match=message):
        compare(a, b)


def test_pairs_need_equal_numbers() -> None:
    with pytest.raises(HardnetError, match="got 2 and 3"):
        pair_distances(np.zeros((2, 4)), np.zeros((3, 4)))


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    work()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("make", [bits, unit])
def test_memory_does_not_grow_with_the_product(make: Make) -> None:
    rng = np.random.default_rng(6)
    a, b = make(rng, 3000), make(rng, 3000)  # 36 MB as a matrix
    assert peak_of(lambda: two_nearest(a, b, 100_000)) < 4e6


def test_fginn_memory_does_not_grow_with_the_product() -> None:
    """7000 x 7000 distances would be 196 MB; a quarter of the keypoints share their place."""
    rng = np.random.default_rng(4)
    count = 7000
    a = rng.normal(size=(count, 8)).astype(np.float32)
    b = a[::-1] + rng.normal(0, 0.3, (count, 8)).astype(np.float32)
    xy = rng.uniform(0, 4000, (count, 2))
    xy[: count // 4] = xy[0] + rng.normal(0, 1, (count // 4, 2))
    places = FarSecond(xy, xy[::-1], APART)
    assert peak_of(lambda: match_descriptors(a, b, 0.9, fginn=places)) < 120e6
