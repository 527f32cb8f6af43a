"""Scores of a descriptor, each a short function that reads like its definition.

A descriptor orders candidate pairs by distance. Everything here takes the distances and which of
the pairs are true, and no result depends on the order in which the pairs are listed: pairs of equal
distance are accepted together. Published code sorts instead and lets the sort decide such ties,
which lets a descriptor that maps everything to one point score anything between 0 and 1.

Then intervals of the bootstrap, how far cameras and geometries are from the true ones, and rankings
that are scored under many weights with one sort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.patchsets.patchset import Ints
from hardnet.patchsets.sequences import project

Ties = Literal["within", "before"]
Floats = NDArray[np.float64]


def fpr_at_recall(
    distances: ArrayLike, is_match: ArrayLike, recall: float = 0.95, ties: Ties = "within"
) -> float:
    """Share of the false pairs that are accepted when ``recall`` of the true pairs are.

    The threshold is the distance of the true pair number ceil(recall * P). The two conventions in
    use differ only in the false pairs that lie exactly on it: ``"within"`` (HyNet's code) accepts
    them; ``"before"`` rejects them, the lowest value that the sort in the HardNet authors' code can
    give (the highest is ``"within"``).
    """
    accepted_false, false, _ = _accepted(distances, is_match, recall, ties)
    return accepted_false / false


def fdr_at_recall(
    distances: ArrayLike, is_match: ArrayLike, recall: float = 0.95, ties: Ties = "within"
) -> float:
    """Share of the accepted pairs that are false, at the threshold of :func:`fpr_at_recall`.

    What the code of MatchNet and TFeat printed under the name of FPR95.
    """
    accepted_false, _, accepted_true = _accepted(distances, is_match, recall, ties)
    return accepted_false / (accepted_false + accepted_true)


def roc_auc(distances: ArrayLike, is_match: ArrayLike) -> float:
    """Area under the ROC curve: how often a true pair is nearer than a false one.

    Equal distances count one half (the Mann-Whitney statistic).
    """
    true, false = _two_kinds(distances, is_match)
    true.sort()  # sorted searches hit the cache: much faster on millions
    false.sort()
    before = int(np.searchsorted(false, true, "left").sum(dtype=np.int64))
    within = int(np.searchsorted(false, true, "right").sum(dtype=np.int64))
    return 1 - (before + within) / (2 * len(true) * len(false))


def precision_recall(
    distances: ArrayLike, correct: ArrayLike, positives: int | None = None
) -> tuple[Floats, Floats]:
    """Precision (K,) and recall (K,), one point per distinct distance, nearest first.

    ``positives``: how many right answers exist, by default those in ``correct``.
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

    The convention of the HPatches Python code. No correct answer gives 0.
    """
    precision, recall = precision_recall(distances, correct, positives)
    before = np.append(1.0, precision)[:-1]
    return float(np.sum((before + precision) / 2 * np.diff(recall, prepend=0.0)))


def average_precision_at_hits(
    distances: ArrayLike, correct: ArrayLike, positives: int | None = None
) -> float:
    """Mean over all positives of the precision at the rank where each is found, 0 if it is not.

    The convention of the HPatches MATLAB code (and of scikit-learn).
    """
    precision, recall = precision_recall(distances, correct, positives)
    return float(np.sum(precision * np.diff(recall, prepend=0.0)))


def _accepted(
    distances: ArrayLike, is_match: ArrayLike, recall: float, ties: Ties
) -> tuple[int, int, int]:
    if not 0 < recall <= 1:
        raise ValueError(f"recall must be in (0, 1], got {recall}")
    true, false = _two_kinds(distances, is_match)
    # 0.95 * 20 may come out as 19.000000000000004: do not let that cost one more true pair.
    needed = math.ceil(recall * len(true) - 1e-9)
    threshold = np.partition(true, needed - 1)[needed - 1]
    accepted = false <= threshold if ties == "within" else false < threshold
    return int(np.count_nonzero(accepted)), len(false), int(np.count_nonzero(true <= threshold))


def _two_kinds(
    distances: ArrayLike, is_match: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
    distance, match = _check(distances, is_match)
    true, false = distance[match], distance[~match]
    if not len(true) or not len(false):
        raise ValueError(f"needs pairs of both kinds, got {len(true)} true and {len(false)} false")
    return true, false


def _check(
    distances: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    distance, label = np.asarray(distances), np.asarray(labels).astype(bool, copy=False)
    if distance.dtype not in (np.float32, np.float64):
        distance = distance.astype(np.float64)
    if distance.ndim != 1 or distance.shape != label.shape:
        raise ValueError(f"expected two (N,) arrays, got {distance.shape} and {label.shape}")
    if not np.isfinite(distance).all():
        raise ValueError("distances contain NaN or infinity")
    return distance, label


LEVEL = 0.95
"""Share of the resamples inside an interval."""
MEAN_RESAMPLES = 1000
"""For means, which cost nothing."""
POOLED_RESAMPLES = 200
"""For scores of a pooled ranking, each a pass over all pairs."""

Interval = tuple[float | None, float | None]
"""(low, high); (None, None) with fewer than two groups to draw from."""


def multiplicities(groups: int, resamples: int, seed: int = 0) -> Ints:
    """How often each group is in each resample: (resamples, groups), every row sums to groups.

    Patches of one sequence resemble each other: an interval over patches would be too narrow.
    """
    if groups < 1:
        raise ValueError("there is nothing to draw from")
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples)


def interval(scores: ArrayLike) -> Interval:
    """The middle ``LEVEL`` of (R,) scores of resamples; NaN (nothing to score) does not count."""
    values = np.asarray(scores, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return low, high


def mean_interval(
    values: ArrayLike,
    groups: ArrayLike | None = None,
    resamples: int = MEAN_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Bootstrap interval of the mean of (N,) values over groups, given by (N,) labels."""
    value = np.asarray(values, np.float64)
    labels = np.arange(len(value)) if groups is None else np.asarray(groups)
    _, member = np.unique(labels, return_inverse=True)
    sums, counts = np.bincount(member, value), np.bincount(member)
    if len(sums) < 2:
        return None, None
    drawn = multiplicities(len(sums), resamples, seed)
    return interval((drawn @ sums) / (drawn @ counts))


@dataclass(frozen=True, eq=False)
class Similarity:
    """x -> scale * rotation @ x + translation."""

    scale: float
    rotation: Floats
    translation: Floats

    def __call__(self, points: ArrayLike) -> Floats:
        moved: Floats = self.scale * np.asarray(points, np.float64) @ self.rotation.T
        return moved + self.translation


def align(source: ArrayLike, target: ArrayLike) -> Similarity:
    """The similarity that brings (N, 3) source points closest to target points (Umeyama 1991).

    All points count, outliers included: a camera that is far off should show.
    """
    x, y = np.asarray(source, np.float64), np.asarray(target, np.float64)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != 3 or len(x) < 3:
        raise ValueError(f"need (N, 3) and (N, 3) points, N >= 3; got {x.shape} and {y.shape}")
    x_mean, y_mean = x.mean(0), y.mean(0)
    covariance = (y - y_mean).T @ (x - x_mean) / len(x)
    u, singular, vt = np.linalg.svd(covariance)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt))])  # no mirror image
    rotation = u @ np.diag(sign) @ vt
    variance = ((x - x_mean) ** 2).sum() / len(x)
    if singular[1] <= 1e-12 * singular[0] or variance == 0:
        raise ValueError("points on one line do not determine a rotation")
    scale = float(singular @ sign / variance)
    return Similarity(scale, rotation, y_mean - scale * rotation @ x_mean)


