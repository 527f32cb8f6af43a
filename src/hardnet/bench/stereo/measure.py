"""What was found between two images, judged by what is known about them; when a pair is matched.

The paper follows the protocol of the WxBS paper, whose exact rule is not at hand. All readings of
it that we know are here, and the measurements are kept, so that any of them can be applied later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hardnet
from hardnet.bench.metrics import Interval, mean_interval
from hardnet.bench.pairs import MAX_GRID_ERROR, MIN_CORRECT_INLIERS, homography_error
from hardnet.errors import HardnetError
from hardnet.matching.geometry import sampson_error, transfer_error
from hardnet.patchsets.sequences import ImagePair, project

CORRECT_PIXELS = 4.0
"""MODS's threshold: a match this near to where the truth puts it (its point, or its epipolar line
by Sampson's distance) is correct.

An epipolar line is a weak truth: some matches to a random place lie this near to it, and the lines
of few correspondences are inexact, so that right matches are rejected."""


@dataclass(frozen=True)
class Measurement:
    """One pair; a field is None where the ground truth does not say it.

    ``correct`` and ``correct_inliers`` are the right ones of the matches before and after
    verification. ``grid_error`` and ``corner_error`` are mean pixels between the estimated and the
    true homography where both images show the scene, and over the corners of image a; None also
    without an estimate (``has_corners``: whether one could have a corner error). ``accuracy``:
    share of the tentative matches within 1, 2, ... 10 px of the true homography; ``agreement``:
    share of the correspondences picked by hand as near to the estimated geometry (0 without one).
    """

    tentative: int
    inliers: int
    geometry: str | None
    correct: int | None = None
    correct_inliers: int | None = None
    grid_error: float | None = None
    corner_error: float | None = None
    has_corners: bool = False
    accuracy: list[float] | None = None
    agreement: list[float] | None = None


def measure(matches: hardnet.Matches, pair: ImagePair) -> Measurement:
    """Judge the matches of a pair."""
    a, b = matches.xy_a.astype(np.float64), matches.xy_b.astype(np.float64)
    inliers = np.asarray(matches.inliers, bool)
    kind, model = matches.geometry.kind, matches.geometry.model
    found = Measurement(len(inliers), int(inliers.sum()), kind)
    if (truth := pair.homography) is not None:
        sizes = matches.a.image_size, matches.b.image_size
        errors = transfer_error(truth, a, b)
        has_corners = corner_error(truth, truth, sizes[0]) is not None
        found = replace(found, has_corners=has_corners, accuracy=share_within(errors).tolist())
        if kind == "homography" and model is not None:
            corners = corner_error(model, truth, sizes[0])
            found = replace(
                found,
                grid_error=homography_error(model, truth, *sizes),
                corner_error=None if corners is None or np.isinf(corners) else corners,
            )
    elif pair.correspondences is not None:
        x, y = pair.correspondences[:, :2], pair.correspondences[:, 2:]
        errors = sampson_error(eight_point(x, y), a, b)
        apart = np.full(len(x), np.inf)
        if kind is not None and model is not None:
            apart = (transfer_error if kind == "homography" else symmetric_distance)(model, x, y)
        found = replace(found, agreement=share_within(apart).tolist())
    else:
        return found
    correct = errors <= CORRECT_PIXELS
    right = int((correct & inliers).sum())
    return replace(found, correct=int(correct.sum()), correct_inliers=right)


THRESHOLDS = tuple(range(1, 11))
"""Pixels at which matching accuracy and agreement are given."""
AUC_PIXELS = (3, 5, 10)


def share_within(
    errors: ArrayLike, thresholds: Sequence[float] = THRESHOLDS
) -> NDArray[np.float64]:
    """(T,) share of (N,) errors of at most each threshold; 0 if there are none."""
    values = np.asarray(errors, np.float64)
    if not len(values):
        return np.zeros(len(thresholds))
    return np.asarray((values[:, None] <= np.asarray(thresholds, np.float64)).mean(0))


def corner_error(
    estimate: NDArray[np.float64], truth: NDArray[np.float64], size_a: tuple[int, int]
) -> float | None:
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

    The share is a step function of the threshold, so an error e adds the part (1 - e / limit) of
    the thresholds that lie above it: no sampling of thresholds, no interpolation.
    """
    return float(np.clip(1 - np.asarray(errors, np.float64) / limit, 0, 1).mean())


