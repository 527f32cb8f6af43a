from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hardnet.matching.geometry import Grid
from hardnet.matching.neighbours import (
    FarSecond,
    far_second,
    match_descriptors,
    other_nearest,
    two_nearest,
    two_nearest_and_back,
)


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def related(count: int, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Two sets, the second a noisy shuffle of the first: some matches are good, some are not."""
    rng = np.random.default_rng(seed)
    a = unit(count, 16, seed)
    b = a[rng.permutation(count)] + noise * unit(count, 16, seed + 1)
    return a, b[: count - 7].astype(np.float32)


def distance(x: np.ndarray, y: np.ndarray) -> float:
    if x.dtype == np.uint8:
        return float(np.unpackbits(x ^ y).sum())
    return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)))


def slow_match(
    a: np.ndarray, b: np.ndarray, ratio: float, mutual: bool
) -> list[tuple[int, int, float]]:
    """The definition, as loops."""

    found = []
    for i in range(len(a)):
        row = [distance(a[i], b[j]) for j in range(len(b))]
        best = row.index(min(row))
        second = min((d for j, d in enumerate(row) if j != best), default=math.inf)
        if not row[best] < ratio * second:
            continue
        if mutual:
            column = [distance(a[k], b[best]) for k in range(len(a))]
            if column.index(min(column)) != i:
                continue
        found.append((i, best, 1 - row[best] / second))
    return sorted(found, key=lambda m: -m[2])


@pytest.mark.parametrize("ratio", [0.7, 0.9, 1.0])
@pytest.mark.parametrize("mutual", [True, False])
def test_equals_explicit_loops(ratio: float, mutual: bool) -> None:
    a, b = related(60)
    slow = slow_match(a, b, ratio, mutual)
    indices, scores = match_descriptors(a, b, ratio, mutual)
    assert 5 < len(slow) < 60 or (ratio, mutual) == (1.0, False)
    assert indices.tolist() == [[i, j] for i, j, _ in slow]
    np.testing.assert_allclose(scores, [s for _, _, s in slow], atol=1e-5)


@pytest.mark.parametrize("ratio", [0.8, 1.0])
def test_packed_bits_are_matched_by_hamming_distance(ratio: float) -> None:
    rng = np.random.default_rng(7)
    a = rng.integers(0, 256, (60, 8), dtype=np.uint8)
    flips = np.packbits(rng.random((60, 64)) < 0.25, axis=1)
    b = (a[rng.permutation(60)] ^ flips)[:50]
    slow = slow_match(a, b, ratio, True)
    assert 5 < len(slow) < 50
    indices, scores = match_descriptors(a, b, ratio, True)
    assert {(i, j) for i, j, _ in slow} == {(i, j) for i, j in indices.tolist()}
    np.testing.assert_allclose(scores, [s for _, _, s in slow], atol=1e-6)


@pytest.mark.parametrize("block", [1, 100, 1000, 10**9])
def test_blocks_do_not_matter(block: int) -> None:
    # Whole numbers: sums are exact, so ties are real ties whatever the order of additions.
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 3, (n, 4)).astype(np.float32) for n in (60, 40))
    expected = two_nearest_and_back(a, b)
    for one, other in zip(two_nearest_and_back(a, b, block), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    slow = [[i, j] for i, j, _ in slow_match(a, b, 1.0, True)]
    assert match_descriptors(a, b, 1.0, True)[0].tolist() == slow


def test_of_equal_distances_the_lowest_index_wins() -> None:
    a = np.array([[0.0, 0], [0, 0]], np.float32)
    b = np.array([[5.0, 0], [1, 0], [0, 1]], np.float32)
    index, distances, back = two_nearest_and_back(a, b)
    assert index.tolist() == [[1, 2], [1, 2]]
    assert back.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(distances, [[1, 1], [1, 1]])
    assert len(match_descriptors(a, b, ratio=1.0)[0]) == 0  # an exact tie is no match


def test_swapping_the_images_swaps_mutual_matches() -> None:
    a, b = related(200, noise=0.2)
    one, _ = match_descriptors(a, b, ratio=1.0)
    other, _ = match_descriptors(b, a, ratio=1.0)
    assert sorted(one.tolist()) == sorted(other[:, ::-1].tolist())


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 5), (5, 0)])
def test_empty_sets(n: int, m: int) -> None:
    indices, scores = match_descriptors(np.zeros((n, 8), np.float32), np.zeros((m, 8), np.float32))
    assert indices.shape == (0, 2)
    assert scores.shape == (0,)


def test_a_single_candidate_passes_the_ratio_test() -> None:
    indices, scores = match_descriptors(unit(5, 8, 0), unit(1, 8, 1), ratio=0.8)
    assert indices.shape == (1, 2)
    assert scores.tolist() == [1.0]


APART = 10.0


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
def test_fginn_blocks_do_not_matter(chunk: int) -> None:
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


def test_fginn_memory_does_not_grow_with_the_product() -> None:
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


def slow_near(queries: np.ndarray, points: np.ndarray, radius: float) -> set[tuple[int, int]]:
    return {
        (q, p)
        for q in range(len(queries))
        for p in range(len(points))
        if (queries[q][0] - points[p][0]) ** 2 + (queries[q][1] - points[p][1]) ** 2 <= radius**2
    }


@pytest.mark.parametrize("radius", [0.5, 3.0, 40.0, 1000.0])
def test_grid_equals_explicit_loops(radius: float) -> None:
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
