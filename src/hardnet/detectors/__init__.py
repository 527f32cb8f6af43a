"""Detectors by name: image -> frames and scores, strongest first, or spread over the image.

The strongest keypoints of a photo crowd where its contrast is highest, and a region without
keypoints cannot be found again. A spread detector divides the image into cells and takes the
strongest keypoint of every cell before the second of any, until it has enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import affine, dog, hessian
from hardnet.detectors.orientation import Indices
from hardnet.errors import InputError
from hardnet.frames import Detected, centres
from hardnet.image_files import file_digest
from hardnet.images import Pixels
from hardnet.storage import check_registered


class Detector(Protocol):
    """A function that finds keypoints."""

    def __call__(self, image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
        """(H, W) uint8 -> (N, 2, 3) frames and (N,) scores, N <= keypoints, strongest first.

        With ``upright``, "up" in the patch is "up" in the image, and each place appears once.
        """


POOL = 8  # keypoints detected per keypoint kept: enough to fill quiet cells, without every speck
PER_CELL = 2  # keypoints per cell if every cell has enough
PYRAMID_BYTES = 220  # per pixel, for detectors that hold all scales of an image at once
SEARCHED_BYTES, PART_BYTES = 8, 80_000_000  # per pixel and thread, for those that work in parts

_DETECTORS: dict[str, Detector] = {
    "dog": dog.detect,
    "hessian": hessian.detect,
    "hessian-affine": affine.detect,
    "mser": affine.detect_mser,
}


def names() -> list[str]:
    """The detectors that :func:`load` knows without a weights file."""
    return sorted(_DETECTORS)


def registered(name: object, source: Path, again: str) -> str:
    """A name that was read from a file: one of :func:`names`, never a path."""
    return check_registered(name, "detector", names(), source, again)


def load(detector: str | Detector, spread: bool = False) -> Detector:
    """The detector of that name: one of :func:`names`, or one with networks (PyTorch).

    ``affnet:AffNet.pth`` and ``affnet:AffNet.pth,OriNet.pth`` are Hessian keypoints with the shape
    (and orientation) that the networks in these published weights files give. With ``spread``, the
    keypoints are spread over the image. A Detector is returned unchanged, or spread.
    """
    if isinstance(detector, str):
        if detector.startswith(affine.AFFNET):
            detector = affine.load_affnet_detector(detector)
        elif detector in _DETECTORS:
            detector = _DETECTORS[detector]
        else:
            known = f"{', '.join(names())}, or {affine.AFFNET}AffNet.pth[,OriNet.pth]"
            raise InputError(f"no detector '{detector}': choose one of {known}")
    return SpreadDetector(detector) if spread else detector


def call(detector: Detector, image: Pixels, keypoints: int, upright: bool) -> Detected:
    """The keypoints of any detector: one of a user need not know the word upright."""
    return detector(image, keypoints, upright=True) if upright else detector(image, keypoints)


def find_both(
    detector: Detector, image: Pixels, keypoints: int
) -> tuple[Detected, Callable[..., Detected]]:
    """Upright frames, and a detector of the turned ones: it knows them if one search gave both."""
    if detector is dog.detect:
        upright, turned = dog.detect_both(image, keypoints)
        return upright, lambda *_: turned
    if isinstance(detector, SpreadDetector):
        upright, detect = find_both(detector.detector, image, POOL * keypoints)
        return _spread(upright, image, keypoints), SpreadDetector(detect)
    return detector(image, keypoints, upright=True), detector


def memory(detector: Detector, pixels: int) -> int:
    """Approximate bytes that a detector needs for an image, without the image itself."""
    if isinstance(detector, SpreadDetector):
        return memory(detector.detector, pixels)
    whole = PYRAMID_BYTES * pixels
    in_tiles = detector is dog.detect and pixels > dog.LARGE
    if in_tiles or detector in (hessian.detect, affine.detect):
        return min(whole, cv2.getNumThreads() * PART_BYTES + SEARCHED_BYTES * pixels)
    return whole


def weights(name: str) -> list[str]:
    """Digests of the weights files in a detector's name: other weights give other frames."""
    files = name.partition(":")[2].split(",")
    return [file_digest(file) for file in files if Path(file).is_file()]


def spread_over(
    xy: NDArray[np.floating[Any]],
    scores: NDArray[np.float32],
    size: tuple[float, float],
    count: int,
) -> Indices:
    """Ascending indices of ``count`` keypoints that are spread over an image.

    ``xy`` (N, 2) are positions in an image of ``size`` (width, height).

    Example:
        >>> xy = np.array([[1, 1], [2, 1], [3, 1], [90, 90]])
        >>> spread_over(xy, np.array([4, 3, 2, 1], np.float32), (100, 100), 3).tolist()
        [0, 1, 3]
    """
    if len(xy) <= count:
        return np.arange(len(xy))
    width, height = size
    side = np.sqrt(width * height * PER_CELL / count)
    column, row = (np.clip(xy, 0, size) // side).astype(np.intp).T
    cell = row * (int(width // side) + 1) + column
    order = np.lexsort((-scores, cell))
    first = np.flatnonzero(np.diff(cell[order], prepend=-1))
    rank = np.empty(len(xy), np.intp)
    rank[order] = np.arange(len(xy)) - np.repeat(first, np.diff(first, append=len(xy)))
    return np.sort(np.lexsort((-scores, rank))[:count])


@dataclass(frozen=True)
class SpreadDetector:
    """A detector whose keypoints are spread over the image."""

    detector: Detector

    def __call__(self, image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
        return _spread(call(self.detector, image, POOL * keypoints, upright), image, keypoints)


def _spread(found: Detected, image: Pixels, keypoints: int) -> Detected:
    frames, scores = found
    kept = spread_over(centres(frames), scores, image.shape[::-1], keypoints)
    return frames[kept], scores[kept]
