"""Products of small integers by onnxruntime, which knows the instructions of the processor for it.

The network is one node, MatMulInteger, with the words as its constant. Its few bytes of protocol
buffer are written here: the package that usually writes them is not part of the default install.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
from numpy.typing import NDArray

_IR_VERSION, _OPSET = 8, 17  # of March 2022; read by every onnxruntime the package allows
_UINT8, _INT8, _INT32 = 2, 3, 6  # onnx.TensorProto.DataType


class IntegerProduct:
    """The products of uint8 rows (N, D) with int8 words (K, D): (N, K) int32.

    Rows of at most 127 are exact on every processor; more may overflow where a pair of products is
    summed in 16 bits.
    """

    def __init__(self, words: NDArray[np.int8]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the callers are as many threads as there are cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            _model(words), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, rows: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Callable from several threads at once."""
        product: NDArray[np.int32] = self._session.run(None, {"rows": rows})[0]
        return product


def _model(words: NDArray[np.int8]) -> bytes:
    """An ONNX file; the numbers are those of the fields in onnx.proto."""
    count, dim = words.shape
    node = _text(1, "rows") + _text(1, "words") + _text(2, "products") + _text(4, "MatMulInteger")
    constant = (
        _number(1, dim)
        + _number(1, count)
        + _number(2, _INT8)
        + _text(8, "words")
        + _block(9, np.ascontiguousarray(words.T).tobytes())
    )
    graph = (
        _block(1, node)
        + _text(2, "words")
        + _block(5, constant)
        + _block(11, _value("rows", _UINT8, dim))
        + _block(12, _value("products", _INT32, count))
    )
    return _number(1, _IR_VERSION) + _block(7, graph) + _block(8, _number(2, _OPSET))


def _value(name: str, kind: int, columns: int) -> bytes:
    """A matrix of any number of rows."""
    shape = _block(1, _text(2, "N")) + _block(1, _number(1, columns))
    return _text(1, name) + _block(2, _block(1, _number(1, kind) + _block(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _block(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
