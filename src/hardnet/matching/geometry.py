"""Verify matches by a geometry that explains them: a homography or a fundamental matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, lgamma, log, pi
from typing import Literal

import cv2
import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]
Kind = Literal["homography", "fundamental"]
Model = Literal["auto", "homography", "fundamental"]

INLIER_PIXELS = 3.0
"""How far a match may lie from where the geometry puts it."""

MIN_INLIERS = 8
"""No geometry is believed on fewer distinct matches, however surprising they are."""

LOG10_FALSE_ALARMS = -3.0
"""A geometry is believed if one in a thousand sets of random matches, or fewer, agrees as well.

A fixed number of inliers cannot serve as this test: on 150 pairs of unrelated photos the best
homography never had more than 7 distinct inliers, but the best fundamental matrix had up to 20 with
a ratio test of 0.9 and up to 42 without one, because it constrains a point only to a line. Their
numbers of false alarms (``log10_false_alarms``) were none below 10^0."""

HOMOGRAPHY_SHARE = 0.75
"""``auto`` takes the homography if it explains this share of what the fundamental matrix does.

A fundamental matrix fits the matches of a plane, or of a turning camera, as well (and picks up some
false ones beside), but then it is not determined by them; the homography is. Shares measured with
RootSIFT: planes and panoramas 0.74 to 1 (median 0.93), scenes with depth 0.30 to 0.72."""

_SAMPLES = 10_000
_CONFIDENCE = 0.9999
_SAMPLE_SIZE = {"homography": 4, "fundamental": 7}


@dataclass(frozen=True, eq=False)
class Geometry:
    """What holds between two images.

    Attributes:
        kind: "homography": b ~ model @ a; "fundamental": b^T model a = 0; None: not verified.
        model: (3, 3) float64, or None.
        inliers: (M,) bool, the matches that agree; none if not verified.
    """

    kind: Kind | None
    model: NDArray[np.float64] | None
    inliers: NDArray[np.bool_]


def verify(
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    model: Model = "auto",
    threshold: float = INLIER_PIXELS,
) -> Geometry:
    """Fit a geometry to matches by MAGSAC++, and say whether it can be believed.

    The random samples are seeded: the same matches give the same result.

    Args:
        xy_a: (M, 2) positions in image a.
        xy_b: (M, 2) positions in image b.
        model: which geometry; "auto" fits both and takes the homography if it explains at least
            ``HOMOGRAPHY_SHARE`` of what the fundamental matrix explains.
        threshold: inlier distance in pixels: to the predicted position in b for a homography, to
            the epipolar lines (Sampson) for a fundamental matrix.
    """
    a, b = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)
    best = Geometry(None, None, np.zeros(len(a), bool))
    wanted: tuple[Kind, ...] = ("fundamental", "homography") if model == "auto" else (model,)
    for kind in wanted:
        found = _fit(a, b, kind, threshold)
        if found is not None and found.inliers.sum() >= HOMOGRAPHY_SHARE * best.inliers.sum():
            best = found
    return best


def transfer_error(homography: NDArray[np.float64], a: Points, b: Points) -> Points:
    """(M,) pixels between b and where the homography puts a; infinite behind the camera."""
    projected = a @ homography[:, :2].T + homography[:, 2]
    # The sign of a homography is free; its determinant makes the front of a real camera positive.
    w = projected[:, 2] * np.sign(np.linalg.det(homography))
    front = w > 1e-12
    target = projected[:, :2] / np.where(front, projected[:, 2], 1.0)[:, None]
    return np.where(front, np.linalg.norm(target - b, axis=1), np.inf)


def sampson_error(fundamental: NDArray[np.float64], a: Points, b: Points) -> Points:
    """(M,) pixels: first-order distance of a match to the nearest one that obeys b^T F a = 0."""
    lines_b = a @ fundamental[:, :2].T + fundamental[:, 2]
    lines_a = b @ fundamental[:2] + fundamental[2]
    algebraic = (b * lines_b[:, :2]).sum(1) + lines_b[:, 2]
    gradient = (lines_b[:, :2] ** 2).sum(1) + (lines_a[:, :2] ** 2).sum(1)
    error: Points = np.abs(algebraic) / np.sqrt(np.maximum(gradient, 1e-30))
    return error


def log10_false_alarms(
    a: Points, b: Points, inliers: NDArray[np.bool_], kind: Kind, threshold: float
) -> float:
    """log10 of how many geometries as good as this are expected among random matches.

    The a-contrario bound of Moisan and Stival (2004): a random match falls within ``threshold`` of
    its predicted point (or line) with a probability p = area of the disc (or band) / area of the
    image, and all choices of k inliers among n matches, and of the s among them that define the
    model, are counted: (n - s) C(n, k) C(k, s) p^(k - s).
    """
    box = np.ptp(b, axis=0) + 1
    size = _SAMPLE_SIZE[kind]
    zone = pi * threshold**2 if kind == "homography" else 2 * threshold * hypot(*box)
    n, k = _distinct(a, b), _distinct(a[inliers], b[inliers])
    if k <= size:
        return 0.0
    chance = min(float(zone / box.prod()), 1.0)
    ways = log(n - size) + _log_choose(n, k) + _log_choose(k, size)
    return (ways + (k - size) * log(chance)) / log(10)


def _fit(a: Points, b: Points, kind: Kind, threshold: float) -> Geometry | None:
    """The best geometry of one kind, or None if there is none to believe."""
    if len(a) < MIN_INLIERS:
        return None
    try:
        if kind == "homography":
            matrix, _ = cv2.findHomography(
                a, b, cv2.USAC_MAGSAC, threshold, maxIters=_SAMPLES, confidence=_CONFIDENCE
            )
        else:
            matrix, _ = cv2.findFundamentalMat(
                a, b, cv2.USAC_MAGSAC, threshold, _CONFIDENCE, _SAMPLES
            )
    except cv2.error:  # every match in one place, and the like
        return None
    if matrix is None or matrix.shape != (3, 3) or not np.isfinite(matrix).all():
        return None
    model = np.asarray(matrix, np.float64)
    error = transfer_error if kind == "homography" else sampson_error
    inliers = error(model, a, b) < threshold
    if _distinct(a[inliers], b[inliers]) < MIN_INLIERS:
        return None
    if log10_false_alarms(a, b, inliers, kind, threshold) > LOG10_FALSE_ALARMS:
        return None
    return Geometry(kind, model, inliers)


def _distinct(a: Points, b: Points) -> int:
    """Matches of different places: one place with two orientations is one witness, not two."""
    places = np.round(np.hstack([a, b]) / 2).astype(np.int64)
    return len(np.unique(places, axis=0))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
