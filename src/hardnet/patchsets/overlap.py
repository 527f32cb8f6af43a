"""Which frames show nearly the same spot, so that a benchmark does not ask for one of two twins."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames

MAX_OVERLAP = 0.5
"""Frames that overlap more than this (intersection over union) count as one, as in HPatches."""


def disc_overlap(
    distance: NDArray[np.float64], radius_a: NDArray[np.float64], radius_b: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Intersection over union of pairs of discs, from their distance and radii (any one shape)."""
    small, large = np.minimum(radius_a, radius_b), np.maximum(radius_a, radius_b)
    # Outside this range the discs are nested or apart and the lens formula has no angle.
    d = np.clip(distance, np.maximum(large - small, 1e-12), small + large)
    to_small = np.clip((d**2 + small**2 - large**2) / (2 * d * small), -1, 1)
    to_large = np.clip((d**2 + large**2 - small**2) / (2 * d * large), -1, 1)
    kite = (small + large - d) * (d + small - large) * (d - small + large) * (d + small + large)
    common = (
        small**2 * np.arccos(to_small)
        + large**2 * np.arccos(to_large)
        - 0.5 * np.sqrt(np.maximum(kite, 0))
    )
    return np.asarray(common / (np.pi * (small**2 + large**2) - common))


def suppress_overlaps(
    frames: Frames, limit: int, max_overlap: float = MAX_OVERLAP
) -> NDArray[np.intp]:
    """Pick frames, first come first served, none of which overlaps an earlier one too much.

    The overlap is that of the discs with the area of the ellipse inscribed in each window.

    Args:
        frames: (N, 2, 3), best first.
        limit: stop after so many.
        max_overlap: intersection over union that is still allowed.

    Returns:
        (K,) ascending indices, K <= limit.
    """
    centre = frames[:, :, 2].astype(np.float64)
    radius = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2].astype(np.float64))))
    kept = np.empty(min(limit, len(frames)), np.intp)
    count = 0
    for i in range(len(frames)):
        if count == limit:
            break
        others = kept[:count]
        distance = np.linalg.norm(centre[others] - centre[i], axis=1)
        if (disc_overlap(distance, radius[others], radius[i]) <= max_overlap).all():
            kept[count] = i
            count += 1
    return kept[:count]
