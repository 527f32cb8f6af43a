"""What was found between two images, judged by what is known about them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

import hardnet
from hardnet.bench.real_pairs import homography_error
from hardnet.bench.stereo.curves import corner_error, share_within
from hardnet.bench.stereo.epipolar import eight_point, symmetric_distance
from hardnet.matching.geometry import sampson_error, transfer_error
from hardnet.patchsets.image_pairs import ImagePair

CORRECT_PIXELS = 4.0
"""MODS's threshold: a match this near to where the truth puts it (its point, or its epipolar line
by Sampson's distance) is correct.

An epipolar line is a weak truth: of matches to a random place 3% lie this near to it. And the
lines of few correspondences are inexact: simulated with the cameras of fountain-P11 at 768 pixels,
clicks that are 1 px off reject 2% of the right matches if there are 12 (median; 17% in the worst
tenth) and none if there are 30; clicks that are 2 px off 17% (40%) and 0.2% (4%)."""


@dataclass(frozen=True)
class Measurement:
    """One pair; a field is None where the ground truth does not say it.

    Attributes:
        tentative: matches before verification.
        inliers: matches that were verified.
        geometry: the kind of geometry found, or None.
        correct: tentative matches that are right.
        correct_inliers: inliers that are right.
        grid_error: mean pixels between the estimated and the true homography where both images
            show the scene; None also without an estimated homography.
        corner_error: mean pixels over the corners of image a; None also without an estimate.
        has_corners: whether an estimate could have a corner error.
        accuracy: share of the tentative matches within 1, 2, ... 10 px of the true homography.
        agreement: share of the correspondences picked by hand within 1, 2, ... 10 px of the
            estimated geometry (0 without one).
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
    if pair.homography is not None:
        return _by_homography(matches, pair.homography, a, b)
    found = Measurement(len(inliers), int(inliers.sum()), matches.geometry.kind)
    if pair.correspondences is None:
        return found
    picked = pair.correspondences
    correct = sampson_error(eight_point(picked[:, :2], picked[:, 2:]), a, b) <= CORRECT_PIXELS
    return replace(
        found,
        correct=int(correct.sum()),
        correct_inliers=int((correct & inliers).sum()),
        agreement=share_within(_errors_of_picked(matches, picked)).tolist(),
    )


def _by_homography(
    matches: hardnet.Matches,
    truth: NDArray[np.float64],
    a: NDArray[np.float64],
    b: NDArray[np.float64],
) -> Measurement:
    inliers = np.asarray(matches.inliers, bool)
    errors = transfer_error(truth, a, b)
    correct = errors <= CORRECT_PIXELS
    grid = corners = None
    estimate = matches.geometry.model
    if matches.geometry.kind == "homography" and estimate is not None:
        grid = homography_error(estimate, truth, matches.a.image_size, matches.b.image_size)
        corners = corner_error(estimate, truth, matches.a.image_size)
    return Measurement(
        tentative=len(inliers),
        inliers=int(inliers.sum()),
        geometry=matches.geometry.kind,
        correct=int(correct.sum()),
        correct_inliers=int((correct & inliers).sum()),
        grid_error=grid,
        corner_error=None if corners is None or np.isinf(corners) else corners,
        has_corners=corner_error(truth, truth, matches.a.image_size) is not None,
        accuracy=share_within(errors).tolist(),
    )


def _errors_of_picked(matches: hardnet.Matches, picked: NDArray[np.float64]) -> NDArray[np.float64]:
    """(K,) pixels between correspondences picked by hand and the estimate; infinite without one."""
    kind, model = matches.geometry.kind, matches.geometry.model
    if kind is None or model is None:
        return np.full(len(picked), np.inf)
    error = transfer_error if kind == "homography" else symmetric_distance
    return error(model, picked[:, :2], picked[:, 2:])
