"""A network as the list of its layers, so that training and export can take it layer by layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, TypeAlias

from torch import Tensor, nn

Layer: TypeAlias = Callable[[Tensor], Tensor]
"""A module or a plain function; each row of its output depends on the same row of its input alone,
except for batch normalisation while training."""


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


def flatten(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, C H W)."""
    return x.flatten(1)


def orthogonal(module: nn.Module, gain: float = 0.6) -> None:
    """The start of a training: orthogonal weights, and biases of 0.01 where there are any."""
    if isinstance(module, nn.Conv2d | nn.Linear):
        nn.init.orthogonal_(module.weight, gain=gain)
        if module.bias is not None:
            nn.init.constant_(module.bias, 0.01)
