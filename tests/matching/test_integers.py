from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hardnet.matching import neighbours
from hardnet.matching.integers import GROUP, IntegerProduct, _model, largest_products
from hardnet.matching.neighbours import match_descriptors, two_nearest_and_back


@pytest.mark.parametrize(("rows", "words", "dim"), [(1, 1, 1), (5, 64, 128), (3, 200, 37)])
def test_products_are_exact(rows, words, dim):
    rng = np.random.default_rng(dim)
    a = rng.integers(0, 128, (rows, dim)).astype(np.uint8)
    b = rng.integers(-127, 128, (words, dim)).astype(np.int8)
    expected = a.astype(np.int64) @ b.T.astype(np.int64)
    assert np.array_equal(IntegerProduct(b)(a), expected)
    assert np.array_equal(IntegerProduct()(a, b), expected)


def test_largest_values_do_not_overflow():
    a = np.full((2, 128), 127, np.uint8)
    for value in (-127, 127):
        product = IntegerProduct(np.full((64, 128), value, np.int8))(a)
        assert (product == 128 * 127 * value).all()


def test_the_bytes_are_a_valid_onnx_file():
    onnx = pytest.importorskip("onnx")
    words = np.arange(-100, 100, dtype=np.int8).reshape(50, 4)
    model = onnx.load_from_string(_model(words, 0))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMulInteger"]
    constant = onnx.numpy_helper.to_array(model.graph.initializer[1])
    assert np.array_equal(constant, words.T)
    onnx.checker.check_model(onnx.load_from_string(_model(None, 64)), full_check=True)


def test_what_counts_as_zero():
    rows = np.array([[64, 127, 1]], np.uint8)
    words = np.array([[5, 2, 1], [-100, 0, 1]], np.int8)
    assert IntegerProduct(zero=64)(rows, words).tolist() == [[2 * 63 - 63, -63]]


def unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def related(rows: int, columns: int, dim: int = 128) -> tuple[np.ndarray, np.ndarray]:
    """Unit vectors of which half have a counterpart, some a near duplicate as well."""
    rng = np.random.default_rng(rows + dim)
    a, b = rng.normal(size=(rows, dim)), rng.normal(size=(columns, dim))
    shared = min(rows, columns) // 2
    b[:shared] = a[:shared] + rng.normal(size=(shared, dim)) * rng.uniform(0, 1.2, (shared, 1))
    b[-50:] = b[:50] + 0.01 * rng.normal(size=(50, dim))
    return unit(a), unit(rng.permutation(b))


def slow_match(
    nearest: tuple[np.ndarray, ...], ratio: float, mutual: bool
) -> tuple[np.ndarray, np.ndarray]:
    index, distances, back = nearest
    keep = distances[:, 0] < ratio * distances[:, 1]
    if mutual:
        keep &= back[index[:, 0]] == np.arange(len(index))
    rows = np.flatnonzero(keep)
    scores = 1 - distances[rows, 0] / distances[rows, 1]
    order = np.argsort(-scores, kind="stable")
    return np.stack([rows, index[rows, 0]], 1)[order], scores[order]


@pytest.mark.parametrize(("rows", "columns", "dim"), [(3000, 3001, 128), (2700, 3400, 32)])
def test_large_sets_match_as_by_all_distances(rows, columns, dim):
    assert rows * columns in neighbours.MANY
    a, b = related(rows, columns, dim)
    nearest = two_nearest_and_back(a, b)
    for ratio, mutual in product((0.7, 0.9, 1.0), (True, False)):
        pairs, scores = match_descriptors(a, b, ratio, mutual)
        expected, expected_scores = slow_match(nearest, ratio, mutual)
        assert len(pairs) > 500
        assert np.array_equal(pairs, expected)
        assert np.array_equal(scores, expected_scores)


def test_vectors_of_any_length_and_bits_match_as_by_all_distances():
    a, b = related(3000, 3000)
    bits_a, bits_b = (np.packbits(rows > 0, axis=1) for rows in (a, b))
    for one, other in ((3 * a, 3 * b), (bits_a, bits_b)):
        pairs, _ = match_descriptors(one, other)
        expected, _ = slow_match(two_nearest_and_back(one, other), neighbours.RATIO, True)
        assert np.array_equal(pairs, expected)


def test_largest_products_are_those_of_the_vectors():
    a, b = related(700, 1500)
    found = largest_products(a, b)
    assert found is not None
    exact = a.astype(np.float64) @ b.T.astype(np.float64) * found.one
    of_a = np.maximum.reduceat(exact, np.arange(0, 1500, GROUP), axis=1)
    of_b = np.maximum.reduceat(exact, np.arange(0, 700, GROUP), axis=0)
    assert np.abs(found.of_a - of_a).max() < found.slack
    assert np.abs(found.of_b - of_b).max() < found.slack
    assert found.slack < 0.02 * found.one


def test_only_unit_vectors_are_multiplied():
    a, b = related(300, 300)
    assert largest_products(2 * a, b) is None
    a[7, 3] = np.nan
    assert largest_products(a, b) is None
