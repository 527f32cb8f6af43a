from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.matching.neighbours import distance_matrix, pair_distances, two_nearest


def slow_distance(x: np.ndarray, y: np.ndarray) -> float:
    """The definition, digit by digit."""
    if x.dtype == np.uint8:
        pairs = zip(x, y, strict=True)
        return float(sum(bin(int(p)).count("1") for p in (int(i) ^ int(j) for i, j in pairs)))
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)))


def slow_matrix(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.array([[slow_distance(x, y) for y in b] for x in a]).reshape(len(a), len(b))


def bits(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 256, (count, 5), dtype=np.uint8)


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    vectors = rng.normal(size=(count, 16)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def long(rng: np.random.Generator, count: int) -> np.ndarray:
    """Of any length, as in folders written by others."""
    return (unit(rng, count) * rng.uniform(0.01, 500, (count, 1))).astype(np.float32)


def far(rng: np.random.Generator, count: int) -> np.ndarray:
    """Far from the origin and close to each other: their squares alone round everything away."""
    return (1000 + rng.normal(0, 0.1, (count, 16))).astype(np.float32)


KINDS = [bits, unit, long, far]
Make = Callable[[np.random.Generator, int], np.ndarray]


@pytest.mark.parametrize("make", KINDS)
def test_pairs_and_matrix_equal_explicit_loops(make: Make) -> None:
    rng = np.random.default_rng(0)
    a, b = make(rng, 33), make(rng, 47)
    expected = slow_matrix(a, b)
    exact = make is bits
    matrix, pairs = distance_matrix(a, b), pair_distances(a, b[:33])
    assert matrix.dtype == pairs.dtype == np.float32
    np.testing.assert_allclose(matrix, expected, rtol=0 if exact else 1e-4)
    np.testing.assert_allclose(pairs, np.diag(expected), rtol=0 if exact else 1e-5)


@pytest.mark.parametrize("make", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 60, 10**9])
def test_two_nearest_equal_explicit_loops(make: Make, chunk: int) -> None:
    rng = np.random.default_rng(1)
    a, b = make(rng, 30), make(rng, 40)
    index, distance = two_nearest(a, b, chunk)
    expected = slow_matrix(a, b)
    for i, row in enumerate(expected):
        order = sorted(range(len(b)), key=lambda j: (row[j], j))[:2]
        assert index[i].tolist() == order
        np.testing.assert_allclose(distance[i], row[order], rtol=1e-5)


def test_more_columns_than_one_block() -> None:
    rng = np.random.default_rng(2)
    b = bits(rng, 40_000)
    a = b[[3, 20_000, 39_999]].copy()
    a[:, 0] ^= 1  # one bit off
    index, distance = two_nearest(a, b)
    expected = np.bitwise_xor(a[:, None], b)
    counts = np.unpackbits(expected, axis=2).sum(2)
    np.testing.assert_array_equal(distance, np.sort(counts, 1)[:, :2])
    np.testing.assert_array_equal(index, np.argsort(counts, 1, kind="stable")[:, :2])
    np.testing.assert_array_equal(distance_matrix(a, b), counts)


def test_of_equal_distances_the_lowest_index_wins() -> None:
    a = np.zeros((2, 2), np.float32)
    b = np.array([[5, 0], [1, 0], [0, 1], [-1, 0]], np.float32)
    for chunk in (1, 2, 100):
        index, distance = two_nearest(a, b, chunk)
        assert index.tolist() == [[1, 2], [1, 2]]
        assert distance.tolist() == [[1, 1], [1, 1]]


def test_near_duplicates_have_exact_distances() -> None:
    rng = np.random.default_rng(3)
    a = unit(rng, 5)
    b = np.concatenate([a + np.float32(1e-5), a + np.float32(1e-4)])
    steps = np.array([[slow_distance(a[i], b[i]), slow_distance(a[i], b[i + 5])] for i in range(5)])
    _, distance = two_nearest(a, b)
    np.testing.assert_allclose(distance, steps, rtol=1e-5)
    matrix = distance_matrix(a, b)
    np.testing.assert_allclose(np.diag(matrix), steps[:, 0], rtol=1e-5)
    assert (np.diag(distance_matrix(a, a)) == 0).all()


def test_all_vectors_the_same_have_distance_zero() -> None:
    """Ties must be ties: rounding noise would rank a descriptor that says nothing."""
    same = np.repeat(unit(np.random.default_rng(4), 1), 700, axis=0)
    assert (distance_matrix(same, same) == 0).all()
    index, distance = two_nearest(same, same)
    assert (distance == 0).all()
    assert (index == [0, 1]).all()


def test_one_candidate_has_no_second() -> None:
    for make in (bits, unit):
        rng = np.random.default_rng(5)
        index, distance = two_nearest(make(rng, 3), make(rng, 1))
        assert index.tolist() == [[0, 0]] * 3
        assert np.isfinite(distance[:, 0]).all()
        assert (distance[:, 1] == np.inf).all()


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


@pytest.mark.parametrize("make", [bits, unit])
def test_memory_does_not_grow_with_the_product(make: Make) -> None:
    rng = np.random.default_rng(6)
    a, b = make(rng, 4000), make(rng, 4000)  # 64 MB as a matrix
    tracemalloc.start()
    two_nearest(a, b, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6
