"""Verify matches by a geometry that explains them: homography, fundamental or essential matrix.

:func:`verify` fits a geometry to matches with outliers and decides whether to believe it;
:func:`relative_pose` finds the second camera relative to the first. Every estimator is seeded: the
same matches give the same matrix, on any number of threads.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import hypot, lgamma, log, pi
from random import Random
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import InputError, MissingExtraError

Kind = Literal["homography", "fundamental", "essential"]
Model = Literal["auto", "homography", "fundamental", "essential"]
Estimator = Literal["magsac", "degensac"]
Matrix = NDArray[np.float64]
Points = NDArray[np.float64]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]
Intrinsics = tuple[Matrix, Matrix]
Cameras = tuple[ArrayLike, ArrayLike]
"""The (3, 3) matrices of intrinsic parameters of both cameras, in pixels."""

INLIER_PIXELS = 3.0  # how far a match may lie from where the geometry puts it

MIN_INLIERS = 8  # no geometry is believed on fewer distinct matches, however surprising they are

LOG10_FALSE_ALARMS = -3.0
"""A geometry is believed if one in a thousand sets of random matches, or fewer, agrees as well.

A fixed number of inliers would not do: by chance a fundamental matrix collects many more than a
homography, because it constrains a point only to a line."""

HOMOGRAPHY_SHARE = 0.75
"""``auto`` takes the homography if it explains this share of what the fundamental matrix does.

