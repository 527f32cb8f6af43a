"""The objective of L2-Net (Tian et al., CVPR 2017), the rival that the paper compares with.

Instead of one negative per pair it looks at all of them: the match should win a softmax over its
row of the distance matrix, and over its column.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardnet.learn.distances import distance_matrix, pair_distances
from hardnet.learn.sampling import BLOCK, SAME_PATCH

ABSENT = 50.0  # e^-50 vanishes in any sum, and its gradient is finite in any version of torch


def l2net(
    anchors: Tensor,
    positives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
    block: int = BLOCK,
) -> Tensor:
    """L = -1/(2n) sum_i [ log( e^-D_ii / sum_j e^-D_ij ) + log( e^-D_ii / sum_j e^-D_ji ) ].

    (e^(2 - D) of the publication: the e^2 cancels.) The mean of rows and columns is L2-Net's; the
    published HardNet code adds them up, which is twice as much. The matrix is made ``block`` rows
    at a time, and again in the backward pass: its gradients are exact and it is never held.

    Args:
        anchors: (n, D) unit vectors.
        positives: (n, D) unit vectors.
        anchor_swap: the mean of rows and columns; otherwise the rows alone.
        same_patch: other descriptors closer than this are copies and count in no sum.
        block: rows of the matrix held at a time.

    Returns:
        Scalar.
    """
    rows, columns = [], []
    for start in range(0, len(anchors), block):
        row, column = checkpoint(
            _log_sums,
            anchors[start : start + block],
            positives,
            start,
            same_patch,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        rows.append(row)
        columns.append(column)
    positive = pair_distances(anchors, positives)
    by_row = (positive + torch.cat(rows)).mean()
    if not anchor_swap:
        return by_row
    by_column = (positive + torch.stack(columns).logsumexp(dim=0)).mean()
    return (by_row + by_column) / 2


def _log_sums(
    anchors: Tensor, positives: Tensor, offset: int, same_patch: float
) -> tuple[Tensor, Tensor]:
    """Logs of sums of e^-D over rows (k,) and columns (n,) of rows offset ... offset + k."""
    distances = distance_matrix(anchors, positives)
    rows = torch.arange(len(anchors), device=anchors.device)
    copies = distances.detach() < same_patch
    copies[rows, rows + offset] = False
    logits = -distances.masked_fill(copies, ABSENT)
    return logits.logsumexp(dim=1), logits.logsumexp(dim=0)
