"""Batch normalisation folded into the convolution before it, as networks are used after training.

BN(Wx + b) = gamma (Wx + b - mean) / sqrt(var + eps) + beta is a convolution with other weights and
another bias. They are computed in double precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from hardnet.nets.layers import Layer


@dataclass(frozen=True)
class Convolution:
    """A convolution or a fully connected layer, with the batch normalisation that follows it.

    Attributes:
        weight: (outputs, inputs, k, k); (outputs, inputs) if it is fully connected.
        bias: (outputs,).
        stride: of the convolution.
        padding: zeros on each side.
    """

    weight: NDArray[np.float32]
    bias: NDArray[np.float32]
    stride: int = 1
    padding: int = 0


def fold(layers: Iterable[Layer]) -> list[Convolution | Layer]:
    """The layers as they act in evaluation mode, without dropout, convolutions folded.

    Raises:
        HardnetError: a batch normalisation does not follow a convolution or fully connected layer,
            or a convolution is not square or has groups or dilation.
    """
    from torch import nn

    folded: list[Convolution | Layer] = []
    before: nn.Conv2d | nn.Linear | None = None
    for layer in layers:
        if isinstance(layer, nn.Dropout):
            continue
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            if before is None:
                raise HardnetError(f"{layer} does not follow a convolution: it cannot be exported")
            folded[-1] = _fold(before, layer)
            before = None
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            folded.append(_fold(layer, None))
            before = layer
        else:
            folded.append(layer)
            before = None
    return folded


def _fold(
    layer: nn.Conv2d | nn.Linear, norm: nn.BatchNorm1d | nn.BatchNorm2d | None
) -> Convolution:
    from torch import nn

    weight = double(layer.weight)
    bias = np.zeros(len(weight)) if layer.bias is None else double(layer.bias)
    if norm is not None:
        scale = 1 / np.sqrt(double(norm.running_var) + norm.eps)
        if norm.weight is not None:
            scale *= double(norm.weight)
        weight = weight * scale.reshape(-1, *[1] * (weight.ndim - 1))
        bias = (bias - double(norm.running_mean)) * scale
        if norm.bias is not None:
            bias += double(norm.bias)
    stride, padding = _geometry(layer) if isinstance(layer, nn.Conv2d) else (1, 0)
    return Convolution(weight.astype(np.float32), bias.astype(np.float32), stride, padding)


def _geometry(layer: nn.Conv2d) -> tuple[int, int]:
    """Stride and padding."""
    plain = layer.groups == 1 and set(layer.dilation) == {1} and layer.padding_mode == "zeros"
    square = all(len(set(pair)) == 1 for pair in (layer.kernel_size, layer.stride, layer.padding))
    if not plain or not square or isinstance(layer.padding, str):
        raise HardnetError(f"{layer} cannot be exported: only square convolutions of one group")
    return layer.stride[0], layer.padding[0]


def double(tensor: Tensor | None) -> NDArray[np.float64]:
    """Values of a parameter or a running statistic."""
    if tensor is None:
        raise HardnetError("the network has no batch norm statistics")
    return np.asarray(tensor.detach().cpu().double().numpy())