def rotation_angle(a: ArrayLike, b: ArrayLike) -> Floats:
    """(N,) degrees between rotations (N, 3, 3) and (N, 3, 3)."""
    relative = np.asarray(a, np.float64) @ np.swapaxes(np.asarray(b, np.float64), -1, -2)
    # From the chord, not the trace: the cosine of a small angle has no digits left.
    chord = np.linalg.norm(relative - np.eye(3), axis=(-2, -1))
    return np.asarray(np.rad2deg(2 * np.arcsin(np.clip(chord / np.sqrt(8), 0, 1))))


def share_within(errors: ArrayLike, thresholds: ArrayLike) -> Floats:
    """(T,) share of (N,) errors of at most each threshold; 0 if there are none."""
    values = np.asarray(errors, np.float64)
    if not len(values):
        return np.zeros(np.shape(thresholds))
    return np.asarray((values[:, None] <= np.asarray(thresholds, np.float64)).mean(0))


def corner_error(estimate: Floats, truth: Floats, size_a: tuple[int, int]) -> float | None:
    """Mean distance of the four corners of image a under two homographies, in pixels of image b.

    Infinite if the estimate puts a corner behind the camera; None if the truth does, since then no
    estimate has a corner error.
    """
    right, bottom = size_a[0] - 1, size_a[1] - 1
    corners = np.array([[0, 0], [right, 0], [right, bottom], [0, bottom]], np.float64)
    target = project(truth, corners)
    if not np.isfinite(target).all():
        return None
    found = project(estimate * np.sign(np.linalg.det(estimate)), corners)
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.linalg.norm(found - target, axis=1).mean())


