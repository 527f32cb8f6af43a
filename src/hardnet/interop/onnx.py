"""Networks as ONNX graphs, written layer by layer: small, the same bytes every time, no exporter.

The graph reads (N, 1, S, S) float patches and gives (N, D) unit vectors: all that the network does
in evaluation mode, with batch normalisation folded into the layer before it. A convolution that
covers its whole input is a matrix product, which onnxruntime runs faster than the same thing called
a convolution.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet.errors import HardnetError
from hardnet.interop.folding import Convolution, double, fold
from hardnet.interop.onnx_graph import Graph, normalise_nodes, unit_length_nodes

if TYPE_CHECKING:
    from torch import nn

    from hardnet.nets import Net
    from hardnet.nets.layers import Layer


def to_onnx(net: Net) -> bytes:
    """The ONNX file of a network in evaluation mode, in float32.

    Raises:
        HardnetError: the network has a layer that cannot be written.
    """
    layers = fold(net.layers())
    writer = _Writer(net.patch_size, sum(isinstance(layer, Convolution) for layer in layers))
    for layer in layers:
        if isinstance(layer, Convolution):
            writer.convolution(layer)
        else:
            writer.layer(layer)
    if writer.last != "descriptors":
        raise HardnetError(f"{type(net).__name__} cannot be exported: it must end in unit_length")
    return writer.graph.serialise(net.patch_size, net.dim)


def conv_attributes(layer: Convolution) -> dict[str, list[int]]:
    """Stride, padding and kernel size in ONNX's words."""
    return {
        "kernel_shape": list(layer.weight.shape[2:]),
        "pads": [layer.padding] * 4,
        "strides": [layer.stride] * 2,
    }


class _Writer:
    """Adds layer after layer to a graph.

    Args:
        side: of the patches.
        convolutions: how many there will be; the last one has a name of its own.
    """

    def __init__(self, side: int, convolutions: int) -> None:
        self.graph, self.last = Graph(), "patches"
        self._side = side  # of the maps; 0 once there are vectors
        self._convolutions = convolutions
        self._written: Counter[str] = Counter()

    def convolution(self, layer: Convolution) -> None:
        """A convolution, or a matrix product where that is the same."""
        number = self._number("conv")
        final = number == self._convolutions - 1
        weight, bias = f"w{'_last' if final else number}", f"b{'_last' if final else number}"
        kernel = layer.weight.shape[-1] if layer.weight.ndim == 4 else self._side
        if kernel != self._side or layer.padding:
            self.graph.constant(weight, layer.weight)
            self.graph.constant(bias, layer.bias)
            self._add("Conv", f"conv{number}", weight, bias, **conv_attributes(layer))
            self._slide(kernel, layer.stride, layer.padding)
        else:
            self.graph.constant(weight, layer.weight.reshape(len(layer.weight), -1))
            self.graph.constant(bias, layer.bias)
            self._flatten()
            self._add("Gemm", "y" if final else f"y{number}", weight, bias, transB=1)

    def layer(self, layer: Layer) -> None:
        """A layer without weights. A network with another kind of layer needs a branch here."""
        from torch import nn

        from hardnet.nets.layers import flatten, normalise_patches, unit_length

        if layer is normalise_patches and self.last == "patches":
            self.last = normalise_nodes(self.graph, pixels=self._side**2)
        elif layer is unit_length:
            self.last = unit_length_nodes(self.graph, self.last)
        elif layer is flatten:
            self._flatten()
        elif isinstance(layer, nn.ReLU):
            self._add("Relu", f"relu{self._number('relu')}")
        elif isinstance(layer, nn.Tanh):
            self._add("Tanh", f"tanh{self._number('tanh')}")
        elif isinstance(layer, nn.MaxPool2d) and (size := _pool_size(layer)):
            kernel, stride = size
            kinds = {"kernel_shape": [kernel] * 2, "strides": [stride] * 2}
            self._add("MaxPool", f"pool{self._number('pool')}", **kinds)
            self._slide(kernel, stride, padding=0)
        elif isinstance(layer, nn.InstanceNorm2d) and not layer.track_running_stats:
            self._instance_norm(layer)
        else:
            raise HardnetError(
                f"ONNX export does not know the layer {layer}: add it to hardnet.interop.onnx"
            )

    def _instance_norm(self, layer: nn.InstanceNorm2d) -> None:
        name = f"instance{self._number('instance')}"
        scale = np.ones(layer.num_features) if layer.weight is None else double(layer.weight)
        shift = np.zeros(layer.num_features) if layer.bias is None else double(layer.bias)
        names = f"{name}_scale", f"{name}_shift"
        for key, value in zip(names, (scale, shift), strict=True):
            self.graph.constant(key, value.astype(np.float32))
        self._add("InstanceNormalization", name, *names, epsilon=layer.eps)

    def _flatten(self) -> None:
        if self._side:
            self._add("Flatten", "flat")
        self._side = 0

    def _slide(self, kernel: int, stride: int, padding: int) -> None:
        self._side = (self._side + 2 * padding - kernel) // stride + 1

    def _add(self, kind: str, name: str, *constants: str, **attributes: Any) -> None:
        self.last = self.graph.node(kind, [self.last, *constants], name, **attributes)

    def _number(self, kind: str) -> int:
        """How many of this kind there were before."""
        self._written[kind] += 1
        return self._written[kind] - 1


def _pool_size(layer: nn.MaxPool2d) -> tuple[int, int] | None:
    """Kernel and stride of a pooling without padding; None for others."""
    kernel, stride = layer.kernel_size, layer.stride
    plain = not layer.padding and layer.dilation == 1 and not layer.ceil_mode
    return (
        (kernel, stride) if plain and isinstance(kernel, int) and isinstance(stride, int) else None
    )