def auc_lines(errors: ArrayLike, limit: float) -> float:
    """The same with straight lines from one sorted error to the next instead of steps.

    So it is done in much of the literature on learned matchers. The curve starts at (0, 0), passes
    (e_i, i / N) and is level from the last error below the limit.
    """
    values = np.sort(np.asarray(errors, np.float64))
    below = values[values < limit]
    x = np.array([0.0, *below, limit])
    y = np.arange(len(below) + 1) / len(values)
    y = np.append(y, y[-1])
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / limit)


Points = NDArray[np.float64]


def eight_point(a: Points, b: Points) -> NDArray[np.float64]:
    """The (3, 3) fundamental matrix of rank 2 with b^T F a = 0 for (K, 2) points, K at least 8.

    Hartley's normalised algorithm: both point sets are moved to their centre and scaled to a mean
    distance of sqrt(2), so that the least squares of the algebraic error is well conditioned.
    """
    to_a, to_b = _normaliser(a), _normaliser(b)
    x, y = _homogeneous(a) @ to_a.T, _homogeneous(b) @ to_b.T
    equations = (y[:, :, None] * x[:, None, :]).reshape(-1, 9)
    matrix = np.linalg.svd(equations)[2][-1].reshape(3, 3)
    u, s, vt = np.linalg.svd(matrix)
    matrix = to_b.T @ (u * [s[0], s[1], 0.0]) @ vt @ to_a
    return np.asarray(matrix / np.linalg.norm(matrix))


def symmetric_distance(fundamental: NDArray[np.float64], a: Points, b: Points) -> Points:
    """(K,) pixels: root of the sum of the squared distances to the epipolar lines in a and in b.

    The measure of the WxBS set (Hartley and Zisserman, 11.10), as its published errors have it:
    without the square.
    """
    lines_b = _homogeneous(a) @ fundamental.T
    lines_a = _homogeneous(b) @ fundamental
    algebraic = (_homogeneous(b) * lines_b).sum(1)
    in_a, in_b = (np.maximum((line[:, :2] ** 2).sum(1), 1e-30) for line in (lines_a, lines_b))
    distance: Points = np.abs(algebraic) * np.sqrt(1 / in_a + 1 / in_b)
    return distance


def _normaliser(points: Points) -> NDArray[np.float64]:
    centre = points.mean(0)
    scale = np.sqrt(2) / max(float(np.linalg.norm(points - centre, axis=1).mean()), 1e-12)
    return np.array([[scale, 0, -scale * centre[0]], [0, scale, -scale * centre[1]], [0, 0, 1]])


def _homogeneous(points: Points) -> Points:
    return np.hstack([points, np.ones((len(points), 1))])


AGREEMENT_PIXELS = 5
MIN_AGREEMENT = 0.5


@dataclass(frozen=True)
class Rule:
    """When a pair is matched.

    It has at least ``needed`` inliers, and with ``geometry`` the estimate must be right. Where
    nothing is known about a pair, all verified inliers are counted.
    """

    name: str
    needed: int
    counts: Literal["correct_inliers", "inliers"]
    geometry: bool
    about: str

    def counted(self, row: Mapping[str, Any]) -> int:
        """The inliers of a row (a Measurement's fields) that this rule counts."""
        correct = row["correct_inliers"]
        return int(row["inliers"] if self.counts == "inliers" or correct is None else correct)

    def matched(self, row: Mapping[str, Any]) -> bool:
        """Whether a row (a Measurement's fields) is of a matched pair."""
        if self.counted(row) < self.needed or not self.geometry:
            return self.counted(row) >= self.needed
        if row["agreement"] is not None:
            return bool(row["agreement"][THRESHOLDS.index(AGREEMENT_PIXELS)] >= MIN_AGREEMENT)
        if row["correct_inliers"] is None:
            return row["geometry"] is not None
        return row["grid_error"] is not None and row["grid_error"] <= MAX_GRID_ERROR


