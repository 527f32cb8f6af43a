"""Maximally stable extremal regions (Matas et al. 2002), by OpenCV, as elliptic frames."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.affine import MAX_STRETCH, axes
from hardnet.detectors.orientation import Floats, orient
from hardnet.frames import WINDOW_SIGMAS, Detected, empty_frames
from hardnet.images import Pixels

MIN_AREA = 30
"""Pixels of the smallest region."""

MAX_AREA = 0.05
"""Largest region, as a share of the image."""

MARGIN = 8
"""Grey levels over which a region must stay nearly the same."""

MAX_VARIATION = 1.0
"""Largest change of a region's area over the margin, relative to its area.

OpenCV's default of 0.25 keeps far fewer regions, which are no more repeatable."""

_MIN_SIDE = 8  # a region and its neighbourhood do not fit into less


def detect(image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
    """Find dark and bright regions that stay the same over many thresholds.

    The frame has the region's centre and the shape of its covariance. The standard deviations stand
    for a keypoint's sigma, so the window's half-size is six of them, which is three times the
    ellipse with the region's moments. Regions at the border are dropped, because their shape
    depends on where the image ends. OpenCV does not report stability, so the largest regions are
    kept and the score is the square root of the area.
    """
    height, width = image.shape
    if min(image.shape) < _MIN_SIDE:
        return empty_frames(), np.zeros(0, np.float32)
    largest = max(int(MAX_AREA * image.size), MIN_AREA + 1)
    finder = cv2.MSER.create(
        delta=MARGIN, min_area=MIN_AREA, max_area=largest, max_variation=MAX_VARIATION
    )
    regions, boxes = finder.detectRegions(image)
    if not len(regions):
        return empty_frames(), np.zeros(0, np.float32)
    x, y, w, h = np.asarray(boxes).T
    # OpenCV 4 never includes the outermost pixels in a region.
    inner = (x > 1) & (y > 1) & (x + w < width - 1) & (y + h < height - 1)
    area, centre, covariance = _moments(
        [np.asarray(regions[i], np.int32) for i in np.flatnonzero(inner).tolist()]
    )
    shape = np.linalg.cholesky(covariance) * (WINDOW_SIGMAS / 2)
    short, long = axes(shape)
    order = np.lexsort((centre[:, 0], centre[:, 1], -area))
    chosen = order[(long < MAX_STRETCH * short)[order]][:keypoints]
    frames = np.concatenate([shape, centre[:, :, None]], 2)[chosen].astype(np.float32)
    scores = np.sqrt(area[chosen]).astype(np.float32)
    return frames if upright else orient(image, frames), scores


def _moments(regions: list[NDArray[np.int32]]) -> tuple[Floats, Floats, Floats]:
    """Area (N,), centre (N, 2) and covariance (N, 2, 2) of regions, lists of pixels (n, 2)."""
    area = np.array([len(region) for region in regions], np.float64)
    if not len(area):
        return area, np.zeros((0, 2)), np.zeros((0, 2, 2))
    points = np.concatenate(regions).astype(np.float64)
    first = np.concatenate([[0], np.cumsum(area)[:-1]]).astype(np.intp)
    centre = np.add.reduceat(points, first) / area[:, None]
    points -= np.repeat(centre, area.astype(np.intp), 0)
    products = np.column_stack([points[:, 0] ** 2, points[:, 0] * points[:, 1], points[:, 1] ** 2])
    xx, xy, yy = (np.add.reduceat(products, first) / area[:, None]).T
    # A pixel is a square, not a point: it has its own variance.
    xx, yy = xx + 1 / 12, yy + 1 / 12
    return area, centre, np.stack([xx, xy, xy, yy], 1).reshape(-1, 2, 2)
