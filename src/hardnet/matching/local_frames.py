"""Do the frames of a match agree with the geometry, and not only their centres?

A false match may lie on the right spot by chance, or on the right line, which is easy; then its
size, shape and orientation are arbitrary. The check is that of MODS: three points of the frame (the
centre, and the ends of its two axes at three sigma) are matches of their own, and their mean error
has a bound.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import WINDOW_SIGMAS, Frames
from hardnet.matching.geometry import Geometry
from hardnet.matching.residuals import Points, sampson_error, transfer_error

AXIS_SIGMAS = 3.0
"""How long the axes are, in sigmas of the keypoint."""

HOMOGRAPHY_COEFFICIENT = 12.0
EPIPOLAR_COEFFICIENT = 2.0
"""The mean error may be this many thresholds, for a homography and for epipolar lines."""


def consistent(
    frames_a: Frames, frames_b: Frames, geometry: Geometry, threshold: float
) -> NDArray[np.bool_]:
    """Which matches have frames that the geometry carries onto each other.

    Args:
        frames_a: (M, 2, 3) frames in image a, row by row matched to
        frames_b: (M, 2, 3) frames in image b.
        geometry: a homography (error: the larger of both directions), fundamental or essential
            matrix (Sampson error), for the pixels of the frames.
        threshold: the inlier threshold in pixels.

    Returns:
        (M,) bool; all of them without a geometry.
    """
    if geometry.kind is None or geometry.model is None:
        return np.ones(len(frames_a), bool)
    coefficient = EPIPOLAR_COEFFICIENT
    if geometry.kind == "homography":
        coefficient = HOMOGRAPHY_COEFFICIENT
    pairs = zip(_axis_points(frames_a), _axis_points(frames_b), strict=True)
    error = np.mean([_error(geometry, a, b) for a, b in pairs], axis=0)
    agree: NDArray[np.bool_] = error <= coefficient * threshold
    return agree


def _axis_points(frames: Frames) -> list[Points]:
    """Three times (M, 2): the centre, the end of the x axis, the end of the y axis."""
    array = np.asarray(frames, np.float64)
    length = 2 * AXIS_SIGMAS / WINDOW_SIGMAS
    centre = array[:, :, 2]
    return [centre, centre + length * array[:, :, 0], centre + length * array[:, :, 1]]


def _error(geometry: Geometry, a: Points, b: Points) -> Points:
    fundamental = geometry.fundamental
    if fundamental is not None:
        return sampson_error(fundamental, a, b)
    assert geometry.model is not None
    inverse = np.asarray(np.linalg.inv(geometry.model), np.float64)
    return np.maximum(transfer_error(geometry.model, a, b), transfer_error(inverse, b, a))
