"""What a training step minimises: one sampling, one loss and one regularizer, freely combined.

With a teacher there are two more terms: the student's vectors should equal the teacher's, and so
should the distances that the loss looks at.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hardnet.errors import HardnetError
from hardnet.learn import losses
from hardnet.learn.losses import (
    BLOCK,
    EPSILON,
    SAME_PATCH,
    Negatives,
    distance_matrix,
    hardest_negatives,
    mined,
    pair_distances,
    pair_loss,
    random_in_batch,
)
from hardnet.learn.recipe import check_name
from hardnet.nets.hardnet import lengths, unit_length

SAMPLINGS = ("hardest", "random", "classical", "all")
LOSSES = (*losses.LOSSES, "l2net")
NEGATIVES = ("cross", "all")
REGULARIZERS = ("none", "cpr", "sos", "lengths")
FURTHEST = 2.0  # the largest distance of two unit vectors


@dataclass(frozen=True)
class Terms:
    """The loss of a batch, with its gradient, and what it was made of.

    ``positive`` and ``negative`` are (n,) distances. If the loss looks at all negatives, the
    hardest is given; a pair without a negative has 2, the largest distance possible. ``teacher`` is
    what the teacher's terms add to the loss.
    """

    loss: Tensor
    positive: Tensor
    negative: Tensor
    teacher: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Descriptors of a batch -> :class:`Terms`; the fields are those keys of a recipe.

    Unknown names and names that do not go together are an error.
    """

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
            raise HardnetError(
                f"negatives=all is for sampling=hardest: sampling {sampling} takes negatives=cross"
            )
        if loss == "l2net" and sampling != "all":
            raise HardnetError(
                f"loss l2net looks at all pairs of a batch: use sampling=all, not {sampling}"
            )
        if sampling == "all" and loss != "l2net":
            raise HardnetError(
                f"loss {loss} takes one negative per pair: use sampling=hardest, random or "
                "classical; sampling all is for loss l2net"
            )
        if not (0 < self.margin < math.inf):
            raise HardnetError(f"margin must be positive, got {self.margin}")
        if not (0 <= self.same_patch < FURTHEST):
            raise HardnetError(
                f"same_patch is a distance of unit vectors, from 0 (off) to {FURTHEST:g}, "
                f"got {self.same_patch}"
            )
        for key in ("regularizer_weight", "teacher_cosine", "teacher_distances"):
            if not (0 <= getattr(self, key) < math.inf):
                raise HardnetError(f"{key} must not be negative, got {getattr(self, key)}")
        if (self.teacher_cosine or self.teacher_distances) and sampling != "hardest":
            raise HardnetError(
                "a teacher is asked about the hardest negatives: use sampling=hardest, not "
                f"{sampling}"
            )

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
        """The loss of a batch; at most a block of the distance matrix is held in memory.

        All are (n, D) unit vectors, of any length if ``any_length``: the anchors, one per 3D point,
        the positives in the same order, and the mined patches if ``streams`` is 3. The teacher's
        are (n, E). Only the random sampling uses the generator.
        """
        penalty: Tensor | None = None
        if self.any_length:
            penalty = length_difference(anchors, positives)
            anchors, positives = unit_length(anchors), unit_length(positives)
            negatives = None if negatives is None else unit_length(negatives)
        details = (self.anchor_swap, self.same_patch)
        positive = pair_distances(anchors, positives)
        hardest: Negatives | None = None
        if self.sampling == "all":
            with torch.no_grad():  # for the log alone: the loss singles out no negative
                chosen = hardest_negatives(anchors, positives, *details)
                negative = chosen.distances(anchors, positives)
            loss = l2net(anchors, positives, *details)
        else:
            if self.sampling == "hardest":
                within = self.negatives == "all"
                hardest = hardest_negatives(anchors, positives, *details, within=within)
                negative = hardest.distances(anchors, positives)
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
            apart = pair_distances(*teacher), hardest.distances(*teacher)
            taught = self.teacher_distances * (
                losses.teacher_distances(positive, apart[0])
                + losses.teacher_distances(negative, apart[1])
            )
            if self.teacher_cosine:
                both = torch.cat([anchors, positives]), torch.cat(teacher)
                taught = taught + self.teacher_cosine * losses.teacher_cosine(*both)
            loss = loss + taught
        return Terms(loss, positive, negative.masked_fill(negative.isinf(), FURTHEST), taught)


# L2-Net looks at all negatives of a pair: the match should win a softmax over its row of the
# distance matrix, and over its column.

ABSENT = 50.0  # e^-50 vanishes in any sum, and its gradient is finite in any version of torch


def l2net(
    anchors: Tensor,
    positives: Tensor,
    anchor_swap: bool = True,
    same_patch: float = SAME_PATCH,
    block: int = BLOCK,
) -> Tensor:
    """L = -1/(2n) sum_i [ log( e^-D_ii / sum_j e^-D_ij ) + log( e^-D_ii / sum_j e^-D_ji ) ].

    (The publication has e^(2 - D); the e^2 cancels.) L2-Net takes the mean of rows and columns; the
    published HardNet code takes their sum, which is twice as much. Without ``anchor_swap`` only the
    rows count. The matrix is computed ``block`` rows at a time, and again in the backward pass: the
    gradients are exact and the matrix is never held in memory.
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


# CPR, the penalty on correlated descriptor channels, is L2-Net's and in table 2 of the paper; the
# second-order similarity is SOSNet's, and the difference of lengths is HyNet's. The publications
# of the last two sum over the batch; here they are means, as the losses are, so their weights
# against the loss are the published ones.

NEIGHBOURS = 8
"""Of each descriptor in each of the three distance matrices, for the second-order similarity."""


def correlation_penalty(descriptors: Tensor) -> Tensor:
    """|| offdiagonal( C ) ||_F / n with C = (X - mean X)^T (X - mean X) of (n, D) descriptors.

    C is not divided by the channels' variances: this is the penalty of the published training code,
    which table 2 measured. If the channels do not vary at all, it is 0 with gradient 0.
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
    """1/n sum_i sqrt( sum_{j in A_i} (d(a_i, a_j) - d(p_i, p_j))^2 + 1e-6 ).

    Neighbours should be as far apart among the anchors as among the positives. j is in A_i if one
    of i and j is among the ``neighbours`` nearest of the other: a_j of a_i, p_j of p_i, or p_j of
    a_i. Neighbours are found ``block`` rows at a time without gradient; the n x n distances are
    never held in memory.
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
    """
    return (lengths(anchors) - lengths(positives)).square().mean()


Magnitudes = NDArray[np.float64]


def gradient_magnitudes(
    loss: str, margin: float, positive: ArrayLike, negative: ArrayLike
) -> tuple[Magnitudes, Magnitudes]:
    """(P, N) |dL/dpositive| and |dL/dnegative| of the loss of one pair, from autograd.

    ``positive`` are (P,) distances d(a, p), ``negative`` (N,) distances d(a, n).
    """
    pulls, pushes = (torch.as_tensor(np.asarray(x, np.float64)) for x in (positive, negative))
    grid = torch.meshgrid(pulls, pushes, indexing="ij")
    p, n = (x.clone().requires_grad_() for x in grid)
    # The losses are means over the pairs of a batch; here every point of the grid is a pair.
    total = pair_loss(loss, margin)(p, n) * p.numel()
    by_positive, by_negative = torch.autograd.grad(total, (p, n))
    return by_positive.abs().numpy(), by_negative.abs().numpy()
