"""What OpenCV's feature classes take, and what they call an error."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

KeyPoints = tuple[cv2.KeyPoint, ...]


class OpenCVError(HardnetError, cv2.error):
    """What ``except cv2.error`` in an existing program expects."""


def grey(image: Any) -> NDArray[np.uint8]:
    """(H, W) uint8 of what OpenCV takes for an image, made grey as SIFT does it."""
    array = image.get() if isinstance(image, cv2.UMat) else image
    if not isinstance(array, np.ndarray) or array.dtype != np.uint8:
        kind = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise OpenCVError(f"image has incorrect depth ({kind}): give uint8, as SIFT needs")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim == 3 and array.shape[2] in (3, 4):
        array = cv2.cvtColor(array, cv2.COLOR_BGR2GRAY)
    if array.ndim != 2:
        raise OpenCVError(f"image has shape {array.shape}: give (H, W) or (H, W, 3) BGR")
    return np.ascontiguousarray(array, np.uint8)


def is_empty(image: Any) -> bool:
    """True for an image without pixels."""
    array = image.get() if isinstance(image, cv2.UMat) else image
    return isinstance(array, np.ndarray) and not array.size


def check_mask(image: Any, mask: Any) -> None:
    """OpenCV reads past the end of a mask that is smaller than its image."""
    arrays = isinstance(image, np.ndarray) and isinstance(mask, np.ndarray)
    if arrays and mask.size and mask.shape[:2] != image.shape[:2]:
        raise OpenCVError(f"mask has shape {mask.shape}, its image {image.shape}: make it fit")


def check_keypoints(keypoints: Any) -> KeyPoints:
    """A tuple of keypoints, none for None."""
    if isinstance(keypoints, cv2.KeyPoint):
        raise OpenCVError("keypoints: one keypoint is no sequence of them")
    points = () if keypoints is None else tuple(keypoints)
    for i, point in enumerate(points):
        if not isinstance(point, cv2.KeyPoint):
            kind = type(point).__name__
            raise OpenCVError(f"keypoints: item {i} has a wrong type ({kind}, not cv2.KeyPoint)")
    return points


def write(rows: NDArray[Any], target: Any) -> NDArray[Any]:
    """The rows, in the array that is meant for them if they fit."""
    fits = isinstance(target, np.ndarray) and target.shape == rows.shape
    if not fits or target.dtype != rows.dtype:
        return rows
    target[...] = rows
    written: NDArray[Any] = target
    return written