A fundamental matrix fits the matches of a plane, or of a turning camera, as well, but they do not
determine it."""

_MIRRORED_SHARE = 0.75  # of all triangles of inliers, or more, are turned round in a mirror image
_TRIANGLES = 500
_SAMPLE_SIZE = {"homography": 4, "fundamental": 7, "essential": 5}
_SAMPLES = 10_000
_EPIPOLAR_SAMPLES = 50_000  # seven right ones in a draw are rarer than four
_CONFIDENCE = 0.9999
_FEW = 8  # matches that are worth a second fit
_SHARE = 0.9  # of the inliers a second fit has to explain; some false ones it should not
_MARGIN = 3  # empty cells of a grid on each side: the neighbours of a cell never wrap to a row


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
    cameras: Intrinsics | None = None

    @property
    def fundamental(self) -> Matrix | None:
        """(3, 3) fundamental matrix, for pixels; None for a homography or no geometry."""
        if self.kind == "essential" and self.model is not None and self.cameras is not None:
            return to_fundamental(self.model, self.cameras)
        return self.model if self.kind == "fundamental" else None

    def errors(self, a: Points, b: Points) -> Points:
        """(M,) pixels between matches and a geometry: transfer or Sampson error."""
        if (fundamental := self.fundamental) is not None:
            return sampson_error(fundamental, a, b)
        assert self.model is not None
        return transfer_error(self.model, a, b)


def verify(
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    model: Model = "auto",
    threshold: float = INLIER_PIXELS,
    estimator: Estimator = "magsac",
    cameras: Cameras | None = None,
) -> Geometry:
    """Fit a geometry to matches (M, 2), the best first, and decide whether to believe it.

    The threshold is in pixels: to the predicted position in b for a homography, to the epipolar
    lines (Sampson) else. An essential matrix needs the cameras.
    """
    a, b = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)
    intrinsics = check_model(model, estimator, cameras)
    best = nothing = Geometry(None, None, np.zeros(len(a), bool))
    kinds: tuple[Kind, ...] = ("fundamental", "homography") if model == "auto" else (model,)
    for kind in kinds if len(a) >= MIN_INLIERS else ():
        if (matrix := estimate(a, b, kind, threshold, estimator, intrinsics)) is None:
            continue
        found = replace(nothing, kind=kind, model=matrix, cameras=intrinsics)
        inliers = found.errors(a, b) < threshold
        if (
            distinct(a[inliers], b[inliers]) >= MIN_INLIERS
            and log10_false_alarms(a, b, inliers, kind, threshold) <= LOG10_FALSE_ALARMS
            and inliers.sum() >= HOMOGRAPHY_SHARE * best.inliers.sum()
        ):
            best = replace(found, inliers=inliers)
    return best


def check_model(model: Model, estimator: Estimator, cameras: Cameras | None) -> Intrinsics | None:
    """The intrinsics that the model needs, if any; a HardnetError if it cannot be fitted."""
    if model not in get_args(Model):
        raise InputError(f"no model '{model}': choose auto, homography, fundamental or essential")
    if model != "essential":
        if cameras is not None:  # silently ignored they would look used
            raise InputError(f"cameras are for the model essential, not for {model}")
        return None
    if cameras is None:
        raise InputError(
            "an essential matrix needs cameras: give the (3, 3) intrinsics of both images"
        )
    if estimator == "degensac":
        raise InputError("degensac has no essential matrix: use the estimator magsac")
    return check_cameras(cameras)


def refit(
    found: Geometry, a: Points, b: Points, threshold: float, estimator: Estimator
) -> Geometry:
    """A verified geometry, fitted again to more matches; the old one if that explains more.

    Whether to believe it was decided before: matches that were chosen to agree prove nothing.
    """
    if found.kind is None:
        return found
    again = estimate(a, b, found.kind, threshold, estimator, found.cameras)
    fits = [found] if again is None else [replace(found, model=again), found]
    fits = [replace(fit, inliers=fit.errors(a, b) < threshold) for fit in fits]
    return max(fits, key=lambda fit: int(fit.inliers.sum()))


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

    def log_choose(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    chance = min(float(zone / box.prod()), 1.0)
    ways = log(n - size) + log_choose(n, k) + log_choose(k, size)
    return (ways + (k - size) * log(chance)) / log(10)


def distinct(a: Points, b: Points) -> int:
    """Matches of different places: one place with two orientations is one witness, not two."""
    places = np.round(np.hstack([a, b]) / 2).astype(np.int64)
    return len(set(map(tuple, places.tolist())))


def is_mirrored(a: Points, b: Points) -> bool:
    """Whether matches (M, 2) lie in b as a mirror shows those in a.

    A fundamental matrix does not tell: a photo and its mirror image have level epipolar lines.
    Depth can change the order of a few matches, but not of most.
    """
    if len(a) < 3:
        return False
    # Not numpy's generator: to import it takes longer than all of this.
    corners = np.reshape(Random(0).choices(range(len(a)), k=3 * _TRIANGLES), (3, -1))

    def turning(xy: Points) -> Points:
        (x1, y1), (x2, y2) = ((xy[corners[k]] - xy[corners[0]]).T for k in (1, 2))
        return np.asarray(x1 * y2 - x2 * y1)

    sense = np.sign(turning(a) * turning(b))
    return bool((sense < 0).sum() > _MIRRORED_SHARE * np.count_nonzero(sense))


def project(homography: Matrix, a: Points) -> Points:
    """(M, 2) pixels where a homography puts points; NaN behind the camera."""
    projected = a @ homography[:, :2].T + homography[:, 2]
    w = projected[:, 2:]
    # The sign of a homography is free; its determinant makes the front of a real camera positive.
    front = w * np.sign(np.linalg.det(homography)) > 1e-12
    return np.where(front, projected[:, :2] / np.where(front, w, 1.0), np.nan)


def transfer_error(homography: Matrix, a: Points, b: Points) -> Points:
    """(M,) pixels between b and where the homography puts a; infinite behind the camera."""
    error = np.linalg.norm(project(homography, a) - b, axis=1)
    return np.where(np.isnan(error), np.inf, error)


def sampson_error(fundamental: NDArray[np.float64], a: Points, b: Points) -> Points:
    """(M,) pixels: first-order distance of a match to the nearest one that obeys b^T F a = 0."""
    lines_b = a @ fundamental[:, :2].T + fundamental[:, 2]
    lines_a = b @ fundamental[:2] + fundamental[2]
    algebraic = (b * lines_b[:, :2]).sum(1) + lines_b[:, 2]
    gradient = (lines_b[:, :2] ** 2).sum(1) + (lines_a[:, :2] ** 2).sum(1)
    return np.asarray(np.abs(algebraic) / np.sqrt(np.maximum(gradient, 1e-30)))


def estimate(
    a: Points,
    b: Points,
    kind: Kind,
    threshold: float,
    estimator: Estimator = "magsac",
    cameras: Intrinsics | None = None,
) -> Matrix | None:
    """(3, 3) finite matrix of one kind of geometry, or None if the matches do not determine one."""
    try:
        if estimator == "degensac":
            matrix = _degensac(a, b, kind, threshold)
        elif cameras is not None and kind == "essential":
            matrix = _essential(a, b, threshold, cameras)
        else:
            matrix = _magsac(a, b, kind, threshold)
    except (cv2.error, np.linalg.LinAlgError):  # every match in one place, and the like
        return None
    if matrix is None or np.shape(matrix) != (3, 3) or not np.isfinite(matrix).all():
        return None
    return np.asarray(matrix, np.float64)


def check_cameras(cameras: Cameras) -> Intrinsics:
    if len(cameras) != 2:
        raise InputError(f"cameras are the intrinsics of two images, got {len(cameras)}")
    first, second = (np.asarray(camera, np.float64) for camera in cameras)
    for camera in (first, second):
        if camera.shape != (3, 3) or not np.isfinite(camera).all():
            raise InputError(f"a camera is a finite (3, 3) matrix, got shape {camera.shape}")
        if camera[0, 0] <= 0 or camera[1, 1] <= 0 or np.any(camera[2] != (0, 0, 1)):
            form = "[[fx, s, cx], [0, fy, cy], [0, 0, 1]]"
            raise InputError(f"a camera is {form}, got {camera.tolist()}")
    return first, second


def normalise(points: Points, camera: Matrix) -> Points:
    """(M, 2) pixels -> (M, 2) directions, in units of the focal length."""
    inverse = np.linalg.inv(camera)
    return np.asarray(points @ inverse[:2, :2].T + inverse[:2, 2])


def to_fundamental(essential: Matrix, cameras: Intrinsics) -> Matrix:
    """The fundamental matrix, for pixels, of an essential matrix."""
    left, right = (np.linalg.inv(camera) for camera in cameras)
    matrix: Matrix = right.T @ essential @ left
    return matrix / np.linalg.norm(matrix)


def _magsac(a: Points, b: Points, kind: Kind, threshold: float) -> NDArray[Any] | None:
    if kind == "homography":
        return cv2.findHomography(
            a, b, cv2.USAC_MAGSAC, threshold, maxIters=_SAMPLES, confidence=_CONFIDENCE
        )[0]
    # Samples are drawn from the best matches first (PROSAC): far pairs have few right matches.
    how = cv2.UsacParams()
    how.sampler, how.score = cv2.SAMPLING_PROSAC, cv2.SCORE_METHOD_MAGSAC
    how.loMethod, how.loIterations, how.loSampleSize = cv2.LOCAL_OPTIM_SIGMA, 10, 50
    how.final_polisher, how.final_polisher_iterations = cv2.MAGSAC, 3
    how.threshold, how.confidence, how.maxIterations = threshold, _CONFIDENCE, _EPIPOLAR_SAMPLES
    return cv2.findFundamentalMat(a, b, how)[0]


def _essential(a: Points, b: Points, threshold: float, cameras: Intrinsics) -> NDArray[Any] | None:
    """Fitted twice: among outliers OpenCV's last step leaves a pose that is degrees off."""
    focal = float(np.mean([camera[k, k] for camera in cameras for k in (0, 1)]))
    left, right = normalise(a, cameras[0]), normalise(b, cameras[1])
    pixels = threshold / focal

    def fit(part: NDArray[np.bool_]) -> tuple[NDArray[Any] | None, NDArray[np.bool_]]:
        matrix = cv2.findEssentialMat(
            left[part], right[part], np.eye(3), cv2.USAC_MAGSAC, _CONFIDENCE, pixels, _SAMPLES
        )[0]
        if matrix is None or matrix.shape != (3, 3):
            return matrix, np.zeros(len(left), bool)
        return matrix, sampson_error(np.asarray(matrix, np.float64), left, right) < pixels

    first, inliers = fit(np.ones(len(left), bool))
    if inliers.sum() < _FEW:
        return first
    second, agree = fit(inliers)
    return second if agree.sum() >= _SHARE * inliers.sum() else first


