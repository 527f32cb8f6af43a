"""Keypoints all over the image: a detector that also looks at quiet regions.

The strongest keypoints of a photo crowd where its contrast is, and a region without one of them
cannot be found again. Here the image is divided into cells, the strongest keypoint of every cell
comes before the second of any, and so on until the budget is spent. A quality floor is the
detector's own threshold: a region without any keypoint gets none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import centres

if TYPE_CHECKING:
    from hardnet.detectors import BothWays, Detected, Detector

POOL = 8
"""Keypoints asked for per keypoint that is kept: enough for quiet cells, not every speck."""

PER_CELL = 2
"""Keypoints per cell, if all cells had enough of them."""


def spread(
    xy: NDArray[np.floating[Any]],
    scores: NDArray[np.float32],
    size: tuple[float, float],
    count: int,
) -> NDArray[np.intp]:
    """Which ``count`` keypoints to keep so that they lie all over an image.

    Args:
        xy: (N, 2) positions in an image of ``size`` (width, height).
        scores: (N,); of equal ones the first comes first.
        size: of the image.
        count: how many to keep.

    Returns:
        (min(N, count),) indices in ascending order.

    Example:
        >>> xy = np.array([[1, 1], [2, 1], [3, 1], [90, 90]])
        >>> spread(xy, np.array([4, 3, 2, 1], np.float32), (100, 100), 3).tolist()
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
    """A detector whose keypoints lie all over the image; see ``detectors.Detector``."""

    detector: Detector

    def __call__(
        self, image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
    ) -> Detected:
        """See :class:`hardnet.detectors.Detector`."""
        options = {"upright": True} if upright else {}  # detectors of users need not know the word
        return _chosen(self.detector(image, POOL * keypoints, **options), image, keypoints)


def spread_both(both: BothWays) -> BothWays:
    """The same for a function that finds upright and turned frames together."""

    def find(image: NDArray[np.uint8], keypoints: int) -> tuple[Detected, Detected]:
        upright, turned = both(image, POOL * keypoints)
        return _chosen(upright, image, keypoints), _chosen(turned, image, keypoints)

    return find


def _chosen(found: Detected, image: NDArray[np.uint8], keypoints: int) -> Detected:
    frames, scores = found
    kept = spread(centres(frames), scores, image.shape[::-1], keypoints)
    return frames[kept], scores[kept]
