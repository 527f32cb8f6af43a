from __future__ import annotations

import numpy as np
import pytest

from hardnet.retrieval.assignment import IntegerProduct, _model


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
    model = onnx.load_from_string(_model(words))
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMulInteger"]
    constant = onnx.numpy_helper.to_array(model.graph.initializer[0])
    assert np.array_equal(constant, words.T)
    onnx.checker.check_model(onnx.load_from_string(_model(None)), full_check=True)
