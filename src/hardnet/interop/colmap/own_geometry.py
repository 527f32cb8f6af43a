"""The geometry that ``hardnet.match`` found, as COLMAP has it: in its pixels, by its names."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.interop.colmap.orientation import to_stored
from hardnet.interop.colmap.two_view import MIN_INLIERS, Photo
from hardnet.matching.matches import Matches
from hardnet.sfm.colmap import require_pycolmap

Matrix = NDArray[np.float64]


def own_geometry(a: Photo, b: Photo, matches: Matches) -> Any:
    """A pycolmap.TwoViewGeometry of our inliers; empty if they are too few to believe.

    Args:
        a: the first photo, as the database knows it.
        b: the second.
        matches: of the features that the photos were written from.
    """
    pycolmap = require_pycolmap()
    geometry = pycolmap.TwoViewGeometry()
    kind, model = matches.geometry.kind, matches.geometry.model
    if kind is None or model is None or matches.inliers.sum() < MIN_INLIERS:
        return geometry
    geometry.inlier_matches = matches.indices[matches.inliers].astype(np.uint32)
    kinds = pycolmap.TwoViewGeometryConfiguration
    to_a, to_b = pixel_map(matches.a, a.points), pixel_map(matches.b, b.points)
    if kind == "homography":
        geometry.config = kinds.PLANAR_OR_PANORAMIC
        geometry.H = to_b @ model @ np.linalg.inv(to_a)
        return geometry
    if kind == "essential":
        assert matches.geometry.cameras is not None
        k_a, k_b = (np.linalg.inv(k) for k in matches.geometry.cameras)
        model = k_b.T @ model @ k_a
    model = np.linalg.inv(to_b).T @ model @ np.linalg.inv(to_a)
    geometry.F = model / np.linalg.norm(model)
    geometry.config = kinds.UNCALIBRATED
    if kind == "essential":
        geometry.config = kinds.CALIBRATED
        essential = b.camera.calibration_matrix().T @ model @ a.camera.calibration_matrix()
        geometry.E = essential / np.linalg.norm(essential)
    return geometry


def pixel_map(features: Features, points: NDArray[np.float64]) -> Matrix:
    """(3, 3) map from pixels of the upright photo to COLMAP's pixels of the file.

    The database does not say how a photo was turned; its keypoints do.

    Args:
        features: of the upright photo.
        points: (N, 2) the same keypoints as the database has them.
    """
    shift = np.eye(3)
    shift[:2, 2] = 0.5  # COLMAP counts from the corner of the first pixel
    maps = [shift @ to_stored(features.image_size, turn) for turn in range(1, 9)]
    xy = features.xy.astype(np.float64)
    off = [np.abs(xy @ m[:2, :2].T + m[:2, 2] - points).max(initial=0.0) for m in maps]
    return maps[int(np.argmin(off))]
