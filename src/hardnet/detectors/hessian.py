"""Blobs and saddles: keypoints of the determinant of the Hessian, with circular frames.

A Gaussian blob of standard deviation s is found at sigma = s.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.octaves import search_octaves
from hardnet.detectors.orientation import orient
from hardnet.frames import Frames, from_similarity

THRESHOLD = 5.33
"""Least square root of the response, in grey levels 0..255: the geometric mean of a blob's two
curvatures, times sigma^2. The value of the literature (16/3)."""


@dataclass(frozen=True, eq=False)
class Places:
    """Keypoints without shape and orientation, strongest first.

    Attributes:
        xy: (N, 2) pixels.
        sigma: (N,) scales.
        scores: (N,) square root of the absolute response.
    """

    xy: NDArray[np.float64]
    sigma: NDArray[np.float64]
    scores: NDArray[np.float32]

    def frames(self) -> Frames:
        """(N, 2, 3) upright circular frames."""
        return from_similarity(self.xy, self.sigma)


def detect(
    image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
) -> tuple[Frames, NDArray[np.float32]]:
    """Find the strongest Hessian keypoints of an image.

    Args:
        image: (H, W) uint8.
        keypoints: the budget; the strongest responses are kept.
        upright: angle 0 instead of the dominant gradient.

    Returns:
        (N, 2, 3) frames and (N,) scores, strongest first; N <= keypoints.
    """
    places = find_places(image)
    frames = places.frames()[:keypoints]
    return frames if upright else orient(image, frames), places.scores[:keypoints]


def find_places(image: NDArray[np.uint8], threshold: float = THRESHOLD) -> Places:
    """All keypoints of an image whose score is at least ``threshold``."""
    if image.ndim != 2 or image.dtype != np.uint8:
        raise ValueError(f"image must be (H, W) uint8, got {image.shape} {image.dtype}")
    table = search_octaves(image, threshold**2)
    # Equal responses are ordered by place, so that the order is always the same.
    x, y, sigma, response = table[np.lexsort((*table[:, :3].T, -np.abs(table[:, 3])))].T
    scores = np.sqrt(np.abs(response)).astype(np.float32)
    return Places(np.column_stack([x, y]), sigma, scores)
