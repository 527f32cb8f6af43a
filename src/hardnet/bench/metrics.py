"""Scores of a descriptor, each a short function that reads like its definition.

A descriptor orders candidate pairs by distance. Everything here takes the distances and which of
the pairs are true, and no result depends on the order in which the pairs are listed: pairs of equal
distance are accepted together. Published code sorts instead and lets the sort decide such ties,
which lets a descriptor that maps everything to one point score anything between 0 and 1.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ties = Literal["within", "before"]


def fpr_at_recall(
    distances: ArrayLike, is_match: ArrayLike, recall: float = 0.95, ties: Ties = "within"
) -> float:
    """Share of the false pairs that are accepted when ``recall`` of the true pairs are.

    The threshold is the distance of the true pair number ceil(recall * P). The two conventions in
    use differ only in the false pairs that lie exactly on it:

    * ``"within"`` (HyNet's code) accepts them: distance <= threshold. A descriptor with all
      distances equal scores 1, the worst.
    * ``"before"`` rejects them: distance < threshold. This is the lowest value that the sort in
      the HardNet authors' code can give (the highest is ``"within"``). All equal scores 0.

    Args:
        distances: (N,) finite, smaller is more alike.
        is_match: (N,) true where the two patches show the same point.
        recall: in (0, 1].
        ties: one of the conventions above.

    Returns:
        A share in [0, 1]; multiply by 100 for the tables of the papers.
    """
    accepted_false, false, _ = _accepted(distances, is_match, recall, ties)
    return accepted_false / false


def fpr95(distances: ArrayLike, labels: ArrayLike) -> float:
    """FPR95 of the Brown benchmark, as a share; ties count as accepted."""
    return fpr_at_recall(distances, labels, 0.95, "within")


def fdr_at_recall(
    distances: ArrayLike, is_match: ArrayLike, recall: float = 0.95, ties: Ties = "within"
) -> float:
    """Share of the accepted pairs that are false, at the threshold of :func:`fpr_at_recall`.

    FP / (FP + TP): what the code of MatchNet and TFeat printed under the name of FPR95. With as
    many false as true pairs and no ties on the threshold it is FPR / (FPR + recall), so it is the
    larger of the two while FPR is below 1 - recall. True pairs on the threshold are accepted in
    both conventions of ``ties``; all distances equal and half of the pairs true: 1/2.
    """
    accepted_false, _, accepted_true = _accepted(distances, is_match, recall, ties)
    return accepted_false / (accepted_false + accepted_true)


def fdr95(distances: ArrayLike, labels: ArrayLike) -> float:
    """FDR at 95% recall, the "FPR95" of MatchNet and TFeat, as a share; ties as in fpr95."""
    return fdr_at_recall(distances, labels, 0.95, "within")


def roc_auc(distances: ArrayLike, is_match: ArrayLike) -> float:
    """Area under the ROC curve: how often a true pair is nearer than a false one.

    Equal distances count one half (the Mann-Whitney statistic), so all distances equal give 1/2.

    Args:
        distances: (N,) finite, smaller is more alike.
        is_match: (N,) true where the two patches show the same point.
    """
    true, false = _two_kinds(distances, is_match)
    true.sort()  # neighbouring searches end in neighbouring places: much faster on millions
    false.sort()
    before = int(np.searchsorted(false, true, "left").sum(dtype=np.int64))
    within = int(np.searchsorted(false, true, "right").sum(dtype=np.int64))
    return 1 - (before + within) / (2 * len(true) * len(false))


def precision_recall(
    distances: ArrayLike, correct: ArrayLike, positives: int | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The precision-recall curve, one point per distinct distance, nearest first.

    Args:
        distances: (N,) finite, smaller is more certain.
        correct: (N,) true where the answer is right.
        positives: how many right answers exist; default: those in ``correct``. Matching uses the
            number of reference patches, so that a patch matched wrongly stays missed.

    Returns:
        precision (K,), recall (K,).
    """
    distance, hit = _check(distances, correct)
    total = int(hit.sum()) if positives is None else positives
    if total < hit.sum():
        raise ValueError(f"positives is {total}, but {int(hit.sum())} answers are correct")
    order = np.argsort(distance, kind="stable")
    ranked = distance[order]
    last_of_tie = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True)[: len(ranked)])
    hits = np.cumsum(hit[order], dtype=np.int64)[last_of_tie]
    return hits / (last_of_tie + 1.0), hits / float(max(total, 1))


def average_precision_trapezoid(
    distances: ArrayLike, correct: ArrayLike, positives: int | None = None
) -> float:
    """Area under the precision-recall curve that starts at (recall 0, precision 1), by trapezoids.

    The convention of the HPatches Python code. No correct answer gives 0. The straight line from
    (0, 1) flatters a descriptor with all distances equal: c right of n scores c/P (1 + c/n) / 2.
    """
    precision, recall = precision_recall(distances, correct, positives)
    before = np.append(1.0, precision)[:-1]
    return float(np.sum((before + precision) / 2 * np.diff(recall, prepend=0.0)))


def average_precision_at_hits(
    distances: ArrayLike, correct: ArrayLike, positives: int | None = None
) -> float:
    """Mean over all positives of the precision at the rank where each is found, 0 if it is not.

    The convention of the HPatches MATLAB code (and of scikit-learn). All distances equal: c right
    of n scores c/P * c/n.
    """
    precision, recall = precision_recall(distances, correct, positives)
    return float(np.sum(precision * np.diff(recall, prepend=0.0)))


def _accepted(
    distances: ArrayLike, is_match: ArrayLike, recall: float, ties: Ties
) -> tuple[int, int, int]:
    """False pairs accepted at ``recall``, all false pairs, true pairs accepted."""
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    true, false = _two_kinds(distances, is_match)
    # 0.95 * 20 may come out as 19.000000000000004: do not let that cost one more true pair.
    needed = math.ceil(recall * len(true) - 1e-9)
    threshold = np.partition(true, needed - 1)[needed - 1]
    accepted = false <= threshold if ties == "within" else false < threshold
    return (
        int(np.count_nonzero(accepted)),
        len(false),
        int(np.count_nonzero(true <= threshold)),
    )


def _two_kinds(
    distances: ArrayLike, is_match: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    """Distances of the true and of the false pairs, both copies; ValueError if a kind is absent."""
    distance, match = _check(distances, is_match)
    true, false = distance[match], distance[~match]
    if not len(true) or not len(false):
        raise ValueError(f"needs pairs of both kinds, got {len(true)} true and {len(false)} false")
    return true, false


def _check(
    distances: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """Both as flat arrays of one length, or ValueError; float32 stays float32."""
    distance, label = np.asarray(distances), np.asarray(labels).astype(bool, copy=False)
    if distance.dtype not in (np.float32, np.float64):
        distance = distance.astype(np.float64)
    if distance.ndim != 1 or distance.shape != label.shape:
        raise ValueError(f"expected two (N,) arrays, got {distance.shape} and {label.shape}")
    if not np.isfinite(distance).all():
        raise ValueError("distances contain NaN or infinity")
    return distance, label
