"""A network as the list of its layers, so that training and export can take it layer by layer.

Here are also the layers that all networks share: what happens to a patch before the first
convolution and to a vector after the last.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch
from torch import Tensor, nn

Layer: TypeAlias = Callable[[Tensor], Tensor]
"""A module or a plain function; each row of its output depends on the same row of its input alone,
except for batch normalisation while training."""

STD_FLOOR = 1e-6  # a constant patch has no contrast to divide by; kornia's value


class Net(nn.Module, ABC):
    """A network from grey patches to unit vectors; its constructor takes the dropout rate."""

    dim: ClassVar[int] = 128
    """Length of a descriptor."""
    patch_size: ClassVar[int] = 32
    """Side of the patches it reads."""
    unrelated: ClassVar[tuple[str, ...]] = ()
    """Prefixes of parameters that published files carry and this network does not use."""

    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """What :meth:`forward` applies, in order."""

    def forward(self, patches: Tensor) -> Tensor:
        """(N, 1, S, S) grey patches -> (N, dim) unit vectors."""
        return apply(self.layers(), patches)


def apply(layers: tuple[Layer, ...], x: Tensor) -> Tensor:
    """The output of the last layer: (N, ...) -> (N, ...)."""
    for layer in layers:
        x = layer(x)
    return x


def normalise_patches(patches: Tensor) -> Tensor:
    """Subtract each patch's own mean and divide by its own standard deviation.

    (N, 1, S, S) -> (N, 1, S, S). A constant patch becomes zeros. No gradient flows through the
    statistics: they describe the input, not the network.
    """
    with torch.no_grad():
        mean = patches.mean(dim=(1, 2, 3), keepdim=True)
        std = patches.std(dim=(1, 2, 3), keepdim=True)
    return (patches - mean) / (std + STD_FLOOR)


def unit_length(vectors: Tensor) -> Tensor:
    """(N, D) -> (N, D) of length 1."""
    return vectors / lengths(vectors)[:, None]


def lengths(vectors: Tensor) -> Tensor:
    """(N, D) -> (N,); the small constant keeps the gradient of a zero vector finite."""
    return torch.sqrt((vectors * vectors).sum(dim=1) + 1e-10)


def flatten(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, C H W)."""
    return x.flatten(1)


def conv_block(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    """Convolution of 3 x 3, batch normalisation without learned scale, ReLU."""
    return (
        nn.Conv2d(inputs, outputs, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs, affine=False),
        nn.ReLU(inplace=True),
    )


def orthogonal(module: nn.Module, gain: float = 0.6) -> None:
    """The start of a training: orthogonal weights, and biases of 0.01 where there are any."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain=gain)
        if module.bias is not None:
            nn.init.constant_(module.bias, 0.01)
