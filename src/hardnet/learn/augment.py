"""Flip / rotate augmentation ("+" in the paper's tables), shared by the two patches of a pair."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def flip_rotate(
    anchors: NDArray[np.uint8], positives: NDArray[np.uint8], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Transpose with probability 1/2, then mirror left-right with probability 1/2.

    These are four of the eight symmetries of the square, as in the published training: identity,
    transpose, mirror, and a quarter turn.

    Args:
        anchors: (n, S, S) patches.
        positives: (n, S, S) patches of the same points.
        rng: draws one decision per pair.
    """
    transpose = rng.random(len(anchors)) < 0.5
    mirror = rng.random(len(anchors)) < 0.5
    out = []
    for patches in (anchors, positives):
        turned = np.where(transpose[:, None, None], patches.swapaxes(1, 2), patches)
        out.append(np.where(mirror[:, None, None], turned[:, :, ::-1], turned))
    return out[0], out[1]
