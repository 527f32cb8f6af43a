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
    distance, match = _check(distances, is_match)
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    true, false = np.sort(distance[match]), distance[~match]
    if not len(true) or not len(false):
        raise ValueError(f"needs pairs of both kinds, got {len(true)} true and {len(false)} false")
    # 0.95 * 20 may come out as 19.000000000000004: do not let that cost one more true pair.
    needed = math.ceil(recall * len(true) - 1e-9)
    threshold = true[needed - 1]
    accepted = false <= threshold if ties == "within" else false < threshold
    return float(accepted.mean())


def fpr95(distances: ArrayLike, labels: ArrayLike) -> float:
    """FPR95 of the Brown benchmark, as a share; ties count as accepted."""
    return fpr_at_recall(distances, labels, 0.95, "within")


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
    hits = np.cumsum(hit[order])[last_of_tie]
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


def _check(
    distances: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Both as flat arrays of one length, or ValueError."""
    distance, label = np.asarray(distances, np.float64), np.asarray(labels).astype(bool)
    if distance.ndim != 1 or distance.shape != label.shape:
        raise ValueError(f"expected two (N,) arrays, got {distance.shape} and {label.shape}")
    if not np.isfinite(distance).all():
        raise ValueError("distances contain NaN or infinity")
    return distance, label
