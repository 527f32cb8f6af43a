"""Which descriptor made these values? Descriptors that differ have different digests.

A digest joins what the descriptor is (its ``weights``: the content of its weights or source files,
or the version of the library that computes it), the version of this package, and what it does to a
few fixed patches of each usual size, which notices what the others cannot: a function that reads
its weights from another file, another version of a library below.

Float values differ in the last digits with threads and processors, and of thousands some would
always cross a step. So only a few sums are rounded: a change of all values by 0.1% shows in these.
"""

from __future__ import annotations

import hashlib
import json
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors.base import Descriptor

SIDES = (32, 64, 65)
"""Patches as the networks read them and as the Brown and HPatches sets have them: resizing is a
part of a descriptor, too."""

_COUNT = 32
_SUMS = 8
_STEP = 1e-3  # of the root mean square of a value


def descriptor_digest(descriptor: Descriptor) -> str:
    """64 hexadecimal digits; neither the name of the descriptor nor of its file matters."""
    kind = type(descriptor)
    content = {
        "weights": getattr(descriptor, "weights", f"{kind.__module__}.{kind.__qualname__}"),
        "version": metadata.version("hardnet"),
        "behaviour": [behaviour(descriptor(probe_patches(side))) for side in SIDES],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def behaviour(rows: NDArray[Any]) -> list[int | str]:
    """What (N, D) descriptors look like, the same for all roundings: shape, type, a few numbers."""
    head: list[int | str] = [*rows.shape, str(rows.dtype)]
    if rows.dtype == np.uint8:
        return [*head, hashlib.sha256(rows.tobytes()).hexdigest()]
    values = rows.astype(np.float64).ravel()
    signs = np.random.RandomState(1).randint(0, 2, (_SUMS, len(values))) * 2 - 1
    size = float(np.sqrt(np.mean(values**2))) or 1.0
    # Its logarithm in the same steps, so that scaling all vectors shows as well.
    scale = round(np.log(size) / _STEP)
    sums = (signs @ values) / (np.sqrt(len(values)) * size)
    return [*head, scale, *np.round(sums / _STEP).astype(int).tolist()]


def probe_patches(side: int = SIDES[-1]) -> NDArray[np.uint8]:
    """(32, S, S) uint8: gradients, blobs, edges, checks, noise, from full contrast to none.

    They are the same bytes on every machine: whole numbers, the four operations, and numpy's frozen
    generator of random numbers.
    """
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
