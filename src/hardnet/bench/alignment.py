"""How far cameras are from where they should be, once both worlds are laid over each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Similarity:
    """x -> scale * rotation @ x + translation.

    Attributes:
        scale: positive.
        rotation: (3, 3), determinant 1.
        translation: (3,).
    """

    scale: float
    rotation: Floats
    translation: Floats

    def __call__(self, points: ArrayLike) -> Floats:
        """(N, 3) -> (N, 3)."""
        moved: Floats = self.scale * np.asarray(points, np.float64) @ self.rotation.T
        return moved + self.translation


def align(source: ArrayLike, target: ArrayLike) -> Similarity:
    """The similarity that brings source points closest to target points (Umeyama 1991).

    All points count, none is taken for an outlier: a camera that is far off shall show.

    Args:
        source: (N, 3), N >= 3, not all on one line.
        target: (N, 3), the same points.
    """
    x, y = np.asarray(source, np.float64), np.asarray(target, np.float64)
    if x.shape != y.shape or x.ndim != 2 or x.shape[1] != 3 or len(x) < 3:
        raise ValueError(f"need (N, 3) and (N, 3) points, N >= 3; got {x.shape} and {y.shape}")
    x_mean, y_mean = x.mean(0), y.mean(0)
    covariance = (y - y_mean).T @ (x - x_mean) / len(x)
    u, singular, vt = np.linalg.svd(covariance)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(u) * np.linalg.det(vt))])  # no mirror image
    rotation = u @ np.diag(sign) @ vt
    variance = ((x - x_mean) ** 2).sum() / len(x)
    if singular[1] <= 1e-12 * singular[0] or variance == 0:
        raise ValueError("points on one line do not determine a rotation")
    scale = float(singular @ sign / variance)
    return Similarity(scale, rotation, y_mean - scale * rotation @ x_mean)


def rotation_angle(a: ArrayLike, b: ArrayLike) -> Floats:
    """(N,) degrees between rotations (N, 3, 3) and (N, 3, 3)."""
    relative = np.asarray(a, np.float64) @ np.swapaxes(np.asarray(b, np.float64), -1, -2)
    # From the chord, not the trace: the cosine of a small angle has no digits left.
    chord = np.linalg.norm(relative - np.eye(3), axis=(-2, -1))
    angle: Floats = np.rad2deg(2 * np.arcsin(np.clip(chord / np.sqrt(8), 0, 1)))
    return angle
