"""How the second camera stands to the first, from an epipolar geometry and known cameras."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.matching.estimators import Cameras, Matrix, check_cameras, normalise
from hardnet.matching.geometry import Geometry


@dataclass(frozen=True, eq=False)
class Pose:
    """A point x of the first camera's coordinates is rotation @ x + translation in the second's.

    Attributes:
        rotation: (3, 3).
        translation: (3,), of length 1: two images do not tell the scale.
        in_front: (M,) bool, the inliers that both cameras see in front of them.
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

    Args:
        geometry: of kind "essential", or "fundamental" together with ``cameras``.
        xy_a: (M, 2) the matches that the geometry's inliers refer to, in pixels.
        xy_b: (M, 2) their positions in image b.
        cameras: (3, 3) intrinsics of both images; default: those of the geometry.
    """
    known = check_cameras(cameras) if cameras is not None else geometry.cameras
    if known is None or geometry.model is None or geometry.kind == "homography":
        raise HardnetError(
            f"no pose from a geometry of kind {geometry.kind}: match with model='essential'"
        )
    essential = geometry.model
    if geometry.kind == "fundamental":
        essential = known[1].T @ geometry.model @ known[0]
    inliers = np.asarray(geometry.inliers, bool)
    a = normalise(np.asarray(xy_a, np.float64)[inliers], known[0])
    b = normalise(np.asarray(xy_b, np.float64)[inliers], known[1])
    _, rotation, translation, mask = cv2.recoverPose(essential, a, b, np.eye(3))
    in_front = np.zeros(len(inliers), bool)
    in_front[inliers] = np.asarray(mask).ravel() > 0
    turn, move = (np.asarray(part, np.float64) for part in (rotation, translation))
    return Pose(turn, move.ravel(), in_front)
