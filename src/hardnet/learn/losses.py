"""What training minimises: the paper's sampling, loss and regularizer (sections 3.1, 4.2, table 2).

Row i of the distance matrix D holds the distances of anchor a_i to every positive, column i those
of positive p_i to every anchor. Vectors are (n, D), one pair per 3D point. Rivals and successors
of HardNet have their terms here too: L2-Net, SOSNet (CVPR 2019), HyNet (NeurIPS 2020), and a
teacher's. Where a publication sums over the batch, the mean is taken here, so that the learning
rate does not depend on the batch.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.nn.functional import softplus
from torch.utils.checkpoint import checkpoint

from hardnet.errors import HardnetError
from hardnet.learn.recipe import check_name
from hardnet.nets.hardnet import lengths, unit_length
from hardnet.storage import find_code

EPSILON = 1e-6  # keeps the square root's gradient finite where two descriptors coincide
FURTHEST = 2.0  # the largest distance of two unit vectors
SAME_PATCH = 0.008
"""A "non-matching" descriptor closer than this is the same patch under two names (a point that was
reconstructed twice), and is not taken as a negative."""
BLOCK = 256  # rows of the distance matrix held at a time; more are not faster


def distance_matrix(anchors: Tensor, positives: Tensor) -> Tensor:
    """Euclidean distances D[i, j] = d(a_i, p_j) between (n, D) and (m, D) unit vectors.

    For unit vectors |a - p|^2 = 2 - 2 a.p, so the whole matrix is one multiplication. No distance
    is below sqrt(EPSILON).
    """
    return torch.sqrt((2 - 2 * anchors @ positives.T).clamp_min(0) + EPSILON)


def pair_distances(anchors: Tensor, positives: Tensor) -> Tensor:
    """The diagonal of D alone: (n,) distances d(a_i, p_i)."""
    return torch.sqrt((2 - 2 * (anchors * positives).sum(1)).clamp_min(0) + EPSILON)


# Samplings: (n,) the distance of the negative of each pair, inf for a pair that has none. With
# ``anchor_swap`` the closer of two is taken, one of the anchor (the row), one of the positive (the
# column). Distances below ``same_patch`` are copies of a patch, not negatives.


def hardest_in_batch(
    distances: Tensor, anchor_swap: bool = True, same_patch: float = SAME_PATCH
) -> Tensor:
    """min( min_j!=i d(a_i, p_j), min_k!=i d(a_k, p_i) ) from the whole (n, n) matrix D."""
    candidates = only_negatives(distances, 0, same_patch)
    row, column = (candidates.min(dim=axis).values for axis in (1, 0))
    return _closer(row, column, anchor_swap, same_patch)


def only_negatives(distances: Tensor, offset: int, same_patch: float) -> Tensor:
    """Rows offset ... offset + k of D, (k, n), with inf for the partner and for copies."""
    rows = torch.arange(distances.shape[0], device=distances.device)
    excluded = distances.detach() < same_patch
    excluded[rows, rows + offset] = True
    return distances.masked_fill(excluded, torch.inf)


def hardest_negatives(
    anchors: Tensor,
    positives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
    block: int = BLOCK,
    within: bool = False,
) -> Callable[[Tensor, Tensor], Tensor]:
    """Find the hardest negative of each pair, ``block`` rows of D at a time, without gradient.

    ``within`` also looks at d(a_i, a_j), and with ``anchor_swap`` at d(p_i, p_j). The result
    measures the (n,) distances of the negatives found, by any network's vectors.
    """
    n = len(anchors)
    itself = torch.arange(n, device=anchors.device)
    with torch.no_grad():
        row, by_row, column, by_column = _nearest(anchors, positives, same_patch, block)
        if not anchor_swap:
            column = torch.full_like(column, torch.inf)
        best = torch.where(row < column, row, column)
        left = torch.where(row < column, itself, by_column)
        right = torch.where(row < column, by_row, itself) + n
        sides = ((0, anchors), (n, positives))[: 1 + anchor_swap] if within else ()
        for first, side in sides:
            distance, nearest, _, _ = _nearest(side, side, same_patch, block)
            closer = distance < best
            best = torch.where(closer, distance, best)
            left = torch.where(closer, itself + first, left)
            right = torch.where(closer, nearest + first, right)

    def distances(anchors: Tensor, positives: Tensor) -> Tensor:
        everyone = torch.cat([anchors, positives])
        return pair_distances(everyone[left], everyone[right]).masked_fill(best.isinf(), torch.inf)

    return distances


def _nearest(
    x: Tensor, y: Tensor, same_patch: float, block: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The smallest distance of a negative in each row of D and its place; then in each column."""
    rows, places = [], []
    column = x.new_full((len(y),), torch.inf)
    by_column = torch.zeros(len(y), dtype=torch.int64, device=x.device)
    for start in range(0, len(x), block):
        part = only_negatives(distance_matrix(x[start : start + block], y), start, same_patch)
        value, index = part.min(dim=1)
        rows.append(value)
        places.append(index)
        value, index = part.min(dim=0)
        better = value < column  # on a tie the first row wins, as in the full matrix
        column = torch.where(better, value, column)
        by_column = torch.where(better, index + start, by_column)
    return torch.cat(rows), torch.cat(places), column, by_column


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
    order = torch.randperm(len(anchors), generator=generator, device=generator.device)
    other = order.to(anchors.device)
    row, column = (
        pair_distances(anchors, positives[other]),
        pair_distances(anchors[other], positives),
    )
    in_place = other == torch.arange(len(anchors), device=anchors.device)
    return _closer(row, column, anchor_swap, same_patch).masked_fill(in_place, torch.inf)


