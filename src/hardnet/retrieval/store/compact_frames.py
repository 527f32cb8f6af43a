"""A frame in six bytes, precise enough to verify a hypothesis by it.

A = s S R: a half-size s, a symmetric stretch S of area 1, a rotation R (the polar decomposition).

    uint16   upper bits             lower bits
    0        x, 12 bits             upper half of the size code
    1        y, 12 bits             lower half of the size code
    2        angle of R, 8 bits     ratio of the axes of S, 4 bits; direction of the long one, 4

Places and sizes are relative to the longer side of the image.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.frames import Frames, check_frames, rotation
from hardnet.retrieval.kernels import compiled

Packed = NDArray[np.uint16]

PLACES = 4096
SMALLEST, OCTAVES = -13.0, 14.0
"""Half-sizes: log2 of the smallest relative to the longer side, and how many octaves follow."""
SIZES = 256
ANGLES = 256
STRETCHES, LONGEST = 16, 8.0
"""Ratios of the axes: steps from 1 to the longest, equal in the logarithm."""
DIRECTIONS = 16


def pack(frames: Frames, image_size: tuple[int, int]) -> Packed:
    """(N, 3) frames (N, 2, 3) as six bytes each.

    Places outside the image, sizes and stretches beyond the range become the nearest that can be
    said. A mirrored frame (negative determinant) loses its mirroring: the y axis of its patch is
    turned round, so that it covers the same pixels and its x axis points the same way.
    """
    frames = check_frames(frames)
    longer = float(max(image_size))
    place = np.floor((frames[:, :, 2].astype(np.float64) + 0.5) * (PLACES / longer))
    place = np.clip(place, 0, PLACES - 1).astype(np.uint16)

    a, b, c, d = frames[:, :, :2].astype(np.float64).reshape(-1, 4).T
    mirrored = a * d < b * c
    b, d = np.where(mirrored, -b, b), np.where(mirrored, -d, d)
    # Half the sum and the difference of the two axes, each with its angle: A in closed form.
    total, spread = np.hypot(a + d, c - b), np.hypot(a - d, c + b)
    angle = np.arctan2(c - b, a + d)
    direction = (np.arctan2(c + b, a - d) + angle) / 2
    area = np.maximum(total**2 - spread**2, 0) / 4
    half = np.sqrt(area) / longer
    octaves = np.log2(np.maximum(half, 2.0 ** (SMALLEST - 1))) - SMALLEST
    size = np.clip(np.floor(octaves * (SIZES / OCTAVES)), 0, SIZES - 1).astype(np.uint16)

    flat = (total + spread) / np.maximum(total - spread, 1e-9 * (total + spread) + 1e-30)
    steps = np.log(np.maximum(flat, 1)) * ((STRETCHES - 1) / np.log(LONGEST))
    stretch = np.clip(np.rint(steps), 0, STRETCHES - 1).astype(np.uint16)
    turn = np.rint(angle * (ANGLES / (2 * np.pi))).astype(np.int64) % ANGLES
    axis = np.rint(direction * (DIRECTIONS / np.pi)).astype(np.int64) % DIRECTIONS
    axis[stretch == 0] = 0  # a circle has no direction
    shape = turn.astype(np.uint16) << 8 | stretch << 4 | axis.astype(np.uint16)
    return np.stack([place[:, 0] << 4 | size >> 4, place[:, 1] << 4 | size & 15, shape], 1)


def unpack(packed: Packed, image_size: ArrayLike) -> Frames:
    """(N, 2, 3) of packed frames (N, 3); the size of the image, or (N, 2) of each frame's image."""
    longer = np.asarray(image_size, np.float32).max(axis=-1)
    size = (packed[:, 0] & 15) << 4 | packed[:, 1] & 15
    half = half_sizes()[size] * longer
    out = np.empty((len(packed), 2, 3), np.float32)
    out[:, :, :2] = shapes()[packed[:, 2]] * half[:, None, None]
    step = np.broadcast_to(longer / np.float32(PLACES), len(packed))
    out[:, :, 2] = ((packed[:, :2] >> 4) + np.float32(0.5)) * step[:, None] - np.float32(0.5)
    return out


@compiled
def read_frames(
    bounds: Any, postings: Any, geometry: Any, longer: Any, half_sizes: Any, shapes: Any
) -> Any:
    """What ``unpack`` gives, of the rows ``postings`` (N,) of ``geometry`` (P, 3) and no others.

    Those of image i begin at ``bounds[i]``; ``longer`` (I,) float32 are the longer sides.
    """
    out = np.empty((len(postings), 2, 3), np.float32)
    for image in range(len(longer)):
        step = longer[image] / np.float32(PLACES)
        for at in range(bounds[image], bounds[image + 1]):
            packed = geometry[postings[at]]
            half = half_sizes[(packed[0] & 15) << 4 | packed[1] & 15] * longer[image]
            for row in range(2):
                for column in range(2):
                    out[at, row, column] = shapes[packed[2], row, column] * half
                place = np.float32(packed[row] >> 4) + np.float32(0.5)
                out[at, row, 2] = place * step - np.float32(0.5)
    return out


@cache
def half_sizes() -> NDArray[np.float32]:
    """(256,) the half-size of each code, relative to the longer side."""
    octaves = SMALLEST + (np.arange(SIZES) + 0.5) * (OCTAVES / SIZES)
    return _constant(np.exp2(octaves))


@cache
def shapes() -> NDArray[np.float32]:
    """(65536, 2, 2) the matrix S R of each third number; a megabyte."""
    turns = rotation(np.arange(ANGLES) * (2 * np.pi / ANGLES))
    axes = rotation(np.arange(DIRECTIONS) * (np.pi / DIRECTIONS))
    ratio = LONGEST ** (np.arange(STRETCHES) / (STRETCHES - 1))
    diagonal = np.zeros((STRETCHES, 1, 2, 2))
    diagonal[:, 0, 0, 0], diagonal[:, 0, 1, 1] = np.sqrt(ratio), 1 / np.sqrt(ratio)
    stretched = (axes @ diagonal @ axes.swapaxes(1, 2)).reshape(-1, 2, 2)
    return _constant((stretched[None] @ turns[:, None]).reshape(-1, 2, 2))


def _constant(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Cached arrays are shared, so nobody may change them."""
    table = values.astype(np.float32)
    table.flags.writeable = False
    return table
