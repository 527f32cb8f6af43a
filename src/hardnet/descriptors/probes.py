"""A few fixed patches with all kinds of structure: what a descriptor makes of them tells it apart.

They are the same bytes on every machine: whole numbers, the four operations, and numpy's frozen
generator of random numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SIDE = 65
_COUNT = 32


def probe_patches() -> NDArray[np.uint8]:
    """(32, 65, 65) uint8: gradients, blobs, edges, checks, noise, and one without contrast."""
    rng = np.random.RandomState(0)
    y, x = np.mgrid[0:SIDE, 0:SIDE] - SIDE // 2
    patches: list[NDArray[np.float64]] = []
    for k in range(_COUNT - 1):
        dx, dy, cx, cy, width = rng.randint((-9, -9, -20, -20, 4), (10, 10, 21, 21, 20)).tolist()
        along = x * dx + y * dy
        shape = (
            128 + along / 5.0,
            40 + 180 / (1 + ((x - cx) ** 2 + (y - cy) ** 2) / width**2),
            np.where(along > 10 * cx, 200, 60),
            np.where(((x + cx) // width + (y + cy) // width) % 2 == 0, 90, 170),
        )[k % 4]
        patches.append(shape + rng.randint(-12 * (k % 3), 12 * (k % 3) + 1, shape.shape))
    patches.append(np.full((SIDE, SIDE), 100.0))
    return np.clip(np.round(np.stack(patches)), 0, 255).astype(np.uint8)