_CORRECT = f"inliers within {CORRECT_PIXELS:g} px of the ground truth"
RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "gt-15",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            False,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}. An assumption: the exact rule of the "
            "paper's protocol is not known",
        ),
        Rule(
            "mods",
            15,
            "inliers",
            False,
            "at least 15 verified inliers, whether right or not: where MODS stops by default",
        ),
        Rule(
            "mods-deep",
            10,
            "inliers",
            False,
            "at least 10 verified inliers, whether right or not: MODS's settings for learned "
            "descriptors",
        ),
        Rule(
            "geometry",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            True,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}, and the geometry is right: a homography "
            f"within {MAX_GRID_ERROR:g} px of the true one on average over the common part, a "
            f"fundamental matrix within {AGREEMENT_PIXELS} px (symmetric) of at least "
            f"{MIN_AGREEMENT:.0%} of the correspondences picked by hand",
        ),
    )
}


def rule_by_name(name: str) -> Rule:
    """The rule called ``name``."""
    if name not in RULES:
        raise HardnetError(f"no rule '{name}': choose one of {', '.join(RULES)}")
    return RULES[name]


Row = Mapping[str, Any]


def summarise(rows: Iterable[Row], rule: Rule) -> list[dict[str, Any]]:
    """One entry per set, detector and descriptor.

    Means over the pairs that a descriptor matched are not comparable between descriptors: who
    matches one hard pair more, with few inliers, lowers its mean. So the mean over the pairs that
    all descriptors matched (with this detector) is given too. Intervals are of the bootstrap over
    scenes: the pairs of one sequence are drawn together.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        by_descriptor = groups.setdefault((row["set"], row["detector"]), {})
        by_descriptor.setdefault(row["descriptor"], {})[row["pair"]] = row
    entries = []
    for (name, detector), by_descriptor in groups.items():
        matched = {
            label: {pair for pair, row in by_pair.items() if rule.matched(row)}
            for label, by_pair in by_descriptor.items()
        }
        common = sorted(set.intersection(*matched.values()))
        for label, by_pair in by_descriptor.items():
            counted = {pair: rule.counted(row) for pair, row in by_pair.items()}
            all_rows = list(by_pair.values())
            correct = [row["correct"] for row in all_rows if row["correct"] is not None]
            entry = {
                "set": name,
                "detector": detector,
                "descriptor": label,
                "pairs": len(by_pair),
                "matched": len(matched[label]),
                "mean_inliers": _mean([counted[pair] for pair in matched[label]]),
                "common": len(common),
                "mean_common": _mean([counted[pair] for pair in common]),
                "common_interval": _interval({pair: counted[pair] for pair in common}),
                "mean_tentative": _mean([row["tentative"] for row in all_rows]),
                "mean_correct": _mean(correct),
            }
            entries.append(entry | _curves(all_rows))
    return entries


def _interval(values: Mapping[str, float]) -> Interval:
    # ``graf`` of the pair ``graf-1-3``; a pair that is not of a sequence is a scene itself.
    scenes = [pair.rpartition("-1-")[0] or pair for pair in values]
    return mean_interval(list(values.values()), scenes)


def _mean(values: list[int]) -> float | None:
    return float(np.mean(values)) if values else None


def _curves(rows: list[Row]) -> dict[str, Any]:
    """What the ground truth of the rows allows; None where it does not."""
    by_pair = {
        row["pair"]: np.inf if row["corner_error"] is None else row["corner_error"]
        for row in rows
        if row["has_corners"]
    }
    errors = list(by_pair.values())
    found: dict[str, Any] = {
        name: {str(limit): area(errors, limit) for limit in AUC_PIXELS} if errors else None
        for name, area in (("auc", auc_steps), ("auc_lines", auc_lines))
    }
    found["auc_interval"] = {
        str(limit): _interval({pair: auc_steps([e], limit) for pair, e in by_pair.items()})
        for limit in AUC_PIXELS
    }
    for field in ("accuracy", "agreement"):
        curves = [row[field] for row in rows if row[field] is not None]
        means = np.mean(curves, axis=0).tolist() if curves else None
        found[field] = means and [round(x, 6) for x in means]
    return found
