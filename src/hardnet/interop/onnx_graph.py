"""An ONNX graph, node by node, and the two operations that every descriptor has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import MissingExtraError

OPSET = 17  # of March 2022; read by every onnxruntime the package allows
_IR_VERSION = 8  # the file format that came with that opset


class Graph:
    """Nodes and constants of an ONNX graph from "patches" to "descriptors"."""

    def __init__(self) -> None:
        try:
            import onnx
        except ImportError as error:
            raise MissingExtraError("onnx", "train") from error
        self._onnx = onnx
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def constant(self, name: str, value: NDArray[Any] | np.generic) -> str:
        """Add a constant and return its name."""
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        """Add an operation with one output and return the output's name."""
        make = self._onnx.helper.make_node
        self._nodes.append(make(kind, list(inputs), [output], name=output, **attributes))
        return output

    def serialise(self, patch_size: int, dim: int) -> bytes:
        """The checked model as the bytes of an ``.onnx`` file."""
        make, real = self._onnx.helper, self._onnx.TensorProto.FLOAT
        side = patch_size
        graph = make.make_graph(
            self._nodes,
            "hardnet",
            [make.make_tensor_value_info("patches", real, ["N", 1, side, side])],
            [make.make_tensor_value_info("descriptors", real, ["N", dim])],
            self._constants,
        )
        opset = [make.make_opsetid("", OPSET)]
        model = make.make_model(
            graph, opset_imports=opset, ir_version=_IR_VERSION, producer_name="hardnet"
        )
        self._onnx.checker.check_model(model, full_check=True)
        return bytes(model.SerializeToString(deterministic=True))


def normalise_nodes(graph: Graph, pixels: int) -> str:
    """``hardnet.nets.layers.normalise_patches`` as nodes."""
    from hardnet.nets.layers import STD_FLOOR

    axes = graph.constant("patch_axes", np.array([1, 2, 3], np.int64))
    mean = graph.node("ReduceMean", ["patches"], "mean", axes=[1, 2, 3], keepdims=1)
    centred = graph.node("Sub", ["patches", mean], "centred")
    square = graph.node("Mul", [centred, centred], "square")
    total = graph.node("ReduceSum", [square, axes], "total", keepdims=1)
    variance = graph.node("Div", [total, graph.constant("n1", np.float32(pixels - 1))], "variance")
    std = graph.node("Sqrt", [variance], "std")
    floor = graph.constant("std_floor", np.float32(STD_FLOOR))
    return graph.node("Div", [centred, graph.node("Add", [std, floor], "std_safe")], "normalised")


def unit_length_nodes(graph: Graph, vectors: str) -> str:
    """``hardnet.nets.layers.unit_length`` as nodes."""
    axes = graph.constant("vector_axes", np.array([1], np.int64))
    square = graph.node("Mul", [vectors, vectors], "vector_square")
    total = graph.node("ReduceSum", [square, axes], "vector_total", keepdims=1)
    tiny = graph.constant("tiny", np.float32(1e-10))
    length = graph.node("Sqrt", [graph.node("Add", [total, tiny], "vector_safe")], "length")
    return graph.node("Div", [vectors, length], "descriptors")
