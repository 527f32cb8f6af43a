"""How far matches lie from a geometry, in pixels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


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
