"""Frames of an upright photo in the pixels of its file.

Our images are turned by their EXIF entry; COLMAP reads the pixels as they are stored. Keypoints go
to COLMAP in its pixels, so that its colours, undistorted images and dense models come out right.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames

UPRIGHT = 1

# EXIF orientation -> how stored (x, y) follow from upright (u, v): whether to exchange the two
# axes, then which of x and y run backwards.
_TURNS = {
    1: (False, False, False),
    2: (False, True, False),
    3: (False, True, True),
    4: (False, False, True),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


def stored_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(width, height) of the file's pixels, from those of the upright photo."""
    return (size[1], size[0]) if _TURNS[orientation][0] else size


def to_stored(size: tuple[int, int], orientation: int) -> NDArray[np.float64]:
    """(3, 3) map from pixels of the upright photo to pixels of the file.

    Args:
        size: (width, height) of the upright photo.
        orientation: the EXIF entry, 1 to 8.
    """
    exchange, back_x, back_y = _TURNS[orientation]
    width, height = stored_size(size, orientation)
    turn = np.array([[0.0, 1.0], [1.0, 0.0]]) if exchange else np.eye(2)
    matrix = np.eye(3)
    matrix[:2, :2] = np.diag([-1.0 if back_x else 1.0, -1.0 if back_y else 1.0]) @ turn
    matrix[:2, 2] = (width - 1 if back_x else 0, height - 1 if back_y else 0)
    return matrix


def turn_frames(frames: Frames, size: tuple[int, int], orientation: int) -> Frames:
    """(N, 2, 3) frames of the upright photo in pixels of the file; see :func:`to_stored`."""
    if orientation == UPRIGHT:
        return frames
    matrix = to_stored(size, orientation)
    turned = matrix[:2, :2] @ frames.astype(np.float64)
    turned[:, :, 2] += matrix[:2, 2]
    return turned.astype(np.float32)