def mined(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
) -> Tensor:
    """Pair i is compared with the mined patch n_i: by a_i or, with ``anchor_swap``, by p_i."""
    row, column = (pair_distances(x, negatives) for x in (anchors, positives))
    return _closer(row, column, anchor_swap, same_patch)


def _closer(row: Tensor, column: Tensor, anchor_swap: bool, same_patch: float) -> Tensor:
    """The minimum; on a tie all of the gradient goes to the column's (section 3.1)."""
    row, column = (x.masked_fill(x.detach() < same_patch, torch.inf) for x in (row, column))
    # A NaN in either stays a NaN.
    return torch.where((row < column) | row.isnan(), row, column) if anchor_swap else row


# Losses of two distances per pair: (n,) d(a_i, p_i) of the match and (n,) d_i of its negative.


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
    """L = 1/n sum_i max(0, m + d(a_i, p_i) - d_i)^2, SOSNet's first-order term; m = 1 there."""
    return (margin + positive - negative).clamp_min(0).square().mean()


def hybrid(positive: Tensor, negative: Tensor, margin: float = 1.2) -> Tensor:
    """L = 1/n sum_i max(0, m + s(d(a_i, p_i)) - s(d_i)) with s(d) = d + d^2, HyNet's similarity.

    The distance pulls hard on pairs that are close already, d^2 = 2 (1 - a.p) on those far apart.
    """
    # The slope of inf^2 is inf, and 0 * inf is NaN: use a number beyond any margin instead.
    negative = negative.masked_fill(negative.isinf(), 1e3)
    gap = positive + positive.square() - negative - negative.square()
    return (margin + gap).clamp_min(0).mean()


PAIR_LOSSES: dict[str, Callable[..., Tensor]] = {
    "triplet": triplet_margin,
    "softmin": softmin,
    "contrastive": contrastive,
    "quadratic": quadratic,
    "hybrid": hybrid,
}


def pair_loss(name: str, margin: float) -> Callable[[Tensor, Tensor], Tensor]:
    """The loss of that name as a function of (positive, negative) distances.

    ``module:function`` is one of the user: (positive, negative), and ``margin`` if it takes one
    -> scalar. The name must come from the user, not from a file.
    """
    of_user = ":" in name
    function = find_code(name) if of_user else PAIR_LOSSES.get(name)
    if not callable(function):
        known = "" if of_user else f"; those are {tuple(PAIR_LOSSES)}"
        raise HardnetError(f"loss: {name} is not a function of two distances{known}")
    takes_margin = "margin" in inspect.signature(function).parameters

    def loss(positive: Tensor, negative: Tensor) -> Tensor:
        value = function(positive, negative, **({"margin": margin} if takes_margin else {}))
        if not isinstance(value, Tensor) or value.ndim:
            raise HardnetError(f"loss: {name} must return one number, the mean over the pairs")
        return value

    return loss


def hardnet_loss(anchors: Tensor, positives: Tensor, margin: float = 1.0) -> Tensor:
    """Distance matrix, hardest-in-batch sampling, triplet margin: the three steps of the paper.

    Training uses :class:`Objective`, which gives the same number without holding the matrix.
    """
    distances = distance_matrix(anchors, positives)
    return triplet_margin(distances.diagonal(), hardest_in_batch(distances), margin)


ABSENT = 50.0  # e^-50 vanishes in any sum, and its gradient is finite in any version of torch


def l2net(
    anchors: Tensor,
    positives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
    block: int = BLOCK,
) -> Tensor:
    """L = -1/(2n) sum_i [ log( e^-D_ii / sum_j e^-D_ij ) + log( e^-D_ii / sum_j e^-D_ji ) ].

    L2-Net looks at all negatives of a pair: the match should win a softmax over its row of D, and
    over its column. (The publication has e^(2 - D); the e^2 cancels.) It takes the mean of the two;
    the published HardNet code takes their sum. Without ``anchor_swap`` only the rows count. The
    matrix is computed ``block`` rows at a time, and again in the backward pass: the gradients are
    exact and the matrix is never held in memory.
    """
    recomputed = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
    rows, columns = [], []
    for start in range(0, len(anchors), block):
        part = anchors[start : start + block]
        row, column = recomputed(_log_sums, part, positives, start, same_patch)
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


