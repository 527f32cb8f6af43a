"""The distance matrix D of the paper, section 3.1."""

from __future__ import annotations

import torch
from torch import Tensor

EPSILON = 1e-6  # keeps the square root's gradient finite where two descriptors coincide


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances D[i, j] = d(a_i, p_j) between unit vectors.

    For unit vectors |a - p|^2 = 2 - 2 a.p, so the whole matrix is one multiplication.

    Args:
        anchors: (n, D) unit vectors.
        positives: (m, D) unit vectors.

    Returns:
        (n, m) distances, never below sqrt(EPSILON).
    """
    return torch.sqrt((2 - 2 * anchors @ positives.T).clamp_min(0) + EPSILON)


def pair_distances(anchors: Tensor, positives: Tensor) -> Tensor:
    """The diagonal of D alone: (n,) distances d(a_i, p_i)."""
    return torch.sqrt((2 - 2 * (anchors * positives).sum(1)).clamp_min(0) + EPSILON)
