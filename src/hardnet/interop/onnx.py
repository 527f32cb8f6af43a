"""HardNet as an ONNX graph, written by hand: small, the same bytes every time, no exporter.

The graph reads (N, 1, 32, 32) float patches of any brightness range and gives (N, 128) unit
vectors: per-patch normalisation, the convolutions with batch normalisation folded into them, and
the scaling to unit length. The last convolution covers its whole input, so it is a matrix product,
which onnxruntime runs faster than the same thing called a convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, MissingExtraError

if TYPE_CHECKING:
    import torch

    from hardnet.nets import Net

OPSET = 17  # of March 2022; read by every onnxruntime the package allows
_IR_VERSION = 8  # the file format that came with that opset


@dataclass(frozen=True)
class Layer:
    """One convolution with its batch normalisation folded in; ReLU follows all but the last."""

    weight: NDArray[np.float32]
    """(outputs, inputs, k, k)"""
    bias: NDArray[np.float32]
    """(outputs,)"""
    stride: int
    padding: int


def fold(net: Net) -> list[Layer]:
    """The convolutions of a HardNet in evaluation mode, batch normalisation folded in.

    BN(Wx) = (Wx - mean) / sqrt(var + eps) = (W / s) x - mean / s, computed in double precision.
    """
    from torch import nn

    from hardnet.nets.hardnet import HardNet

    if not isinstance(net, HardNet):
        raise HardnetError(f"only hardnet can be exported to ONNX, not {type(net).__name__}")
    layers, conv = [], None
    for module in net.features:
        if isinstance(module, nn.Conv2d):
            conv = module
        elif isinstance(module, nn.BatchNorm2d) and conv is not None:
            variance, mean = _double(module.running_var), _double(module.running_mean)
            scale = 1 / np.sqrt(variance + module.eps)
            weight = _double(conv.weight) * scale[:, None, None, None]
            stride, padding = int(conv.stride[0]), int(conv.padding[0])
            bias = (-mean * scale).astype(np.float32)
            layers.append(Layer(weight.astype(np.float32), bias, stride, padding))
    return layers


def to_onnx(net: Net) -> bytes:
    """The ONNX file of a HardNet in float32."""
    layers = fold(net)
    graph = Graph()
    x = normalise_nodes(graph, pixels=net.patch_size**2)
    for i, layer in enumerate(layers[:-1]):
        weight, bias = graph.constant(f"w{i}", layer.weight), graph.constant(f"b{i}", layer.bias)
        x = graph.node("Conv", [x, weight, bias], f"conv{i}", **conv_attributes(layer))
        x = graph.node("Relu", [x], f"relu{i}")
    last = layers[-1]
    weight = graph.constant("w_last", last.weight.reshape(len(last.weight), -1))
    flat = graph.node("Flatten", [x], "flat")
    y = graph.node("Gemm", [flat, weight, graph.constant("b_last", last.bias)], "y", transB=1)
    unit_length_nodes(graph, y)
    return graph.serialise(net.patch_size, net.dim)


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


def conv_attributes(layer: Layer) -> dict[str, list[int]]:
    """Stride, padding and kernel size in ONNX's words."""
    return {
        "kernel_shape": list(layer.weight.shape[2:]),
        "pads": [layer.padding] * 4,
        "strides": [layer.stride] * 2,
    }


def normalise_nodes(graph: Graph, pixels: int) -> str:
    """``hardnet.nets.normalise.normalise_patches`` as nodes."""
    from hardnet.nets.normalise import STD_FLOOR

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
    """``hardnet.nets.normalise.unit_length`` as nodes."""
    axes = graph.constant("vector_axes", np.array([1], np.int64))
    square = graph.node("Mul", [vectors, vectors], "vector_square")
    total = graph.node("ReduceSum", [square, axes], "vector_total", keepdims=1)
    tiny = graph.constant("tiny", np.float32(1e-10))
    length = graph.node("Sqrt", [graph.node("Add", [total, tiny], "vector_safe")], "length")
    return graph.node("Div", [vectors, length], "descriptors")


def _double(tensor: torch.Tensor | None) -> NDArray[np.float64]:
    if tensor is None:
        raise HardnetError("the network has no batch norm statistics")
    return np.asarray(tensor.detach().cpu().double().numpy())
