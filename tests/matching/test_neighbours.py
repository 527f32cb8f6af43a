from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.matching.distances import two_nearest_and_back
from hardnet.matching.neighbours import match_descriptors


def unit(count: int, dim: int, seed: int) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(count, dim)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def related(count: int, seed: int = 0, noise: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    """Two sets, the second a noisy shuffle of the first: some matches are good, some are not."""
    rng = np.random.default_rng(seed)
    a = unit(count, 16, seed)
    b = a[rng.permutation(count)] + noise * unit(count, 16, seed + 1)
    return a, b[: count - 7].astype(np.float32)


def slow_match(
    a: np.ndarray, b: np.ndarray, ratio: float, mutual: bool
) -> list[tuple[int, int, float]]:
    """The definition, as loops."""

    def distance(x: np.ndarray, y: np.ndarray) -> float:
        if x.dtype == np.uint8:
            return float(np.unpackbits(x ^ y).sum())
        return math.sqrt(sum((float(p) - float(q)) ** 2 for p, q in zip(x, y, strict=True)))

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
@pytest.mark.parametrize("chunk", [50, 10**9])
def test_packed_bits_are_matched_by_hamming_distance(ratio: float, chunk: int) -> None:
    rng = np.random.default_rng(7)
    a = rng.integers(0, 256, (60, 8), dtype=np.uint8)
    flips = np.packbits(rng.random((60, 64)) < 0.25, axis=1)
    b = (a[rng.permutation(60)] ^ flips)[:50]
    slow = slow_match(a, b, ratio, True)
    assert 5 < len(slow) < 50
    indices, scores = match_descriptors(a, b, ratio, True, chunk)
    assert {(i, j) for i, j, _ in slow} == {(i, j) for i, j in indices.tolist()}
    np.testing.assert_allclose(scores, [s for _, _, s in slow], atol=1e-6)


@pytest.mark.parametrize("block", [1, 100, 1000, 10**9])
def test_blocks_do_not_matter(block: int) -> None:
    # Whole numbers: sums are exact, so ties are real ties whatever the order of additions.
    rng = np.random.default_rng(3)
    a, b = (rng.integers(0, 3, (n, 4)).astype(np.float32) for n in (150, 90))
    expected = two_nearest_and_back(a, b)
    for one, other in zip(two_nearest_and_back(a, b, block), expected, strict=True):
        np.testing.assert_array_equal(one, other)
    slow = [[i, j] for i, j, _ in slow_match(a, b, 1.0, True)]
    assert match_descriptors(a, b, 1.0, True, block)[0].tolist() == slow


def test_of_equal_distances_the_lowest_index_wins() -> None:
    a = np.array([[0.0, 0], [0, 0]], np.float32)
    b = np.array([[5.0, 0], [1, 0], [0, 1]], np.float32)
    index, distances, back = two_nearest_and_back(a, b)
    assert index.tolist() == [[1, 2], [1, 2]]
    assert back.tolist() == [0, 0, 0]
    np.testing.assert_array_equal(distances, [[1, 1], [1, 1]])
    assert len(match_descriptors(a, b, ratio=1.0)[0]) == 0  # an exact tie is no match


def test_near_duplicates_have_exact_distances() -> None:
    a = unit(1, 128, 0)
    b = np.concatenate([a + 1e-5, a + 1e-4, unit(5, 128, 1)])
    _, distances, _ = two_nearest_and_back(a, b)
    np.testing.assert_allclose(distances[0], np.sqrt(128) * np.array([1e-5, 1e-4]), rtol=0.01)


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


def test_different_dimensions_are_refused() -> None:
    with pytest.raises(HardnetError, match=r"\(3, 8\) and \(3, 9\)"):
        match_descriptors(unit(3, 8, 0), unit(3, 9, 0))


def test_memory_does_not_grow_with_the_product() -> None:
    a, b = unit(4000, 8, 0), unit(4000, 8, 1)  # 64 MB as a matrix
    tracemalloc.start()
    two_nearest_and_back(a, b, 100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4e6
