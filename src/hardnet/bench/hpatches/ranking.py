"""Scores of a ranking from what stands before each right answer, with weights.

These are the scores of :mod:`hardnet.bench.metrics`, written per right answer: how many right and
wrong answers are strictly nearer ("before") and how many are at most as far ("within"). In this
form many resamples of the bootstrap need only one sort, and a retrieval needs none.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Weights = NDArray[np.float64]


def precisions(
    right_before: NDArray[Any],
    right_within: NDArray[Any],
    wrong_before: NDArray[Any],
    wrong_within: NDArray[Any],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Contribution of each right answer to the average precision, trapezoid and at hits.

    Args:
        right_before: (...) right answers strictly nearer than this one, a whole number as are all.
        right_within: (...) right answers at most as far, itself included.
        wrong_before: (...) wrong answers strictly nearer.
        wrong_within: (...) wrong answers at most as far.

    Returns:
        trapezoid (...), hits (...): their means over all right answers are the two conventions.
    """
    after: NDArray[np.float64] = right_within / np.maximum(right_within + wrong_within, 1)
    accepted = right_before + wrong_before
    before = right_before / np.maximum(accepted, 1)
    before[accepted == 0] = 1  # the curve starts at precision 1
    return (before + after) / 2, after


class PooledRanking:
    """True and false pairs in one ranking, sorted once, scored under any whole weights.

    Weights are given in the order of the sort, those of the false pairs as their sums:
    ``weights[ranking.true_order]`` and ``cumulated(weights[ranking.false_order])``.
    """

    def __init__(self, true: NDArray[np.float32], false: NDArray[np.float32]) -> None:
        """Distances (P,) of true and (N,) of false pairs."""
        self.true_order, self.false_order = np.argsort(true), np.argsort(false)
        true, false = true[self.true_order], false[self.false_order]
        self._before = np.searchsorted(false, true, "left")
        self._within = np.searchsorted(false, true, "right")
        self._ends = np.flatnonzero(np.append(true[1:] != true[:-1], True))
        self._tie_sizes = np.diff(self._ends, prepend=-1)

    def auc(self, true_weights: Weights, false_sums: Weights) -> float:
        """ROC AUC; NaN if the pairs of a kind weigh nothing."""
        total = 2 * true_weights.sum() * false_sums[-1]
        if not total:
            return np.nan
        lost = _dot(true_weights, np.take(false_sums, self._before))
        lost += _dot(true_weights, np.take(false_sums, self._within))
        return 1 - lost / float(total)

    def average_precision(self, true_weights: Weights, false_sums: Weights) -> tuple[float, float]:
        """Average precision by trapezoids and at hits; NaN if the true pairs weigh nothing."""
        right = cumulated(true_weights)
        if not right[-1]:
            return np.nan, np.nan
        within = right[self._ends + 1]
        trapezoid, hits = precisions(
            np.repeat(np.append(0.0, within[:-1]), self._tie_sizes),
            np.repeat(within, self._tie_sizes),
            np.take(false_sums, self._before),
            np.take(false_sums, self._within),
        )
        total = float(right[-1])
        return _dot(true_weights, trapezoid) / total, _dot(true_weights, hits) / total


def cumulated(weights: Weights) -> Weights:
    """(N,) -> (N + 1,): the sum of the first k."""
    out = np.zeros(len(weights) + 1)
    np.cumsum(weights, out=out[1:])
    return out


def _dot(a: Weights, b: Weights) -> float:
    # Not a @ b: the threads of BLAS would fight with those that score resamples side by side.
    return float(np.einsum("i,i", a, b))