NEIGHBOURS = 8
"""Of each descriptor in each of the three distance matrices, for the second-order similarity."""


def correlation_penalty(descriptors: Tensor) -> Tensor:
    """CPR: || offdiagonal( C ) ||_F / n, C = (X - mean X)^T (X - mean X) of (n, D) descriptors.

    L2-Net's penalty on correlated channels. C is not divided by their variances, as in the
    published training code, which table 2 measured. Channels that do not vary give 0, gradient 0.
    """
    centred = descriptors - descriptors.mean(dim=0)
    products = centred.T @ centred
    off_diagonal = products - torch.diag(products.diagonal())
    # At 0 the gradient of vector_norm is 0; that of the root of a sum of squares is undefined.
    norm: Tensor = torch.linalg.vector_norm(off_diagonal)
    return norm / len(descriptors)


def second_order_similarity(
    anchors: Tensor, positives: Tensor, neighbours: int = NEIGHBOURS, block: int = BLOCK
) -> Tensor:
    """1/n sum_i sqrt( sum_j in A_i (d(a_i, a_j) - d(p_i, p_j))^2 ), SOSNet's second-order term.

    j is in A_i if one of i and j is among the ``neighbours`` nearest of the other: a_j of a_i, p_j
    of p_i, or p_j of a_i. They are found ``block`` rows of D at a time.
    """
    n, keys = len(anchors), []
    with torch.no_grad():
        for x, y in ((anchors, anchors), (positives, positives), (anchors, positives)):
            for start in range(0, n, block):
                part = distance_matrix(x[start : start + block], y)
                itself = torch.arange(start, start + len(part), device=x.device)[:, None]
                part.scatter_(1, itself, torch.inf)
                near = part.topk(min(neighbours, n - 1), dim=1, largest=False).indices
                low, high = torch.minimum(itself, near), torch.maximum(itself, near)
                keys.append((low * n + high).flatten())
        pairs: Tensor = torch.cat(keys).unique()  # type: ignore[no-untyped-call]
    i, j = pairs // n, pairs % n  # each pair of neighbours once, i < j
    among_anchors = pair_distances(anchors[i], anchors[j])
    difference = (among_anchors - pair_distances(positives[i], positives[j])).square()
    sums = anchors.new_zeros(n).index_add(0, i, difference).index_add(0, j, difference)
    return (sums + EPSILON).sqrt().mean()


def length_difference(anchors: Tensor, positives: Tensor) -> Tensor:
    """1/n sum_i (|a_i| - |p_i|)^2 of vectors of any length; HyNet adds it with weight 0.1."""
    return (lengths(anchors) - lengths(positives)).square().mean()


def squared_gap(student: Tensor, teacher: Tensor) -> Tensor:
    """1/n sum_i (d_S,i - d_T,i)^2: two patches should be as far apart as the teacher sees them.

    The student's distance of a pair without negative is inf, and adds 0.
    """
    nobody = student.isinf()
    return (student.masked_fill(nobody, 0) - teacher.masked_fill(nobody, 0)).square().mean()


SAMPLINGS = ("hardest", "random", "classical", "all")
LOSSES = (*PAIR_LOSSES, "l2net")
NEGATIVES = ("cross", "all")
REGULARIZERS = ("none", "cpr", "sos", "lengths")


