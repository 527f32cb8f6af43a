"""The samplings and losses of the paper: section 3.1, section 4.2 and table 2.

Row i of the distance matrix D holds the distances of anchor a_i to every positive, column i those
of positive p_i to every anchor. A sampling picks the distance of one negative for pair i: the
closest of the batch, that of one other pair drawn blindly, or of a patch that was mined over the
whole training set (:func:`hardnet.learn.batches.mine`). It takes (n, D) unit vectors and gives (n,)
distances, inf for a pair that has no negative. With ``anchor_swap`` the closer of two negatives is
taken, one of the anchor (the row) and one of the positive (the column). Distances below
``same_patch`` are copies of a patch, not negatives. The hardest may also be searched for among the
anchors and among the positives, as SOSNet (CVPR 2019) and HyNet (NeurIPS 2020) do.

A loss is a function of two distances per pair, (n,) d(a_i, p_i) of the match and (n,) d_i of its
negative, and gives a scalar. At the end of the file are the two terms by which a small network
learns from a large one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import softplus

from hardnet.errors import HardnetError
from hardnet.storage import find_code

EPSILON = 1e-6  # keeps the square root's gradient finite where two descriptors coincide


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances D[i, j] = d(a_i, p_j) between (n, D) and (m, D) unit vectors.

    For unit vectors |a - p|^2 = 2 - 2 a.p, so the whole matrix is one multiplication. No distance
    is below sqrt(EPSILON).
    """
    return torch.sqrt((2 - 2 * anchors @ positives.T).clamp_min(0) + EPSILON)


def pair_distances(anchors: Tensor, positives: Tensor) -> Tensor:
    """The diagonal of D alone: (n,) distances d(a_i, p_i)."""
    return torch.sqrt((2 - 2 * (anchors * positives).sum(1)).clamp_min(0) + EPSILON)


SAME_PATCH = 0.008
"""A "non-matching" descriptor closer than this is the same patch under two names (a point that was
reconstructed twice), and is not taken as a negative."""

BLOCK = 256  # rows of the distance matrix held at a time; more are not faster


def hardest_in_batch(
    distances: Tensor, anchor_swap: bool = True, same_patch: float = SAME_PATCH
) -> Tensor:
    """Each pair's hardest negative, from the whole (n, n) matrix D.

    (n,) min( min_j!=i d(a_i, p_j), min_k!=i d(a_k, p_i) ).
    """
    candidates = only_negatives(distances, 0, same_patch)
    row = candidates.min(dim=1).values
    return _closer(row, candidates.min(dim=0).values) if anchor_swap else row


def only_negatives(distances: Tensor, offset: int, same_patch: float) -> Tensor:
    """Set the distances to the partner and to copies of the patch to infinity.

    ``distances`` holds rows offset ... offset + k of the full matrix: (k, n) -> (k, n).
    """
    rows = torch.arange(distances.shape[0], device=distances.device)
    excluded = distances.detach() < same_patch
    excluded[rows, rows + offset] = True
    return distances.masked_fill(excluded, torch.inf)


@dataclass(frozen=True)
class Negatives:
    """The two descriptors that make the negative of pair i: (n,) rows of [anchors; positives].

    ``found`` (n,) says whether the pair has a negative at all.
    """

    left: Tensor
    right: Tensor
    found: Tensor

    def distances(self, anchors: Tensor, positives: Tensor) -> Tensor:
        """(n,) distances of the two, by any network's vectors; inf where there is no negative."""
        everyone = torch.cat([anchors, positives])
        distances = pair_distances(everyone[self.left], everyone[self.right])
        return distances.masked_fill(~self.found, torch.inf)


