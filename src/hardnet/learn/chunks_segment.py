"""The layers between two batch normalisations: there, every row of the batch goes its own way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hardnet.learn.chunks_dropout import dropout
from hardnet.learn.chunks_norm import scale_and_shift
from hardnet.nets.layers import Layer

Totals: TypeAlias = dict[Tensor, Tensor]
"""Gradients by parameters."""


@dataclass(frozen=True)
class Segment:
    """A stretch of layers without batch normalisation, except before it.

    Attributes:
        norm: the batch normalisation whose output enters the first layer; None at the start.
        layers: applied in order.
        dropouts: number of dropout layers in the segments before.
    """

    norm: _BatchNorm | None
    layers: tuple[Layer, ...]
    dropouts: int = 0

    def forward(self, x: Tensor, seed: int, rows: NDArray[np.int64]) -> Tensor:
        """Output of a chunk; no gradient is recorded.

        Args:
            x: (n, ...) input, normalised but not scaled; it may be overwritten.
            seed: of the training step.
            rows: (n,) number of each row in the batch of all processes.
        """
        with torch.no_grad():
            return self._run(self.layers, x, seed, rows)

    def backward(
        self,
        x: Tensor,
        gradient: Tensor,
        seed: int,
        rows: NDArray[np.int64],
    ) -> tuple[Tensor | None, Totals]:
        """Run a chunk again, now for its gradients.

        Args:
            x: (n, ...) input, as in :meth:`forward`.
            gradient: of the loss by the output.
            seed: of the training step.
            rows: (n,) number of each row in the batch of all processes.

        Returns:
            The gradient by ``x`` (None in the first segment, where nobody needs it), and by the
            parameters.
        """
        totals: Totals = {}
        # The gradient of a convolution needs its input alone: it is not computed again.
        last = _plain_convolution(self.layers[-1]) if self.layers else None
        layers = self.layers if last is None else self.layers[:-1]
        if last is not None and self._is_relu(layers):
            with torch.no_grad():
                y = self._run(layers, x, seed, rows)
                gradient = _convolution_backward(last, y, gradient, totals)
                return _relu_backward(layers, y, gradient), totals
        wanted = [p for p in self._parameters(layers) if p.requires_grad]
        if self.norm is not None:
            wanted = [x.requires_grad_(), *wanted]
        with torch.enable_grad():
            y = self._run(layers, x, seed, rows)
        if last is not None:
            gradient = _convolution_backward(last, y.detach(), gradient, totals, bool(wanted))
        found = torch.autograd.grad(y, wanted, gradient) if wanted else ()
        for parameter, value in zip(wanted, found, strict=True):
            if parameter is not x:
                add_to(totals, {parameter: value})
        return found[0] if self.norm is not None else None, totals

    def _run(
        self, layers: Iterable[Layer], x: Tensor, seed: int, rows: NDArray[np.int64]
    ) -> Tensor:
        if self.norm is not None:
            x = scale_and_shift(self.norm, x)
        number = self.dropouts
        for layer in layers:
            if isinstance(layer, nn.Dropout):
                x = dropout(x, layer.p, seed, number, rows)
                number += 1
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x) if torch.is_grad_enabled() else torch.relu_(x)
            else:
                x = layer(x)
        return x

    def _is_relu(self, layers: tuple[Layer, ...]) -> bool:
        """Whether the layers are ReLU, perhaps with dropout, right after the normalisation."""
        kinds = [type(layer) for layer in layers]
        plain = self.norm is not None and not self.norm.affine
        return plain and kinds in ([nn.ReLU], [nn.ReLU, nn.Dropout])

    def _parameters(self, layers: Iterable[Layer]) -> list[Tensor]:
        modules = [m for m in (self.norm, *layers) if isinstance(m, nn.Module)]
        return [p for module in modules for p in module.parameters()]


def cut(layers: Iterable[Layer]) -> list[Segment]:
    """The segments of a network."""
    segments = [Segment(None, ())]
    for layer in layers:
        last = segments[-1]
        dropouts = last.dropouts + sum(isinstance(x, nn.Dropout) for x in last.layers)
        if isinstance(layer, _BatchNorm):
            segments.append(Segment(layer, (), dropouts))
        else:
            segments[-1] = Segment(last.norm, (*last.layers, layer), last.dropouts)
    return segments


def _plain_convolution(layer: Layer) -> nn.Conv2d | None:
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        return None
    return layer if layer.padding_mode == "zeros" else None


def _convolution_backward(
    layer: nn.Conv2d, x: Tensor, gradient: Tensor, totals: Totals, wanted: bool = True
) -> Tensor:
    """Add the gradients of the parameters to ``totals``; return the one by ``x`` if wanted."""
    weight, bias = layer.weight, layer.bias
    needs = [wanted, weight.requires_grad, bias is not None and bias.requires_grad]
    found: list[Tensor] = torch.ops.aten.convolution_backward(
        gradient, x, weight, [layer.out_channels], layer.stride, layer.padding,
        layer.dilation, False, [0, 0], layer.groups, needs,
    )  # fmt: skip
    for parameter, value, needed in zip((weight, bias), found[1:], needs[1:], strict=True):
        if needed and parameter is not None:
            add_to(totals, {parameter: value})
    return found[0]


def _relu_backward(layers: tuple[Layer, ...], y: Tensor, gradient: Tensor) -> Tensor:
    """Gradient by the input of ReLU and dropout, in the memory of the one by their output ``y``.

    Autograd would keep the input as well and write the result elsewhere. What was dropped is zero
    in ``y``, so the mask need not be drawn again.
    """
    for layer in layers:
        if isinstance(layer, nn.Dropout) and layer.p:
            gradient.mul_(1 / (1 - layer.p))
    out: Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)
    return out


def add_to(totals: Totals, values: Totals) -> None:
    """Add the gradients of a chunk."""
    for parameter, value in values.items():
        if parameter in totals:
            totals[parameter] += value
        else:
            totals[parameter] = value