@dataclass(frozen=True)
class Terms:
    """The loss of a batch, with its gradient, and what it was made of.

    ``positive`` and ``negative`` are (n,) distances; a pair without a negative has 2, the largest
    distance possible. ``teacher`` is what the teacher's terms add to the loss.
    """

    loss: Tensor
    positive: Tensor
    negative: Tensor
    teacher: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Descriptors of a batch -> :class:`Terms`; the fields are those keys of a recipe."""

    sampling: str
    loss: str
    margin: float
    regularizer: str
    anchor_swap: bool
    same_patch: float
    negatives: str = "cross"
    regularizer_weight: float = 1.0
    teacher_cosine: float = 0.0
    teacher_distances: float = 0.0

    def __post_init__(self) -> None:
        sampling, loss = self.sampling, self.loss
        check_name("sampling", "name", sampling, SAMPLINGS)
        if ":" in loss:
            pair_loss(loss, self.margin)  # fails now if there is no such function
        else:
            check_name("loss", "name", loss, LOSSES)
        check_name("regularizer", "name", self.regularizer, REGULARIZERS)
        check_name("negatives", "name", self.negatives, NEGATIVES)
        if self.negatives == "all" and sampling != "hardest":
            problem = f"is for sampling=hardest: sampling {sampling} takes negatives=cross"
            raise HardnetError(f"negatives=all {problem}")
        if loss == "l2net" and sampling != "all":
            problem = f"looks at all pairs of a batch: use sampling=all, not {sampling}"
            raise HardnetError(f"loss l2net {problem}")
        if sampling == "all" and loss != "l2net":
            others = "sampling=hardest, random or classical; sampling all is for loss l2net"
            raise HardnetError(f"loss {loss} takes one negative per pair: use {others}")
        if (self.teacher_cosine or self.teacher_distances) and sampling != "hardest":
            problem = f"hardest negatives: use sampling=hardest, not {sampling}"
            raise HardnetError(f"a teacher is asked about the {problem}")
        if not 0 < self.margin < math.inf:
            raise HardnetError(f"margin must be positive, got {self.margin}")
        if not 0 <= self.same_patch < FURTHEST:
            bounds = f"from 0 (off) to {FURTHEST:g}, got {self.same_patch}"
            raise HardnetError(f"same_patch is a distance of unit vectors, {bounds}")
        for key in ("regularizer_weight", "teacher_cosine", "teacher_distances"):
            if not 0 <= getattr(self, key) < math.inf:
                raise HardnetError(f"{key} must not be negative, got {getattr(self, key)}")

    @property
    def streams(self) -> int:
        """Patches per pair: anchor and positive, and a mined negative for "classical"."""
        return 3 if self.sampling == "classical" else 2

    @property
    def any_length(self) -> bool:
        """Whether it takes descriptors before they are scaled to unit length."""
        return self.regularizer == "lengths"

    def __call__(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None,
        generator: torch.Generator,
        teacher: tuple[Tensor, Tensor] | None = None,
    ) -> Terms:
        """The loss; ``negatives`` are the mined patches, the teacher's vectors are (n, E)."""
        penalty: Tensor | None = None
        if self.any_length:
            penalty = length_difference(anchors, positives)
            anchors, positives = unit_length(anchors), unit_length(positives)
            negatives = None if negatives is None else unit_length(negatives)
        details = (self.anchor_swap, self.same_patch)
        positive = pair_distances(anchors, positives)
        hardest: Callable[[Tensor, Tensor], Tensor] | None = None
        if self.sampling == "all":
            with torch.no_grad():  # for the log alone: the loss singles out no negative
                negative = hardest_negatives(anchors, positives, *details)(anchors, positives)
            loss = l2net(anchors, positives, *details)
        else:
            if self.sampling == "hardest":
                within = self.negatives == "all"
                hardest = hardest_negatives(anchors, positives, *details, within=within)
                negative = hardest(anchors, positives)
            elif self.sampling == "random":
                negative = random_in_batch(anchors, positives, generator, *details)
            elif negatives is None:
                raise ValueError("classical sampling needs the descriptors of the mined negatives")
            else:
                negative = mined(anchors, positives, negatives, *details)
            loss = pair_loss(self.loss, self.margin)(positive, negative)
        if self.regularizer == "cpr":
            penalty = correlation_penalty(anchors)
        elif self.regularizer == "sos":
            penalty = second_order_similarity(anchors, positives)
        if penalty is not None:
            loss = loss + self.regularizer_weight * penalty
        taught = None
        if teacher is not None and hardest is not None:
            taught = self.teacher_distances * (
                squared_gap(positive, pair_distances(*teacher))
                + squared_gap(negative, hardest(*teacher))
            )
            if self.teacher_cosine:  # 1 - 1/m sum_i s_i . t_i: the vectors should be the teacher's
                products = torch.cat([anchors, positives]) * torch.cat(teacher)
                taught = taught + self.teacher_cosine * (1 - products.sum(dim=1).mean())
            loss = loss + taught
        return Terms(loss, positive, negative.masked_fill(negative.isinf(), FURTHEST), taught)


def gradient_magnitudes(
    loss: str, margin: float, positive: ArrayLike, negative: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(P, N) |dL/dpositive| and |dL/dnegative| of one pair at (P,) d(a, p) and (N,) d(a, n)."""
    pulls, pushes = (torch.as_tensor(np.asarray(x, np.float64)) for x in (positive, negative))
    grid = torch.meshgrid(pulls, pushes, indexing="ij")
    p, n = (x.clone().requires_grad_() for x in grid)
    total = pair_loss(loss, margin)(p, n) * p.numel()  # the loss is the mean over the pairs
    by_positive, by_negative = torch.autograd.grad(total, (p, n))
    return by_positive.abs().numpy(), by_negative.abs().numpy()
