"""Products of vectors in 8-bit integers: several times faster than in floats, with a known error.

:func:`largest_products` tells in which part of a large set the neighbours of a vector can be, so
exact distances are needed only there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
Products = NDArray[np.int32]

GROUP = 256  # vectors of a set that are searched together, or not at all
_NOT_UNIT = 1e-3  # squared lengths of unit vectors differ from 1 by no more than this
_STEP = 4 * GROUP  # rows of b per product: with a group of a, 1 MB, which stays in the cache
_SIGMAS = 6.0  # larger errors than this many standard deviations do not occur
_ROW_LARGEST, _WORD_LARGEST = 63, 127
_ZERO = 64  # rows are moved from -63..63 to 1..127
_IR_VERSION, _OPSET = 8, 17  # of March 2022; read by every onnxruntime the package allows
_UINT8, _INT8, _INT32 = 2, 3, 6  # onnx.TensorProto.DataType


@dataclass(frozen=True, eq=False)
class LargestProducts:
    """The largest products of each vector with the groups of the other set, as integers."""

    of_a: Products  # (N, groups of b)
    of_b: Products  # (groups of a, M)
    one: float  # the integer that stands for a product of 1
    slack: float  # integers are no farther than this from what they stand for

    def candidates(self, ratio: float) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Rows (K,) of a that can pass the ratio test, and (K, groups) where their two nearest are.

        The two nearest neighbours of all other rows are too close together, however the products
        were rounded.
        """
        second, first = np.partition(self.of_a, -2, axis=1)[:, -2:].T.astype(np.float64)
        # Half the squared distance of unit vectors is one minus their product.
        least, most = self.one - first - self.slack, self.one - second + self.slack
        rows = np.flatnonzero(least < ratio**2 * most)
        return rows, self.of_a[rows] >= (second[rows] - 2 * self.slack)[:, None]

    def places_back(self, rows: NDArray[np.intp]) -> NDArray[np.bool_]:
        """(K, groups) where the nearest neighbours in a of these rows (K,) of b are."""
        products = self.of_b[:, rows].T
        return np.asarray(products >= (products.max(1) - 2 * self.slack)[:, None])


def largest_products(a: Vectors, b: Vectors) -> LargestProducts | None:
    """Multiply the rows of a (N, D) and b (M, D); None unless they are unit vectors."""
    squares = np.concatenate([np.einsum("ij,ij->i", rows, rows) for rows in (a, b)])
    uneven = float(np.abs(squares - 1).max())
    if not uneven <= _NOT_UNIT:  # NaN neither
        return None
    whole_a, row_scale, row_error = _rounded(a, _ROW_LARGEST)
    whole_b, word_scale, word_error = _rounded(b, _WORD_LARGEST)
    rows, words = (whole_a + _ZERO).astype(np.uint8), whole_b.astype(np.int8)
    product, scale = _product(), row_scale * word_scale
    of_a = np.empty((len(rows), len(words) // GROUP), np.int32)
    of_b = np.empty((len(rows) // GROUP, len(words)), np.int32)
    for start in range(0, len(words), _STEP):
        columns = slice(start, start + _STEP)
        part = np.asfortranarray(words[columns])
        groups = slice(start // GROUP, (start + _STEP) // GROUP)
        for number in range(len(of_b)):
            here = slice(number * GROUP, (number + 1) * GROUP)
            found = product(rows[here], part)
            of_a[here, groups] = found.reshape(GROUP, -1, GROUP).max(2)
            of_b[number, columns] = found.max(0)
    # Of one product: the errors of its numbers are independent, and each is a share of its row's.
    error = float(np.hypot(row_error, word_error)) * a.shape[1] ** -0.5
    return LargestProducts(
        of_a[: len(a)], of_b[:, : len(b)], scale, scale * (_SIGMAS * error + uneven)
    )


def _rounded(vectors: Vectors, largest: int) -> tuple[Vectors, float, float]:
    """Whole numbers up to ``largest`` in full groups, what 1 has become, and the error of a row.

    The last row is repeated until its group is full: that changes no largest product.
    """
    scale = np.float32(largest / np.abs(vectors).max())
    whole = np.rint(vectors * scale)
    error = vectors - whole / scale
    missing = -len(vectors) % GROUP
    filled = np.concatenate([whole, np.repeat(whole[-1:], missing, 0)])
    return filled, float(scale), float(np.sqrt(np.einsum("ij,ij->i", error, error).max()))


class IntegerProduct:
    """The products of uint8 rows (N, D) with int8 words (K, D): (N, K) int32, by onnxruntime.

    It uses the processor's instructions for them. The network is one node, MatMulInteger, with the
    words as its constant, or without: then each call gives them. Its few bytes of protocol buffer
    are written here, because the default install does not include the package that writes them.

    Rows of at most 127 are exact on every processor; more may overflow where a pair of products is
    summed in 16 bits. What counts as 0 in the rows is ``zero``.
    """

    def __init__(self, words: NDArray[np.int8] | None = None, zero: int = 0) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the callers are as many threads as there are cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            _model(words, zero), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, rows: NDArray[np.uint8], words: NDArray[np.int8] | None = None) -> Products:
        """Callable from several threads at once."""
        given = {"rows": rows} if words is None else {"rows": rows, "words": words.T}
        return np.asarray(self._session.run(None, given)[0])


@cache
def _product() -> IntegerProduct:
    return IntegerProduct(zero=_ZERO)


def _model(words: NDArray[np.int8] | None, zero: int) -> bytes:
    """An ONNX file; the numbers are those of the fields in onnx.proto."""
    inputs = b"".join(_field(1, name) for name in ("rows", "words", "zero"))
    graph = _field(1, inputs + _field(2, "products") + _field(4, "MatMulInteger"))
    graph += _field(2, "words")
    graph += _field(5, _field(2, _UINT8) + _field(8, "zero") + _field(9, bytes([zero])))
    count: int | str = "K"
    dim: int | str = "D"
    if words is None:
        graph += _field(11, _matrix("words", _INT8, dim, count))
    else:
        count, dim = words.shape
        constant = _field(1, dim) + _field(1, count) + _field(2, _INT8) + _field(8, "words")
        graph += _field(5, constant + _field(9, np.ascontiguousarray(words.T).tobytes()))
    graph += _field(11, _matrix("rows", _UINT8, "N", dim))
    graph += _field(12, _matrix("products", _INT32, "N", count))
    return _field(1, _IR_VERSION) + _field(7, graph) + _field(8, _field(2, _OPSET))


def _matrix(name: str, kind: int, *sides: int | str) -> bytes:
    """A side of any length has a name."""
    shape = b"".join(_field(1, _field(2 if isinstance(n, str) else 1, n)) for n in sides)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, shape)))


def _field(number: int, value: int | str | bytes) -> bytes:
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
