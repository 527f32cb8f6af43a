"""The losses of the paper: equation 1 of section 3.1, and the others of section 4.2 and table 2.

Each is a function of two distances per pair: d(a_i, p_i) of the match and d_i of its negative. A
pair that has no negative comes with d_i = inf, and each loss is then what its formula says.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn.functional import softplus

from hardnet.errors import HardnetError
from hardnet.learn.distances import distance_matrix
from hardnet.learn.sampling import hardest_in_batch


def triplet_margin(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i max(0, m + d(a_i, p_i) - d_i).

    Args:
        positive: (n,) distances of the matching pairs.
        negative: (n,) distances of their negatives.
        margin: m; 1 in the paper.

    Returns:
        Scalar.
    """
    return (margin + positive - negative).clamp_min(0).mean()


def softmin(positive: Tensor, negative: Tensor) -> Tensor:
    """L = 1/n sum_i -log( e^(2 - d(a_i, p_i)) / (e^(2 - d(a_i, p_i)) + e^(2 - d_i)) ).

    Divided by e^(2 - d(a_i, p_i)) this is log(1 + e^(d(a_i, p_i) - d_i)), which never overflows.
    The published code adds 1e-8 to the denominator instead; the loss differs by less than 1e-8.

    Args:
        positive: (n,) distances of the matching pairs.
        negative: (n,) distances of their negatives.

    Returns:
        Scalar.
    """
    return softplus(positive - negative).mean()


def contrastive(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i d(a_i, p_i) + max(0, m - d_i).

    Args:
        positive: (n,) distances of the matching pairs.
        negative: (n,) distances of their negatives.
        margin: m; 1 and 2 in the paper. 2 is the largest distance of unit vectors.

    Returns:
        Scalar.
    """
    return (positive + (margin - negative).clamp_min(0)).mean()


def hardnet_loss(anchors: Tensor, positives: Tensor, margin: float = 1.0) -> Tensor:
    """Distance matrix, hardest-in-batch sampling, triplet margin: the three steps of the paper.

    Training uses :class:`hardnet.learn.objective.Objective`, which gives the same number without
    holding the matrix.

    Args:
        anchors: (n, D) unit vectors, one per 3D point.
        positives: (n, D) unit vectors of the same points in the same order.
        margin: see :func:`triplet_margin`.
    """
    distances = distance_matrix(anchors, positives)
    return triplet_margin(distances.diagonal(), hardest_in_batch(distances), margin)


LOSSES = ("triplet", "softmin", "contrastive")


def pair_loss(name: str, margin: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name as a function of (positive, negative); softmin has no margin."""
    if name == "triplet":
        return lambda positive, negative: triplet_margin(positive, negative, margin)
    if name == "softmin":
        return softmin
    if name == "contrastive":
        return lambda positive, negative: contrastive(positive, negative, margin)
    raise HardnetError(f"loss: {name} is not a loss of two distances; those are {LOSSES}")
