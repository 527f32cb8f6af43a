"""What a training step minimises: one sampling, one loss and one regularizer, freely combined."""

from __future__ import annotations

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hardnet.errors import HardnetError
from hardnet.learn import losses
from hardnet.learn.distances import pair_distances
from hardnet.learn.l2net import l2net
from hardnet.learn.regularizers import (
    correlation_penalty,
    length_difference,
    second_order_similarity,
)
from hardnet.learn.sampling import hardest_in_batch_blockwise, mined, random_in_batch
from hardnet.nets.layers import unit_length

SAMPLINGS = ("hardest", "random", "classical", "all")
LOSSES = (*losses.LOSSES, "l2net")
NEGATIVES = ("cross", "all")
REGULARIZERS = ("none", "cpr", "sos", "lengths")
FURTHEST = 2.0  # the largest distance of two unit vectors


@dataclass(frozen=True)
class Terms:
    """What a batch gives.

    Attributes:
        loss: scalar with gradient, the regularizer included.
        positive: (n,) distances of the matching pairs.
        negative: (n,) distances of the negatives they were compared with; of the hardest ones where
            the objective looks at all; 2, the furthest there is, for a pair without a negative.
    """

    loss: Tensor
    positive: Tensor
    negative: Tensor


@dataclass(frozen=True)
class Objective:
    """Descriptors of a batch -> :class:`Terms`. Made by :func:`build_objective`."""

    sampling: str
    loss: str
    margin: float
    regularizer: str
    anchor_swap: bool
    same_patch: float
    negatives: str
    regularizer_weight: float

    @property
    def streams(self) -> int:
        """Patches per pair: anchor and positive, and a mined negative for "classical"."""
        return 3 if self.sampling == "classical" else 2

    @property
    def any_length(self) -> bool:
        """Whether it takes descriptors as they are before their scaling to unit length."""
        return self.regularizer == "lengths"

    def __call__(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None,
        generator: torch.Generator,
    ) -> Terms:
        """The loss of a batch, in memory for a block of the distance matrix.

        Descriptors with a NaN make the loss NaN.

        Args:
            anchors: (n, D) unit vectors, one per 3D point; vectors of any length if ``any_length``.
            positives: (n, D) likewise, of the same points in the same order.
            negatives: (n, D) likewise, of the mined patches if ``streams`` is 3, else None.
            generator: of the random sampling; the others leave it as it is.
        """
        difference = None
        if self.any_length:
            difference = length_difference(anchors, positives)
            anchors, positives = unit_length(anchors), unit_length(positives)
            negatives = None if negatives is None else unit_length(negatives)
        positive = pair_distances(anchors, positives)
        if self.sampling == "all":
            with torch.no_grad():  # for the log; the loss does not single one out
                negative = hardest_in_batch_blockwise(
                    anchors, positives, self.anchor_swap, self.same_patch
                )
            loss = l2net(anchors, positives, self.anchor_swap, self.same_patch)
        else:
            negative = self._negative(anchors, positives, negatives, generator)
            loss = losses.pair_loss(self.loss, self.margin)(positive, negative)
        if difference is not None:
            loss = loss + self.regularizer_weight * difference
        elif self.regularizer == "cpr":
            loss = loss + self.regularizer_weight * correlation_penalty(anchors)
        elif self.regularizer == "sos":
            loss = loss + self.regularizer_weight * second_order_similarity(anchors, positives)
        return Terms(loss, positive, negative.masked_fill(negative.isinf(), FURTHEST))

    def _negative(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None,
        generator: torch.Generator,
    ) -> Tensor:
        """(n,) distances of the sampled negatives."""
        details = (self.anchor_swap, self.same_patch)
        if self.sampling == "hardest":
            within = self.negatives == "all"
            return hardest_in_batch_blockwise(anchors, positives, *details, within=within)
        if self.sampling == "random":
            return random_in_batch(anchors, positives, generator, *details)
        if negatives is None:
            raise ValueError("classical sampling needs the descriptors of the mined negatives")
        return mined(anchors, positives, negatives, *details)


def build_objective(
    *,
    sampling: str,
    loss: str,
    margin: float,
    regularizer: str,
    anchor_swap: bool,
    same_patch: float,
    negatives: str = "cross",
    regularizer_weight: float = 1.0,
) -> Objective:
    """Check the names and that they go together; the arguments are keys of a recipe.

    Args:
        sampling: "hardest" or "random" in batch, "classical" (mined over the whole set), or "all"
            with the loss "l2net".
        loss: "triplet", "softmin", "contrastive", "quadratic", "hybrid" or "l2net".
        margin: of the losses but "softmin" and "l2net", which have none.
        regularizer: "none", "cpr", "sos" or "lengths".
        anchor_swap: negatives of the positive too, not only of the anchor.
        same_patch: near-duplicate guard, a distance; 0 turns it off.
        negatives: of the hardest sampling: "cross" (anchors with positives), or "all" for those
            among the anchors and among the positives too.
        regularizer_weight: of the regularizer against the loss.
    """
    _check_name("sampling", sampling, SAMPLINGS)
    _check_name("loss", loss, LOSSES)
    _check_name("regularizer", regularizer, REGULARIZERS)
    _check_name("negatives", negatives, NEGATIVES)
    if negatives == "all" and sampling != "hardest":
        raise HardnetError(
            f"negatives=all is for sampling=hardest: sampling {sampling} takes negatives=cross"
        )
    if loss == "l2net" and sampling != "all":
        raise HardnetError(
            f"loss l2net looks at all pairs of a batch: use sampling=all, not {sampling}"
        )
    if sampling == "all" and loss != "l2net":
        raise HardnetError(
            f"loss {loss} takes one negative per pair: use sampling=hardest, random or classical; "
            "sampling all is for loss l2net"
        )
    if not (0 < margin < math.inf):
        raise HardnetError(f"margin must be positive, got {margin}")
    if not (0 <= same_patch < FURTHEST):
        raise HardnetError(
            f"same_patch is a distance of unit vectors, from 0 (off) to {FURTHEST:g}, "
            f"got {same_patch}"
        )
    if not (0 <= regularizer_weight < math.inf):
        raise HardnetError(f"regularizer_weight must not be negative, got {regularizer_weight}")
    return Objective(
        sampling,
        loss,
        margin,
        regularizer,
        anchor_swap,
        same_patch,
        negatives,
        regularizer_weight,
    )


def _check_name(key: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise HardnetError(f"{key}: unknown name {name!r}; {hint}")
