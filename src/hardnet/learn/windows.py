"""Learn how the vectors of several windows of a keypoint become one.

A network describes each window for itself. A linear map of what it says about all of them is
trained with it, by the same loss, so that the few numbers of the result go to what tells keypoints
apart, and the network need not say in one window what another one shows better.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hardnet.descriptors.windows import Projection, learn_projection
from hardnet.nets.hardnet import unit_length

FIRST_PATCHES = 8192
"""Observations whose principal components a run begins with."""


class JoinWindows(nn.Module):
    """(N K, D) unit vectors of K windows of each keypoint in turn -> (N, D) unit vectors.

    Batch normalisation keeps the numbers of the result alike in spread, so that the learning rate
    of the network suits the map, too. It begins with the principal components of ``vectors``
    (M, K D), turned at random: each alone would otherwise be scaled to the same spread.
    """

    def __init__(self, vectors: NDArray[np.float32], dim: int, seed: int) -> None:
        super().__init__()
        start = learn_projection(vectors, dim)
        turn = np.linalg.qr(np.random.default_rng(seed).standard_normal((dim, dim)))[0]
        self.map = nn.Linear(len(start.mean), dim, bias=False)
        self.norm = nn.BatchNorm1d(dim, affine=False)
        with torch.no_grad():
            self.map.weight.copy_(torch.from_numpy((start.matrix @ turn).T))

    def forward(self, vectors: Tensor) -> Tensor:
        """Join them, see above."""
        side_by_side = vectors.reshape(-1, self.map.in_features)
        return unit_length(self.norm(self.map(side_by_side)))

    def projection(self) -> Projection:
        """The map and its batch statistics as descriptors read them: (x - mean) matrix."""
        weight = self.map.weight.detach().cpu().double().numpy()
        assert self.norm.running_mean is not None
        assert self.norm.running_var is not None
        mean, var = (
            x.detach().cpu().double().numpy()
            for x in (self.norm.running_mean, self.norm.running_var)
        )
        scale = 1 / np.sqrt(var + self.norm.eps)
        # The shift is one of the results; before the map it is any vector that is mapped to it.
        before = np.linalg.pinv(weight) @ mean
        return Projection(before.astype(np.float32), (weight.T * scale).astype(np.float32))
