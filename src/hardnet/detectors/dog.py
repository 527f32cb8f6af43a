"""Difference-of-Gaussians keypoints (Lowe 2004), by OpenCV's SIFT detector.

Large images would take OpenCV more memory than most machines have: these are searched in tiles, see
:mod:`hardnet.detectors.dog_tiles` for what may differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog_tiles
from hardnet.frames import Frames, empty_frames, from_similarity

Detected = tuple[Frames, NDArray[np.float32]]

CONTRAST = 0.005
"""Eight times below OpenCV's default.

The budget keeps the strongest keypoints in any case, so this only matters where the default finds
too few, as in blurred photos. A lower value starts to find JPEG blocks."""

LARGE = 6_000_000
"""Pixels: larger images are searched in tiles."""


def detect(
    image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
) -> tuple[Frames, NDArray[np.float32]]:
    """Find the strongest keypoints of an image; see ``detectors.Detector``.

    A position with two strong orientations gives two frames, as in Lowe's paper. The score is the
    absolute DoG contrast; equal scores are ordered by position, so the result does not depend on
    threads.
    """
    return _strongest(_keys(image, keypoints, places=upright), keypoints, upright)


def detect_both(image: NDArray[np.uint8], keypoints: int = 2048) -> tuple[Detected, Detected]:
    """What :func:`detect` gives with ``upright`` and without, in the time of one."""
    keys = _keys(image, keypoints, places=True)
    return _strongest(keys, keypoints, upright=True), _strongest(keys, keypoints, upright=False)


def _keys(image: NDArray[np.uint8], keypoints: int, places: bool) -> dog_tiles.Keys:
    """Keys, sorted.

    There are enough for the strongest keypoints or, with ``places``, for that many places.
    """
    if image.size > LARGE:
        return dog_tiles.find_keys(image, CONTRAST, keypoints)
    # Tens of thousands of weak keypoints need not become Python objects: OpenCV keeps the budget
    # and all that are as strong as its last one. Orientations of one place are counted each.
    # Without precise upscaling OpenCV reports every keypoint a quarter of a pixel too far right
    # and down, because its doubled image is not centred.
    sift = cv2.SIFT.create(
        nfeatures=0 if places else keypoints,
        contrastThreshold=CONTRAST,
        enable_precise_upscale=True,
    )
    return sorted_keys(sift.detect(image, None))


def sorted_keys(found: Sequence[cv2.KeyPoint]) -> dog_tiles.Keys:
    """OpenCV's keypoints as a table, strongest first; equal ones by position."""
    keys = np.array([(-k.response, k.pt[1], k.pt[0], k.size, k.angle) for k in found])
    keys = keys.reshape(-1, 5)
    return keys[np.lexsort(keys.T[::-1])]


def _strongest(keys: dog_tiles.Keys, keypoints: int, upright: bool) -> Detected:
    if not len(keys):
        return empty_frames(), np.zeros(0, np.float32)
    angle = keys[:, 4]
    if upright:
        keys = keys[dog_tiles.is_new_place(keys)]
        angle = np.zeros(len(keys))
    keys, angle = keys[:keypoints], angle[:keypoints]
    frames = from_similarity(keys[:, [2, 1]], keys[:, 3] / 2, np.deg2rad(angle))
    return frames, (-keys[:, 0]).astype(np.float32)
