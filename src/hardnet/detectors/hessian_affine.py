"""Hessian keypoints with affine shape: the frames for strong changes of viewpoint."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.affine_shape import adapt
from hardnet.detectors.hessian import find_places
from hardnet.detectors.orientation import orient
from hardnet.frames import Frames

_RESERVE = 1.08  # places tried per wanted frame: a few in a hundred do not settle


def detect(
    image: NDArray[np.uint8], keypoints: int = 2048, upright: bool = False
) -> tuple[Frames, NDArray[np.float32]]:
    """Find the strongest Hessian keypoints whose affine shape settles.

    Args:
        image: (H, W) uint8.
        keypoints: the budget; the strongest responses are kept.
        upright: the rotation-free form of the shape instead of the dominant gradient.

    Returns:
        (N, 2, 3) frames and (N,) scores, strongest first; N <= keypoints.
    """
    places = find_places(image)
    round_frames = places.frames()
    frames, scores = [round_frames[:0]], [places.scores[:0]]
    tried = found = 0
    # The places beyond the budget are only looked at if too many of the first do not settle.
    while found < keypoints and tried < len(round_frames):
        stop = tried + int((keypoints - found) * _RESERVE) + 8
        shaped, settled = adapt(image, round_frames[tried:stop])
        frames.append(shaped[settled])
        scores.append(places.scores[tried:stop][settled])
        tried, found = stop, found + int(settled.sum())
    chosen = np.concatenate(frames)[:keypoints]
    return chosen if upright else orient(image, chosen), np.concatenate(scores)[:keypoints]
