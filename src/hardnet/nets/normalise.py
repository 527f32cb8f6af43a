"""What happens before the first and after the last layer of every network."""

from __future__ import annotations

import torch
from torch import Tensor

STD_FLOOR = 1e-6  # a constant patch has no contrast to divide by; kornia's value


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
    """(N, D) -> (N, D) of length 1; the small constant keeps a zero vector finite."""
    return vectors / torch.sqrt((vectors * vectors).sum(dim=1, keepdim=True) + 1e-10)
