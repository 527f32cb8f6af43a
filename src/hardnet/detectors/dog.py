"""Difference-of-Gaussians keypoints (Lowe 2004), by OpenCV's SIFT detector."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames, empty_frames, from_similarity

CONTRAST = 0.005
"""Eight times below OpenCV's default.

The budget keeps the strongest keypoints in any case, so this only matters where the default finds
too few, as in blurred photos. A lower value starts to find JPEG blocks."""


def detect(
    image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
) -> tuple[Frames, NDArray[np.float32]]:
    """Find the strongest keypoints of an image.

    A position with two strong orientations gives two frames, as in Lowe's paper.

    Args:
        image: (H, W) uint8.
        keypoints: the budget; the strongest responses are kept.
        upright: one frame per place, with angle 0.

    Returns:
        (N, 2, 3) frames and (N,) scores (absolute DoG contrast), strongest first; N <= keypoints.
        Equal scores are ordered by position, so the result does not depend on threads.
    """
    # Without precise upscaling OpenCV reports every keypoint a quarter of a pixel too far right
    # and down, because its doubled image is not centred.
    # OpenCV keeps the budget and all that are as strong as its last one: tens of thousands of weak
    # keypoints need not become Python objects. Orientations of one place are counted each.
    budget = 0 if upright else keypoints
    sift = cv2.SIFT.create(
        nfeatures=budget, contrastThreshold=CONTRAST, enable_precise_upscale=True
    )
    found = sift.detect(image, None)
    if not found:
        return empty_frames(), np.zeros(0, np.float32)
    keys = np.array([(-k.response, k.pt[1], k.pt[0], k.size, k.angle) for k in found])
    keys = keys[np.lexsort(keys.T[::-1])]
    if upright:
        # The orientations of one place are neighbours: all but the angle is the same.
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:, :4] != keys[:-1, :4]).any(1)
        keys = keys[new]
        keys[:, 4] = 0
    keys = keys[:keypoints]
    frames = from_similarity(keys[:, [2, 1]], keys[:, 3] / 2, np.deg2rad(keys[:, 4]))
    return frames, (-keys[:, 0]).astype(np.float32)
