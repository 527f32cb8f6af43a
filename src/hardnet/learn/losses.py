"""The losses of the paper: equation 1 of section 3.1, and the others of section 4.2 and table 2.

Beside them stand those of two successors, SOSNet (CVPR 2019) and HyNet (NeurIPS 2020). Each is a
function of two distances per pair, (n,) d(a_i, p_i) of the match and (n,) d_i of its negative, and
gives a scalar. A pair that has no negative comes with d_i = inf, and each loss is then what its
formula says. At the end stand the two terms by which a small network learns from a large one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial

from torch import Tensor
from torch.nn.functional import softplus

from hardnet.errors import HardnetError
from hardnet.learn.sampling import distance_matrix, hardest_in_batch
from hardnet.stored_names import find_code


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
    # The square of inf has a slope that no factor 0 undoes: a number beyond any margin instead.
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
    -> scalar. The name must be one that a person gave.
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
        raise HardnetError(f"loss: {name} is no function of two distances")
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
