"""Which non-matching descriptor each pair is compared with: section 3.1 of the paper.

Row i of the distance matrix holds the distances of anchor a_i to every positive, column i those of
positive p_i to every anchor. The hardest negative of pair i is the closest of all of them that is
not its own partner.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.learn.distances import distance_matrix, pair_distances

SAME_PATCH = 0.008
"""A "non-matching" descriptor closer than this is the same patch under two names (a point that was
reconstructed twice), and is not taken as a negative."""

FAR = 10.0  # more than any distance between unit vectors


def hardest_in_batch(distances: Tensor) -> Tensor:
    """Distance of each pair's hardest negative, over its row and its column.

    Args:
        distances: (n, n), D[i, j] = d(a_i, p_j).

    Returns:
        (n,) min( min_j!=i d(a_i, p_j), min_k!=i d(a_k, p_i) ). Pairs without a negative (n = 1,
        or only copies of themselves) get a distance above FAR and thus no loss.
    """
    masked = mask_own_partner(distances, offset=0)
    return torch.minimum(masked.min(dim=1).values, masked.min(dim=0).values)


def mask_own_partner(distances: Tensor, offset: int) -> Tensor:
    """Push matching entries and near-copies out of reach of the minimum.

    ``distances`` holds rows offset ... offset + k of the full matrix: (k, n) -> (k, n).
    """
    rows = torch.arange(distances.shape[0], device=distances.device)
    partner = torch.zeros_like(distances)
    partner[rows, rows + offset] = FAR
    copy = (distances.detach() < SAME_PATCH).to(distances.dtype) * FAR
    return distances + partner + copy


def hardest_in_batch_blockwise(anchors: Tensor, positives: Tensor, block: int = 1024) -> Tensor:
    """The same as ``hardest_in_batch(distance_matrix(a, p))`` without ever holding n x n numbers.

    Only *which* negative is the hardest needs the whole matrix; that is found block by block
    without gradient, and the n distances of the chosen pairs are then computed with gradient.

    Args:
        anchors: (n, D) unit vectors.
        positives: (n, D) unit vectors.
        block: rows of the matrix held at a time.

    Returns:
        (n,) distances of the hardest negatives.
    """
    n = len(anchors)
    with torch.no_grad():
        row_best = anchors.new_empty(n)
        row_index = torch.empty(n, dtype=torch.long, device=anchors.device)
        column_best = anchors.new_full((n,), float("inf"))
        column_index = torch.zeros(n, dtype=torch.long, device=anchors.device)
        for start in range(0, n, block):
            part = distance_matrix(anchors[start : start + block], positives)
            part = mask_own_partner(part, start)
            row_best[start : start + block], row_index[start : start + block] = part.min(dim=1)
            value, index = part.min(dim=0)
            # Strictly smaller: on ties the first row wins, as in the full matrix.
            better = value < column_best
            column_best = torch.where(better, value, column_best)
            column_index = torch.where(better, index + start, column_index)
        by_row = row_best <= column_best
        own = torch.arange(n, device=anchors.device)
        left = torch.where(by_row, own, column_index)
        right = torch.where(by_row, row_index, own)
        nothing = torch.minimum(row_best, column_best) >= FAR
    return pair_distances(anchors[left], positives[right]) + nothing * FAR
