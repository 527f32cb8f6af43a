"""Frames that a user brings, from an array, from OpenCV or from a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames, check_frames, empty_frames, from_opencv, read_oxford

OwnFrames = NDArray[Any] | Sequence[cv2.KeyPoint] | str | os.PathLike[str]
"""(N, 2, 3) frames, OpenCV's keypoints, or the path of an Oxford ellipse file."""


def own_frames(frames: OwnFrames) -> tuple[Frames, NDArray[np.float32]]:
    """Frames of what a user brings: all of them, in their order.

    Returns:
        (N, 2, 3) frames and (N,) scores: the response of keypoints, 0 for all else.

    Raises:
        HardnetError: not finite, not of this form, or a file that cannot be read.
    """
    if isinstance(frames, str | os.PathLike):
        checked = read_oxford(frames)
    elif not len(frames):
        checked = empty_frames()
    elif isinstance(frames[0], cv2.KeyPoint):
        response = np.array([keypoint.response for keypoint in frames], np.float32)
        return _checked(from_opencv(frames)), response  # type: ignore[arg-type]
    else:
        checked = _checked(frames)  # type: ignore[arg-type]
    return checked, np.zeros(len(checked), np.float32)


def _checked(frames: ArrayLike) -> Frames:
    try:
        return check_frames(frames)
    except ValueError as error:
        raise HardnetError(f"{error}: give (N, 2, 3) numbers, keypoints or a file") from error