def _degensac(a: Points, b: Points, kind: Kind, threshold: float) -> NDArray[Any] | None:
    try:
        import pydegensac
    except ImportError:
        raise MissingExtraError("pydegensac", "degensac") from None
    fit = pydegensac.findHomography if kind == "homography" else pydegensac.findFundamentalMatrix
    matrix, inliers = fit(a, b, threshold, _CONFIDENCE, _SAMPLES, seed=0)
    return matrix if np.any(inliers) else None


@dataclass(frozen=True, eq=False)
class Pose:
    """A point x of the first camera's coordinates is rotation @ x + translation in the second's.

    The translation has length 1: two images do not tell the scale. ``in_front`` are the inliers
    that both cameras see in front of them.
    """

    rotation: Matrix
    translation: NDArray[np.float64]
    in_front: NDArray[np.bool_]


def relative_pose(
    geometry: Geometry,
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    cameras: Cameras | None = None,
) -> Pose:
    """Of the four poses of an essential matrix the one with most inliers in front of both cameras.

    ``xy_a`` and ``xy_b`` (M, 2) are all matches, in pixels. A fundamental matrix needs the cameras,
    whose default is those of the geometry.
    """
    known = check_cameras(cameras) if cameras is not None else geometry.cameras
    if known is None or geometry.model is None or geometry.kind == "homography":
        raise InputError(
            f"no pose from a geometry of kind {geometry.kind}: match with model='essential'"
        )
    essential = geometry.model
    if geometry.kind == "fundamental":
        essential = known[1].T @ geometry.model @ known[0]
    inliers = np.asarray(geometry.inliers, bool)
    a, b = (
        normalise(np.asarray(xy, np.float64)[inliers], camera)
        for xy, camera in zip((xy_a, xy_b), known, strict=True)
    )
    _, rotation, translation, mask = cv2.recoverPose(essential, a, b, np.eye(3))
    in_front = np.zeros(len(inliers), bool)
    in_front[inliers] = np.asarray(mask).ravel() > 0
    turn, move = (np.asarray(part, np.float64) for part in (rotation, translation))
    return Pose(turn, move.ravel(), in_front)


