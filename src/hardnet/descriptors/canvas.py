"""Many patches on one image: how descriptors of keypoints in an image come to describe patches.

OpenCV describes keypoints, not patches. Patches are laid out side by side, each with a margin in
which its border pixels are repeated, so that one call describes many and none sees another.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

BATCH = 256
"""Patches to put on one image: 16 x 16 of them."""

_COLUMNS = 16


def lay_out(
    patches: NDArray[np.uint8], margin: int
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """One image with all (n, S, S) patches on it.

    Args:
        patches: (n, S, S), n >= 1.
        margin: pixels on each side of each patch.

    Returns:
        The image, and (n, 2) the centre of each patch on it as (x, y); the centre of a pixel has
        whole coordinates, so the centre of a patch of even size ends in .5.
    """
    n, columns = len(patches), min(_COLUMNS, len(patches))
    rows = -(-n // columns)
    tile = patches.shape[1] + 2 * margin
    tiles = np.zeros((rows * columns, tile, tile), np.uint8)
    tiles[:n] = np.pad(patches, ((0, 0), (margin, margin), (margin, margin)), mode="edge")
    image = tiles.reshape(rows, columns, tile, tile).swapaxes(1, 2)
    at = np.arange(n)
    centres = np.stack([at % columns, at // columns], 1) * tile + (tile - 1) / 2
    return np.ascontiguousarray(image).reshape(rows * tile, columns * tile), centres
