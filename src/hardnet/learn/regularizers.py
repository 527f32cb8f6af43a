"""What is added to the loss of a batch, with a weight.

CPR, the penalty on correlated descriptor channels, is L2-Net's and in table 2 of the paper; the
second-order similarity is SOSNet's, and the difference of lengths is HyNet's. The publications of
the last two sum over the batch; here they are means, as the losses are, so their weights against
the loss are the published ones.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.learn.distances import EPSILON, distance_matrix, pair_distances
from hardnet.learn.sampling import BLOCK
from hardnet.nets.layers import lengths

NEIGHBOURS = 8
"""Of each descriptor in each of the three distance matrices, for the second-order similarity."""


def correlation_penalty(descriptors: Tensor) -> Tensor:
    """|| offdiagonal( C ) ||_F / n with C = (X - mean X)^T (X - mean X).

    C is not divided by the channels' variances: this is the penalty of the published training
    code, which is what table 2 measured. It is added to the loss with weight 1.

    Args:
        descriptors: (n, D), the anchors of a batch.

    Returns:
        Scalar; 0, with gradient 0, where the channels do not vary at all.
    """
    centred = descriptors - descriptors.mean(dim=0)
    products = centred.T @ centred
    off_diagonal = products - torch.diag(products.diagonal())
    # vector_norm has the gradient 0 at 0, where the square root of a sum of squares has none.
    norm: Tensor = torch.linalg.vector_norm(off_diagonal)
    return norm / len(descriptors)


def second_order_similarity(
    anchors: Tensor, positives: Tensor, neighbours: int = NEIGHBOURS, block: int = BLOCK
) -> Tensor:
    """1/n sum_i sqrt( sum_{j in A_i} (d(a_i, a_j) - d(p_i, p_j))^2 + 1e-6 ).

    Neighbours should be as far apart among the anchors as among the positives. j is in A_i if one
    of i and j is among the ``neighbours`` nearest of the other: a_j of a_i, p_j of p_i, or p_j of
    a_i. Who is a neighbour is found block by block without gradient; the n x n distances are never
    held.

    Args:
        anchors: (n, D) unit vectors.
        positives: (n, D) unit vectors.
        neighbours: of each descriptor in each of the three matrices.
        block: rows of a matrix held at a time.

    Returns:
        Scalar.
    """
    n = len(anchors)
    i, j = _neighbour_pairs(anchors, positives, min(neighbours, n - 1), block)
    among_anchors = pair_distances(anchors[i], anchors[j])
    difference = (among_anchors - pair_distances(positives[i], positives[j])).square()
    sums = anchors.new_zeros(n).index_add(0, i, difference).index_add(0, j, difference)
    return (sums + EPSILON).sqrt().mean()


def _neighbour_pairs(
    anchors: Tensor, positives: Tensor, neighbours: int, block: int
) -> tuple[Tensor, Tensor]:
    """(E,) i and (E,) j, i < j: each pair of neighbours once."""
    n = len(anchors)
    keys = []
    with torch.no_grad():
        for x, y in ((anchors, anchors), (positives, positives), (anchors, positives)):
            for start in range(0, n, block):
                part = distance_matrix(x[start : start + block], y)
                own = torch.arange(start, start + len(part), device=x.device)[:, None]
                part.scatter_(1, own, torch.inf)
                near = part.topk(neighbours, dim=1, largest=False).indices
                keys.append((torch.minimum(own, near) * n + torch.maximum(own, near)).flatten())
        key: Tensor = torch.cat(keys).unique()  # type: ignore[no-untyped-call]
    return key // n, key % n


def length_difference(anchors: Tensor, positives: Tensor) -> Tensor:
    """1/n sum_i (|a_i| - |p_i|)^2 of descriptors before they are scaled to unit length.

    HyNet adds it with weight 0.1.

    Args:
        anchors: (n, D) of any length.
        positives: (n, D) of any length.

    Returns:
        Scalar.
    """
    return (lengths(anchors) - lengths(positives)).square().mean()