class Grid:
    """Which points of the plane (N, 2) are near which.

    Points are sorted into cells of one radius; those near a query are in the 3 x 3 cells around it.
    """

    def __init__(self, points: ArrayLike, radius: float) -> None:
        self.points = np.asarray(points, np.float64).reshape(-1, 2)
        self.radius = radius
        self._origin = self.points.min(0) if len(self.points) else np.zeros(2)
        cells = np.floor((self.points - self._origin) / radius)
        self._size = cells.max(0) + 1 if len(cells) else np.ones(2)
        keys = self._keys(*cells.T.astype(np.int64))
        self._order = np.argsort(keys, kind="stable")
        self._sorted = keys[self._order]

    def near(self, queries: ArrayLike) -> Pairs:
        """(K,) queries and (K,) points of all pairs at a distance of at most the radius.

        Of the queries (Q, 2) one that is not finite is near nothing.
        """
        queries = np.asarray(queries, np.float64).reshape(-1, 2)
        known = np.flatnonzero(np.isfinite(queries).all(1))
        place = np.floor((queries[known] - self._origin) / self.radius)
        column, row = np.clip(place, -2, self._size + 1).astype(np.int64).T
        # Three neighbouring cells of one row of the grid are one run of the order.
        rows, three = np.concatenate([row - 1, row, row + 1]), np.tile(column, 3)
        start = np.searchsorted(self._sorted, self._keys(three - 1, rows), side="left")
        stop = np.searchsorted(self._sorted, self._keys(three + 1, rows), side="right")
        count = stop - start
        first = np.cumsum(count) - count
        query = np.repeat(np.tile(known, 3), count)
        point = self._order[np.arange(count.sum()) + np.repeat(start - first, count)]
        close = ((queries[query] - self.points[point]) ** 2).sum(1) <= self.radius**2
        return query[close], point[close]

    def _keys(self, column: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.int64]:
        stride = int(self._size[0]) + 2 * _MARGIN
        return np.asarray((row + _MARGIN) * stride + column + _MARGIN)
