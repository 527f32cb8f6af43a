from __future__ import annotations

import cv2
import numpy as np
import pytest

from hardnet.retrieval.vocabulary import (
    FEW,
    PRODUCTS,
    Assigner,
    IntegerScores,
    project,
    promising,
)


def _clusters(words, rows, dim, seed=0):
    """Words of different lengths, and rows of unit length around them."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(words, dim)).astype(np.float32)
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    around = centres[rng.integers(words, size=rows)]
    around = around + 0.09 * rng.normal(size=(rows, dim)).astype(np.float32)
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return centres * rng.uniform(0.5, 1, (words, 1)).astype(np.float32), around


def _reference(words, rows, count):
    """All distances, in double precision."""
    words, rows = words.astype(np.float64), rows.astype(np.float64)
    squares = (rows**2).sum(1)[:, None] - 2 * rows @ words.T + (words**2).sum(1)
    return np.argsort(squares, axis=1, kind="stable")[:, :count]


@pytest.mark.parametrize(
    ("words", "dim"),
    [(1, 128), (FEW, 128), (FEW + 1, 24), (FEW + 64, 128), (1000, 128), (8300, 128)],
)
@pytest.mark.parametrize("count", [1, 3])
def test_nearest_words_are_those_of_all_distances(words, dim, count):
    centres, rows = _clusters(words, 300, dim)
    found = Assigner(centres)(rows, count)
    assert found.dtype == np.int32
    assert found.shape == (300, min(count, words))
    assert (found == _reference(centres, rows, count)).mean() > 0.999


def test_length_of_a_word_counts():
    """The nearest word is not the one with the largest product."""
    words = np.array([[2, 0], [0.6, 0.3]], np.float32)
    assert Assigner(words)(np.array([[1, 0]], np.float32), 2).tolist() == [[1, 0]]


def test_more_words_wanted_than_there_are():
    centres, rows = _clusters(3, 10, 128)
    found = Assigner(centres)(rows, 5)
    assert np.array_equal(np.sort(found, axis=1), np.tile([0, 1, 2], (10, 1)))


def test_of_equal_words_the_first():
    for count in (20, 200):
        centres, rows = _clusters(count, 50, 128)
        twice = np.concatenate([centres, centres])
        found = Assigner(twice)(rows, 2)
        assert (found[:, 0] < count).all()
        assert np.array_equal(found[:, 1], found[:, 0] + count)


def test_no_rows():
    assert Assigner(_clusters(5, 1, 128)[0])(np.zeros((0, 128), np.float32), 3).shape == (0, 3)


def test_a_zero_row_has_the_shortest_word():
    centres, _ = _clusters(FEW + 1, 1, 128)
    found = Assigner(centres)(np.zeros((1, 128), np.float32))
    assert found[0, 0] == np.linalg.norm(centres, axis=1).argmin()


def test_result_depends_neither_on_threads_nor_on_the_other_rows():
    centres, rows = _clusters(500, 2 * PRODUCTS // 500 + 7, 128)
    assign = Assigner(centres)
    everyone = assign(rows, 3)
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(3 - min(threads, 2))
        assert np.array_equal(assign(rows, 3), everyone)
    finally:
        cv2.setNumThreads(threads)
    assert np.array_equal(np.concatenate([assign(rows[:5], 3), assign(rows[5:], 3)]), everyone)


@pytest.mark.parametrize("words", [30, 1000])
def test_rough_words_are_mostly_the_nearest(words):
    centres, rows = _clusters(words, 300, 128)
    found = Assigner(centres).roughly(rows)
    assert found.dtype == np.int32
    assert (found == _reference(centres, rows, 1)[:, 0]).mean() > 0.97


@pytest.mark.parametrize("scale", [0.01, 1, 30])
def test_integer_scores_order_words_as_distances_do(scale):
    """Also where what a word's length and its sum add needs several columns."""
    centres, rows = _clusters(400, 60, 128)
    centres[:, :40] += 0.3  # large sums
    words = (scale * centres).astype(np.float32)
    rows = (scale * rows).astype(np.float32)
    integer = IntegerScores(words)
    scores = integer.rows(rows).astype(np.float64) @ integer.words.T
    exact = rows.astype(np.float64) @ words.T - (words.astype(np.float64) ** 2).sum(1) / 2
    for one, other in zip(scores, exact, strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.999


@pytest.mark.parametrize(("columns", "count"), [(1, 1), (5, 5), (5, 9), (300, 4), (5000, 11)])
def test_promising_columns_are_the_best_and_few_more(columns, count):
    scores = np.random.default_rng(0).integers(-50, 50, (20, columns)).astype(np.int32) * 1000
    scores += np.arange(columns, dtype=np.int32) % 1000
    row, column = promising(scores, count)
    for n in range(20):
        found = column[row == n]
        best = set(np.argsort(-scores[n], kind="stable")[:count].tolist())
        assert best <= set(found.tolist())
        assert len(found) <= max(3 * count, 12)
        assert (np.diff(found) > 0).all()


def test_rows_far_outside_the_words_are_still_assigned():
    """Their integers are clipped; the direction that is left decides among the candidates."""
    rows = np.eye(FEW + 44, 320, dtype=np.float32)
    assert Assigner(rows * np.float32(0.1))(rows)[:, 0].tolist() == list(range(FEW + 44))


def test_few_words_are_exact_however_short_they_are():
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(2000, 128)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    words = np.stack([part.mean(axis=0) for part in np.array_split(rows, 16)])
    assert np.abs(words).max() < np.abs(rows).max() / 2
    assert (Assigner(words)(rows, 3) == _reference(words, rows, 3)).mean() > 0.9999


def _flat_clusters(words, rows, seed=0):
    """Words and rows that differ along the first axes most, as those of photographs do."""
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.normal(size=(128, 128)))[0]
    strength = np.exp(-np.arange(128) / 30)
    centres = (rng.normal(size=(words, 128)) * strength) @ turn
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    around = centres[rng.integers(words, size=rows)]
    around = around + 0.3 * (rng.normal(size=(rows, 128)) * strength) @ turn / 4
    around /= np.linalg.norm(around, axis=1, keepdims=True)
    return (0.7 * centres).astype(np.float32), around.astype(np.float32)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_several_words_among_neighbours(count):
    centres, rows = _flat_clusters(3000, 400)
    found = Assigner(centres)(rows, count)
    wanted = _reference(centres, rows, count)
    same = [len(set(a) & set(b)) / count for a, b in zip(found, wanted, strict=True)]
    assert np.mean(same) > 0.995


@pytest.mark.parametrize("dim", [1, 4, 30])
def test_projection_is_the_sum_of_products(dim):
    rng = np.random.default_rng(dim)
    rows, axes = rng.normal(size=(5, dim)), rng.normal(size=(dim, 16))
    found = project(rows.astype(np.float32), axes.astype(np.float32))
    for n in range(5):
        for k in range(16):
            total = sum(rows[n, d] * axes[d, k] for d in range(dim))
            assert abs(found[n, k] - total) < 1e-5
    alone = project(rows[3:4].astype(np.float32), axes.astype(np.float32))
    assert np.array_equal(alone[0], found[3])
