"""Curves over pixel thresholds: how much is right within t pixels, and areas under such curves."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.patchsets.sequences import project

THRESHOLDS = tuple(range(1, 11))
"""Pixels at which matching accuracy and agreement are given."""
AUC_PIXELS = (3, 5, 10)


def share_within(
    errors: ArrayLike, thresholds: Sequence[float] = THRESHOLDS
) -> NDArray[np.float64]:
    """(T,) share of (N,) errors of at most each threshold; 0 if there are none, NaN never counts.

    The matching accuracy of a pair, when the errors are those of its tentative matches.
    """
    values = np.asarray(errors, np.float64)
    if not len(values):
        return np.zeros(len(thresholds))
    return np.asarray((values[:, None] <= np.asarray(thresholds, np.float64)).mean(0))


def corner_error(
    estimate: NDArray[np.float64], truth: NDArray[np.float64], size_a: tuple[int, int]
) -> float | None:
    """Mean distance of the four corners of image a under two homographies, in pixels of image b.

    Args:
        estimate: (3, 3), its sign is free.
        truth: (3, 3), of positive determinant.
        size_a: (width, height).

    Returns:
        Pixels; infinite if the estimate puts a corner behind the camera; None if the truth does,
        since then no estimate has a corner error.
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

    Args:
        errors: (N,) pixels, infinite for a pair without an estimate; N at least 1.
        limit: pixels.
    """
    return float(np.clip(1 - np.asarray(errors, np.float64) / limit, 0, 1).mean())


def auc_lines(errors: ArrayLike, limit: float) -> float:
    """The same with straight lines from one sorted error to the next instead of steps.

    So it is done in much of the literature on learned matchers. The curve starts at (0, 0), passes
    (e_i, i / N) and is level from the last error below the limit; it lies between the steps and
    1 / N above them.
    """
    values = np.sort(np.asarray(errors, np.float64))
    below = values[values < limit]
    x = np.array([0.0, *below, limit])
    y = np.arange(len(below) + 1) / len(values)
    y = np.append(y, y[-1])
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / limit)
