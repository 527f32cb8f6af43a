"""The fundamental matrix of correspondences picked by hand, and how far others are from it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


def eight_point(a: Points, b: Points) -> NDArray[np.float64]:
    """The (3, 3) fundamental matrix of rank 2 with b^T F a = 0 for all points, by least squares.

    Hartley's normalised algorithm: both point sets are moved to their centre and scaled to a mean
    distance of sqrt(2), so that the least squares of the algebraic error is well conditioned.

    Args:
        a: (K, 2) points of image a, K at least 8.
        b: (K, 2) the same points in image b.

    Returns:
        F of Frobenius norm 1.
    """
    to_a, to_b = _normaliser(a), _normaliser(b)
    x, y = _homogeneous(a) @ to_a.T, _homogeneous(b) @ to_b.T
    equations = (y[:, :, None] * x[:, None, :]).reshape(-1, 9)
    matrix = np.linalg.svd(equations)[2][-1].reshape(3, 3)
    u, s, vt = np.linalg.svd(matrix)
    matrix = to_b.T @ (u * [s[0], s[1], 0.0]) @ vt @ to_a
    return np.asarray(matrix / np.linalg.norm(matrix))


def symmetric_distance(fundamental: NDArray[np.float64], a: Points, b: Points) -> Points:
    """(K,) pixels: root of the sum of the squared distances to the epipolar lines in a and in b.

    The measure of the WxBS set (Hartley and Zisserman, 11.10), as its published errors have it:
    without the square.
    """
    lines_b = _homogeneous(a) @ fundamental.T
    lines_a = _homogeneous(b) @ fundamental
    algebraic = (_homogeneous(b) * lines_b).sum(1)
    in_a, in_b = (np.maximum((line[:, :2] ** 2).sum(1), 1e-30) for line in (lines_a, lines_b))
    distance: Points = np.abs(algebraic) * np.sqrt(1 / in_a + 1 / in_b)
    return distance


def _normaliser(points: Points) -> NDArray[np.float64]:
    centre = points.mean(0)
    scale = np.sqrt(2) / max(float(np.linalg.norm(points - centre, axis=1).mean()), 1e-12)
    return np.array([[scale, 0, -scale * centre[0]], [0, scale, -scale * centre[1]], [0, 0, 1]])


def _homogeneous(points: Points) -> Points:
    return np.hstack([points, np.ones((len(points), 1))])
