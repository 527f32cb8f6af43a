"""Difference-of-Gaussians keypoints (Lowe 2004), by OpenCV's SIFT detector."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames, empty_frames, from_similarity

Detected = tuple[Frames, NDArray[np.float32]]

CONTRAST = 0.005
"""Eight times below OpenCV's default.

The budget keeps the strongest keypoints in any case, so this only matters where the default finds
too few, as in blurred photos. A lower value starts to find JPEG blocks."""


def detect(
    image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
) -> tuple[Frames, NDArray[np.float32]]:
    """Find the strongest keypoints of an image; see ``detectors.Detector``.

    A position with two strong orientations gives two frames, as in Lowe's paper. The score is the
    absolute DoG contrast; equal scores are ordered by position, so the result does not depend on
    threads.
    """
    # Tens of thousands of weak keypoints need not become Python objects: OpenCV keeps the budget
    # and all that are as strong as its last one. Orientations of one place are counted each.
    return _strongest(_keys(image, 0 if upright else keypoints), keypoints, upright)


def detect_both(image: NDArray[np.uint8], keypoints: int = 2048) -> tuple[Detected, Detected]:
    """What :func:`detect` gives with ``upright`` and without, in the time of one."""
    keys = _keys(image, 0)
    return _strongest(keys, keypoints, upright=True), _strongest(keys, keypoints, upright=False)


def _keys(image: NDArray[np.uint8], budget: int) -> NDArray[np.float64]:
    """(N, 5) negative response, y, x, size, angle, sorted; the budget 0 is no limit."""
    # Without precise upscaling OpenCV reports every keypoint a quarter of a pixel too far right
    # and down, because its doubled image is not centred.
    sift = cv2.SIFT.create(
        nfeatures=budget, contrastThreshold=CONTRAST, enable_precise_upscale=True
    )
    found = sift.detect(image, None)
    keys = np.array([(-k.response, k.pt[1], k.pt[0], k.size, k.angle) for k in found])
    keys = keys.reshape(-1, 5)
    return keys[np.lexsort(keys.T[::-1])]


def _strongest(keys: NDArray[np.float64], keypoints: int, upright: bool) -> Detected:
    if not len(keys):
        return empty_frames(), np.zeros(0, np.float32)
    angle = keys[:, 4]
    if upright:
        # The orientations of one place are neighbours: all but the angle is the same.
        new = np.ones(len(keys), bool)
        new[1:] = (keys[1:, :4] != keys[:-1, :4]).any(1)
        keys = keys[new]
        angle = np.zeros(len(keys))
    keys, angle = keys[:keypoints], angle[:keypoints]
    frames = from_similarity(keys[:, [2, 1]], keys[:, 3] / 2, np.deg2rad(angle))
    return frames, (-keys[:, 0]).astype(np.float32)