def hardest_negatives(
    anchors: Tensor,
    positives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
    block: int = BLOCK,
    within: bool = False,
) -> Negatives:
    """Find the hardest negative of each pair, ``block`` rows at a time, without gradient.

    Only this needs the whole distance matrix, which is never held in memory. ``within`` also looks
    at d(a_i, a_j), and with ``anchor_swap`` at d(p_i, p_j).
    """
    n = len(anchors)
    own = torch.arange(n, device=anchors.device)
    with torch.no_grad():
        row_best, row_index = anchors.new_empty(n), torch.empty_like(own)
        column_best, column_index = anchors.new_full((n,), torch.inf), torch.zeros_like(own)
        for start in range(0, n, block):
            part = distance_matrix(anchors[start : start + block], positives)
            part = only_negatives(part, start, same_patch)
            row_best[start : start + block], row_index[start : start + block] = part.min(dim=1)
            if anchor_swap:
                value, index = part.min(dim=0)
                # Strictly smaller: on ties the first row wins, as in the full matrix.
                better = value < column_best
                column_best = torch.where(better, value, column_best)
                column_index = torch.where(better, index + start, column_index)
        by_row = row_best < column_best  # always true without anchor_swap
        best = torch.where(by_row, row_best, column_best)
        left = torch.where(by_row, own, column_index)
        right = torch.where(by_row, row_index, own) + n
        sides = ((0, anchors), (n, positives))[: 1 + anchor_swap] if within else ()
        for first, side in sides:
            for start in range(0, n, block):
                here = slice(start, start + block)
                part = only_negatives(distance_matrix(side[here], side), start, same_patch)
                value, index = part.min(dim=1)
                closer = value < best[here]
                best[here] = torch.where(closer, value, best[here])
                left[here] = torch.where(closer, own[here] + first, left[here])
                right[here] = torch.where(closer, index + first, right[here])
    return Negatives(left, right, ~best.isinf())


def random_in_batch(
    anchors: Tensor,
    positives: Tensor,
    generator: torch.Generator,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
) -> Tensor:
    """Pair i is compared with pair s(i), s a random permutation of the batch.

    A pair that the permutation leaves in place has no negative; that is one per batch on average,
    as in the published code. With ``anchor_swap`` d(a_s(i), p_i) is the other candidate.
    """
    n = len(anchors)
    other = torch.randperm(n, generator=generator, device=generator.device).to(anchors.device)
    in_place = other == torch.arange(n, device=anchors.device)
    row = _without_copies(pair_distances(anchors, positives[other]), same_patch)
    if anchor_swap:
        column = _without_copies(pair_distances(anchors[other], positives), same_patch)
        row = _closer(row, column)
    return row.masked_fill(in_place, torch.inf)


def mined(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
) -> Tensor:
    """Pair i is compared with the mined patch n_i: by a_i or, with ``anchor_swap``, by p_i."""
    row = _without_copies(pair_distances(anchors, negatives), same_patch)
    if not anchor_swap:
        return row
    return _closer(row, _without_copies(pair_distances(positives, negatives), same_patch))


def _without_copies(distances: Tensor, same_patch: float) -> Tensor:
    return distances.masked_fill(distances.detach() < same_patch, torch.inf)


def _closer(row: Tensor, column: Tensor) -> Tensor:
    """The minimum; on a tie all of the gradient goes to the column's (section 3.1).

    A NaN in either stays a NaN.
    """
    return torch.where((row < column) | row.isnan(), row, column)


