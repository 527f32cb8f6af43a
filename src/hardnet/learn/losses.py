"""The loss of the paper: equation 1 of section 3.1."""

from __future__ import annotations

from torch import Tensor

from hardnet.learn.distances import distance_matrix, pair_distances
from hardnet.learn.sampling import hardest_in_batch, hardest_in_batch_blockwise


def triplet_margin(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i max(0, m + d(a_i, p_i) - d_hardest_i).

    Args:
        positive: (n,) distances of the matching pairs.
        negative: (n,) distances of their hardest negatives.
        margin: m; 1 in the paper.

    Returns:
        Scalar.
    """
    return (margin + positive - negative).clamp_min(0).mean()


def hardnet_loss(anchors: Tensor, positives: Tensor, margin: float = 1.0) -> Tensor:
    """Distance matrix, hardest-in-batch sampling, triplet margin: the three steps of the paper.

    Args:
        anchors: (n, D) unit vectors, one per 3D point.
        positives: (n, D) unit vectors of the same points in the same order.
        margin: see :func:`triplet_margin`.
    """
    distances = distance_matrix(anchors, positives)
    return triplet_margin(distances.diagonal(), hardest_in_batch(distances), margin)


def hardnet_loss_blockwise(
    anchors: Tensor, positives: Tensor, margin: float = 1.0, block: int = 1024
) -> Tensor:
    """The same loss and gradients with memory for ``block`` x n distances only."""
    negative = hardest_in_batch_blockwise(anchors, positives, block)
    return triplet_margin(pair_distances(anchors, positives), negative, margin)
