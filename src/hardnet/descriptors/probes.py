"""A few fixed patches with all kinds of structure: what a descriptor makes of them tells it apart.

They are the same bytes on every machine: whole numbers, the four operations, and numpy's frozen
generator of random numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDES = (32, 64, 65)
"""Patches as the networks read them and as the Brown and HPatches sets have them: resizing is a
part of a descriptor, too."""
_COUNT = 32


def probe_patches(side: int = SIDES[-1]) -> NDArray[np.uint8]:
    """(32, S, S) uint8: gradients, blobs, edges, checks, noise, from full contrast to none."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[0:side, 0:side] - side // 2
    patches: list[NDArray[np.float64]] = []
    for k in range(_COUNT - 3):
        dx, dy, cx, cy, width = rng.randint((-9, -9, -20, -20, 4), (10, 10, 21, 21, 20)).tolist()
        along = x * dx + y * dy
        shape = (
            128 + along / 5.0,
            40 + 180 / (1 + ((x - cx) ** 2 + (y - cy) ** 2) / width**2),
            np.where(along > 10 * cx, 200, 60),
            np.where(((x + cx) // width + (y + cy) // width) % 2 == 0, 90, 170),
        )[k % 4]
        patches.append(shape + rng.randint(-12 * (k % 3), 12 * (k % 3) + 1, shape.shape))
    patches.append(np.where(3 * x + y > 5, 255.0, 0.0))
    patches.append(np.where((x // 8 + y // 8) % 2 == 0, 255.0, 0.0))
    patches.append(np.full((side, side), 100.0))
    return np.clip(np.round(np.stack(patches)), 0, 255).astype(np.uint8)