def auc_steps(errors: ArrayLike, limit: float) -> float:
    """Mean over thresholds 0..limit of the share of errors below the threshold, exactly.

    An error e is below the part (1 - e / limit) of the thresholds: nothing is sampled.
    """
    return float(np.clip(1 - np.asarray(errors, np.float64) / limit, 0, 1).mean())


def eight_point(a: Floats, b: Floats) -> Floats:
    """The (3, 3) fundamental matrix of rank 2 with b^T F a = 0 for (K, 2) points, K at least 8.

    Hartley's normalised algorithm.
    """
    to_a, to_b = _normaliser(a), _normaliser(b)
    x, y = _homogeneous(a) @ to_a.T, _homogeneous(b) @ to_b.T
    equations = (y[:, :, None] * x[:, None, :]).reshape(-1, 9)
    matrix = np.linalg.svd(equations)[2][-1].reshape(3, 3)
    u, s, vt = np.linalg.svd(matrix)
    matrix = to_b.T @ (u * [s[0], s[1], 0.0]) @ vt @ to_a
    return np.asarray(matrix / np.linalg.norm(matrix))


def symmetric_distance(fundamental: Floats, a: Floats, b: Floats) -> Floats:
    """(K,) pixels: root of the sum of the squared distances to the epipolar lines in a and in b.

    The measure of the WxBS set (Hartley and Zisserman, 11.10), without the square, as in its
    published errors.
    """
    x, y = _homogeneous(a), _homogeneous(b)
    lines = y @ fundamental, x @ fundamental.T
    in_a, in_b = (np.maximum((line[:, :2] ** 2).sum(1), 1e-30) for line in lines)
    return np.asarray(np.abs((y * lines[1]).sum(1)) * np.sqrt(1 / in_a + 1 / in_b))


def _normaliser(points: Floats) -> Floats:
    x, y = points.mean(0)
    scale = np.sqrt(2) / max(float(np.linalg.norm(points - (x, y), axis=1).mean()), 1e-12)
    return np.array([[scale, 0, -scale * x], [0, scale, -scale * y], [0, 0, 1]])


def _homogeneous(points: Floats) -> Floats:
    return np.hstack([points, np.ones((len(points), 1))])


def precisions(
    right_before: NDArray[Any],
    right_within: NDArray[Any],
    wrong_before: NDArray[Any],
    wrong_within: NDArray[Any],
) -> tuple[Floats, Floats]:
    """Contribution of each right answer to the average precision, trapezoid and at hits.

    From how many right (itself included) and wrong answers are strictly nearer ("before") and at
    most as far ("within"): in this form many resamples need only one sort, and a retrieval none.
    """
    after: Floats = right_within / np.maximum(right_within + wrong_within, 1)
    accepted = right_before + wrong_before
    before = right_before / np.maximum(accepted, 1)
    before[accepted == 0] = 1  # the curve starts at precision 1
    return (before + after) / 2, after


class PooledRanking:
    """Distances (P,) of true and (N,) of false pairs, sorted once, scored under any whole weights.

    Weights are given in sorted order, those of the false pairs as cumulative sums:
    ``weights[ranking.true_order]`` and ``cumulated(weights[ranking.false_order])``.
    """

    def __init__(self, true: NDArray[np.floating[Any]], false: NDArray[np.floating[Any]]) -> None:
        self.true_order, self.false_order = np.argsort(true), np.argsort(false)
        true, false = true[self.true_order], false[self.false_order]
        self._before = np.searchsorted(false, true, "left")
        self._within = np.searchsorted(false, true, "right")
        self._ends = np.flatnonzero(np.append(true[1:] != true[:-1], True))
        self._tie_sizes = np.diff(self._ends, prepend=-1)

    def auc(self, true_weights: Floats, false_sums: Floats) -> float:
        """ROC AUC; NaN if all pairs of a kind have weight 0."""
        total = 2 * true_weights.sum() * false_sums[-1]
        if not total:
            return np.nan
        lost = _dot(true_weights, np.take(false_sums, self._before))
        lost += _dot(true_weights, np.take(false_sums, self._within))
        return 1 - lost / float(total)

    def average_precision(self, true_weights: Floats, false_sums: Floats) -> tuple[float, float]:
        """Average precision by trapezoids and at hits; NaN if all true pairs have weight 0."""
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


def cumulated(weights: Floats) -> Floats:
    """(N,) -> (N + 1,): the sum of the first k."""
    out = np.zeros(len(weights) + 1)
    np.cumsum(weights, out=out[1:])
    return out


def _dot(a: Floats, b: Floats) -> float:
    # Not a @ b: BLAS threads would compete with those that score resamples in parallel.
    return float(np.einsum("i,i", a, b))
