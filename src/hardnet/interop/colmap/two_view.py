"""The two-view geometry of a pair of photos, by COLMAP's own verification: the default.

It knows the cameras and tells planes from depth by itself, and gives larger models than our inliers
(:mod:`hardnet.interop.colmap.own_geometry`), which are stricter. A chair, 21 photos of 4096
keypoints, all registered:

    verification      points   track length   reprojection error
    colmap              4651           3.77              0.51 px
    hardnet             4148           3.98              0.49 px
    colmap, guided      7006           3.50              0.67 px
    hardnet, guided     6679           3.57              0.67 px
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.sfm.colmap import require_pycolmap

Verification = Literal["colmap", "hardnet"]
"""Who decides which matches of a pair agree with a geometry."""

MIN_INLIERS = 15
"""COLMAP's own smallest number of matches of a pair it believes."""


@dataclass(frozen=True, eq=False)
class Photo:
    """What a database holds of a photo.

    Attributes:
        id: number of the image.
        camera: a pycolmap.Camera.
        points: (N, 2) keypoints in COLMAP's pixels.
    """

    id: int
    camera: Any
    points: NDArray[np.float64]


def verify_pair(a: Photo, b: Photo, indices: NDArray[Any], seed: int) -> Any:
    """COLMAP's own verification of the matches of a pair, by its cameras.

    Args:
        a: the first photo.
        b: the second.
        indices: (K, 2) matches.
        seed: of the random samples.

    Returns:
        A pycolmap.TwoViewGeometry; without matches if there are too few to believe.
    """
    pycolmap = require_pycolmap()
    if len(indices) < MIN_INLIERS:
        return pycolmap.TwoViewGeometry()
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = seed
    options.min_num_inliers = MIN_INLIERS
    found = pycolmap.estimate_two_view_geometry(
        a.camera, a.points, b.camera, b.points, indices.astype(np.uint32), options
    )
    return found if len(found.inlier_matches) >= MIN_INLIERS else pycolmap.TwoViewGeometry()
