"""A network as the list of its layers, so that training can run it layer by layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor

Layer: TypeAlias = Callable[[Tensor], Tensor]
"""A module or a plain function; each row of its output depends on the same row of its input alone,
except for batch normalisation while training."""


def apply(layers: tuple[Layer, ...], x: Tensor) -> Tensor:
    """The output of the last layer: (N, ...) -> (N, ...)."""
    for layer in layers:
        x = layer(x)
    return x


def flatten(x: Tensor) -> Tensor:
    """(N, C, H, W) -> (N, C H W)."""
    return x.flatten(1)