def triplet_margin(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i max(0, m + d(a_i, p_i) - d_i), with m = 1 in the paper."""
    return (margin + positive - negative).clamp_min(0).mean()


def softmin(positive: Tensor, negative: Tensor) -> Tensor:
    """L = 1/n sum_i -log( e^(2 - d(a_i, p_i)) / (e^(2 - d(a_i, p_i)) + e^(2 - d_i)) ).

    Divided by e^(2 - d(a_i, p_i)) this is log(1 + e^(d(a_i, p_i) - d_i)), which never overflows.
    The published code adds 1e-8 to the denominator instead; the loss differs by less than 1e-8.
    """
    return softplus(positive - negative).mean()


def contrastive(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i d(a_i, p_i) + max(0, m - d_i); m is 1 and 2 in the paper."""
    return (positive + (margin - negative).clamp_min(0)).mean()


def quadratic(positive: Tensor, negative: Tensor, margin: float = 1.0) -> Tensor:
    """L = 1/n sum_i max(0, m + d(a_i, p_i) - d_i)^2, SOSNet's first-order term; m = 1 there.

    The publication has the sum over the batch; here, as everywhere, it is the mean, so that the
    learning rate does not depend on the batch.
    """
    return (margin + positive - negative).clamp_min(0).square().mean()


def hybrid(positive: Tensor, negative: Tensor, margin: float = 1.2) -> Tensor:
    """L = 1/n sum_i max(0, m + s(d(a_i, p_i)) - s(d_i)) with s(d) = d + d^2, HyNet's similarity.

    d^2 = 2 (1 - a.p), so s joins the distance with HyNet's alpha = 2 times the inner product: the
    first pulls hard on pairs that are close already, the second on those far apart. The publication
    has m = 1.2 and the sum over the batch; here it is the mean.
    """
    # The slope of inf^2 is inf, and 0 * inf is NaN: use a number beyond any margin instead.
    negative = negative.masked_fill(negative.isinf(), 1e3)
    gap = positive + positive.square() - negative - negative.square()
    return (margin + gap).clamp_min(0).mean()


def hardnet_loss(anchors: Tensor, positives: Tensor, margin: float = 1.0) -> Tensor:
    """Distance matrix, hardest-in-batch sampling, triplet margin: the three steps of the paper.

    Training uses :class:`hardnet.learn.objective.Objective`, which gives the same number for the
    (n, D) unit vectors of anchors and positives without holding the matrix.
    """
    distances = distance_matrix(anchors, positives)
    return triplet_margin(distances.diagonal(), hardest_in_batch(distances), margin)


_WITH_MARGIN = {
    "triplet": triplet_margin,
    "contrastive": contrastive,
    "quadratic": quadratic,
    "hybrid": hybrid,
}
LOSSES = ("triplet", "softmin", "contrastive", "quadratic", "hybrid")


def pair_loss(name: str, margin: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name as a function of (positive, negative); softmin has no margin.

    ``module:function`` is your own: (positive, negative), and ``margin`` if it has such an argument
    -> scalar. The name must come from the user, not from a file.
    """
    if ":" in name:
        return partial(_own_loss, name, find_code(name), margin)
    if name == "softmin":
        return softmin
    if name in _WITH_MARGIN:
        return partial(_WITH_MARGIN[name], margin=margin)
    raise HardnetError(f"loss: {name} is not a loss of two distances; those are {LOSSES}")


def _own_loss(
    name: str, function: Callable[..., Tensor], margin: float, positive: Tensor, negative: Tensor
) -> Tensor:
    if not callable(function):
        raise HardnetError(f"loss: {name} is not a function of two distances")
    takes_margin = "margin" in inspect.signature(function).parameters
    loss = function(positive, negative, **({"margin": margin} if takes_margin else {}))
    if not isinstance(loss, Tensor) or loss.ndim:
        raise HardnetError(f"loss: {name} must return one number, the mean over the pairs")
    return loss


def teacher_cosine(student: Tensor, teacher: Tensor) -> Tensor:
    """1 - 1/m sum_i s_i . t_i of (m, D) unit vectors: the student's should be the teacher's."""
    return 1 - (student * teacher).sum(dim=1).mean()


def teacher_distances(student: Tensor, teacher: Tensor) -> Tensor:
    """1/n sum_i (d_S,i - d_T,i)^2: two patches should be as far apart as the teacher sees them.

    The student's distance of a pair without negative is inf, and adds 0.
    """
    nobody = student.isinf()
    difference = student.masked_fill(nobody, 0) - teacher.masked_fill(nobody, 0)
    return difference.square().mean()
