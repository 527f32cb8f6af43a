"""Verify matches by a geometry that explains them: homography, fundamental or essential matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, lgamma, log, pi
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.matching.estimators import (
    NO_CAMERAS,
    NO_DEGENSAC,
    Cameras,
    Estimator,
    Kind,
    Matrix,
    check_cameras,
    estimate,
    to_fundamental,
)
from hardnet.matching.residuals import Points, sampson_error, transfer_error

__all__ = [
    "Cameras",
    "Estimator",
    "Geometry",
    "Kind",
    "Model",
    "Points",
    "errors",
    "log10_false_alarms",
    "sampson_error",
    "transfer_error",
    "verify",
]

Model = Literal["auto", "homography", "fundamental", "essential"]

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

_SAMPLE_SIZE = {"homography": 4, "fundamental": 7, "essential": 5}


@dataclass(frozen=True, eq=False)
class Geometry:
    """What holds between two images.

    Attributes:
        kind: "homography": b ~ model @ a; "fundamental": b^T model a = 0; "essential": the same
            for positions in units of the focal length (inverse intrinsics times pixels); None: not
            verified.
        model: (3, 3) float64, or None.
        inliers: (M,) bool, the matches that agree; none if not verified.
        cameras: the intrinsics of both images that an essential matrix belongs to.
    """

    kind: Kind | None
    model: Matrix | None
    inliers: NDArray[np.bool_]
    cameras: tuple[Matrix, Matrix] | None = None

    @property
    def fundamental(self) -> Matrix | None:
        """(3, 3) fundamental matrix, for pixels; None for a homography or no geometry."""
        if self.kind == "essential" and self.model is not None and self.cameras is not None:
            return to_fundamental(self.model, self.cameras)
        return self.model if self.kind == "fundamental" else None


def verify(
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    model: Model = "auto",
    threshold: float = INLIER_PIXELS,
    estimator: Estimator = "magsac",
    cameras: Cameras | None = None,
) -> Geometry:
    """Fit a geometry to matches, and say whether it can be believed.

    The random samples are seeded: the same matches give the same result.

    Args:
        xy_a: (M, 2) positions in image a, the best matches first: they are sampled first.
        xy_b: (M, 2) positions in image b.
        model: which geometry; "auto" fits homography and fundamental matrix, and takes the
            homography if it explains at least ``HOMOGRAPHY_SHARE`` of what the other explains.
        threshold: inlier distance in pixels: to the predicted position in b for a homography, to
            the epipolar lines (Sampson) for a fundamental or essential matrix.
        estimator: "magsac" (MAGSAC++) or "degensac".
        cameras: (3, 3) intrinsics of both images; an essential matrix needs them.
    """
    a, b = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)
    intrinsics = check_model(model, estimator, cameras)
    best = Geometry(None, None, np.zeros(len(a), bool))
    wanted: tuple[Kind, ...] = ("fundamental", "homography") if model == "auto" else (model,)
    for kind in wanted:
        found = _fit(a, b, kind, threshold, estimator, intrinsics)
        if found is not None and found.inliers.sum() >= HOMOGRAPHY_SHARE * best.inliers.sum():
            best = found
    return best


def check_model(
    model: Model, estimator: Estimator, cameras: Cameras | None
) -> tuple[Matrix, Matrix] | None:
    """The intrinsics that the model needs, if any; a HardnetError if it cannot be fitted."""
    if model not in get_args(Model):
        raise HardnetError(f"no model '{model}': choose auto, homography, fundamental or essential")
    if model != "essential":
        if cameras is not None:  # silently ignored they would look used
            raise HardnetError(f"cameras are for the model essential, not for {model}")
        return None
    if cameras is None:
        raise HardnetError(NO_CAMERAS)
    if estimator == "degensac":
        raise HardnetError(NO_DEGENSAC)
    return check_cameras(cameras)


def refit(
    found: Geometry, a: Points, b: Points, threshold: float, estimator: Estimator
) -> Geometry:
    """A verified geometry, fitted again to more matches; the old one if that explains more.

    Whether to believe it was decided before: matches that were chosen to agree prove nothing.
    """
    if found.kind is None or found.model is None:
        return found
    matrices = [found.model, estimate(a, b, found.kind, threshold, estimator, found.cameras)]
    fits = [
        Geometry(
            found.kind, m, errors(found.kind, m, a, b, found.cameras) < threshold, found.cameras
        )
        for m in matrices
        if m is not None
    ]
    return max(reversed(fits), key=lambda fit: int(fit.inliers.sum()))


def errors(
    kind: Kind, model: Matrix, a: Points, b: Points, cameras: tuple[Matrix, Matrix] | None = None
) -> Points:
    """(M,) pixels between matches and a geometry: transfer or Sampson error."""
    if kind == "homography":
        return transfer_error(model, a, b)
    if kind == "essential" and cameras is not None:
        model = to_fundamental(model, cameras)
    return sampson_error(model, a, b)


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
    n, k = distinct(a, b), distinct(a[inliers], b[inliers])
    if k <= size:
        return 0.0
    chance = min(float(zone / box.prod()), 1.0)
    ways = log(n - size) + _log_choose(n, k) + _log_choose(k, size)
    return (ways + (k - size) * log(chance)) / log(10)


def _fit(
    a: Points,
    b: Points,
    kind: Kind,
    threshold: float,
    estimator: Estimator,
    cameras: tuple[Matrix, Matrix] | None,
) -> Geometry | None:
    """The best geometry of one kind, or None if there is none to believe."""
    if len(a) < MIN_INLIERS:
        return None
    model = estimate(a, b, kind, threshold, estimator, cameras)
    if model is None:
        return None
    inliers = errors(kind, model, a, b, cameras) < threshold
    if distinct(a[inliers], b[inliers]) < MIN_INLIERS:
        return None
    if log10_false_alarms(a, b, inliers, kind, threshold) > LOG10_FALSE_ALARMS:
        return None
    return Geometry(kind, model, inliers, cameras)


def distinct(a: Points, b: Points) -> int:
    """Matches of different places: one place with two orientations is one witness, not two."""
    places = np.round(np.hstack([a, b]) / 2).astype(np.int64)
    return len(np.unique(places, axis=0))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
