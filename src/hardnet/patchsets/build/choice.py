"""Which frames and patches are worth keeping: whole, apart from each other, not empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames, centres
from hardnet.images import Pixels
from hardnet.patchsets.patchset import Floats, Ints

T = TypeVar("T", bound="Rows")

MIN_STD = 10.0  # grey levels of contrast (standard deviation) below which a patch teaches nothing
LEVEL = 25.0  # degrees by which two upright photos may be rotated relative to each other
MAX_OVERLAP = 0.5
"""Frames that overlap more than this (intersection over union) count as one, as in HPatches."""


@dataclass(frozen=True)
class Rows:
    """A table: the fields of a subclass are arrays of equal length, its columns."""

    def __len__(self) -> int:
        return len(next(iter(vars(self).values())))

    def __getitem__(self, rows: NDArray[Any]) -> Self:
        return replace(self, **{name: column[rows] for name, column in vars(self).items()})

    @staticmethod
    def join(parts: Sequence[T]) -> T:
        columns = {name: [getattr(part, name) for part in parts] for name in vars(parts[0])}
        return replace(parts[0], **{name: np.concatenate(c) for name, c in columns.items()})


def half_sizes(frames: Frames) -> Floats:
    return np.asarray(np.sqrt(np.abs(np.linalg.det(frames[:, :, :2].astype(np.float64)))))


def turns(maps: Floats) -> Floats:
    """(N,) the rotation of affine maps (N, 2, 2 or 3), in radians."""
    return np.arctan2(maps[:, 1, 0] - maps[:, 0, 1], maps[:, 0, 0] + maps[:, 1, 1])


def inside(frames: Frames, width: int | Ints, height: int | Ints) -> NDArray[np.bool_]:
    """(N,) whether all four corners of a frame lie in the image; sizes may differ per frame."""
    reach = np.abs(frames[:, :, :2]).sum(2)
    centre = centres(frames)
    low, high = centre - reach, centre + reach
    return np.asarray((low >= 0).all(1) & (high <= np.stack([width, height], -1) - 1).all(1))


def informative(patches: Pixels, min_std: float, min_detail: float) -> NDArray[np.bool_]:
    """(N,) whether an (N, 64, 64) patch has contrast and detail, and is not black or white.

    ``min_detail`` is the contrast within 8 x 8 blocks, which a ramp or an out-of-focus blob lacks.
    """
    blocks = patches.reshape(len(patches), 8, 8, 8, 8).astype(np.float32)
    detail = np.sqrt(blocks.var((2, 4)).mean((1, 2)))
    saturated = ((patches <= 1) | (patches >= 254)).mean((1, 2))
    contrast = blocks.std((1, 2, 3, 4))
    return np.asarray((contrast >= min_std) & (detail >= min_detail) & (saturated < 0.1))


def apart(frames: Frames, share: float = 0.25) -> NDArray[np.bool_]:
    """(N,) whether a frame differs clearly from all earlier (stronger) ones."""
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2])))
    centre, axis = centres(frames), frames[:, :, 0] / np.maximum(half, 1e-6)[:, None]
    keep = np.zeros(len(frames), bool)
    kept = np.zeros(0, np.int64)
    for i in range(len(frames)):
        near = kept[np.abs(centre[kept] - centre[i]).max(1) < share * half[i]]
        same_size = np.abs(np.log2(half[near] / half[i])) < 0.5
        same_turn = (axis[near] * axis[i]).sum(1) > np.cos(np.deg2rad(40))
        if not (same_size & same_turn).any():
            keep[i] = True
            kept = np.append(kept, i)
    return keep


def disc_overlap(distance: Floats, radius_a: Floats, radius_b: Floats) -> Floats:
    """Intersection over union of pairs of discs, from their distances and radii of equal shape."""
    small, large = np.minimum(radius_a, radius_b), np.maximum(radius_a, radius_b)
    # Outside this range the discs are nested or apart and the lens formula has no angle.
    d = np.clip(distance, np.maximum(large - small, 1e-12), small + large)
    to_small = np.clip((d**2 + small**2 - large**2) / (2 * d * small), -1, 1)
    to_large = np.clip((d**2 + large**2 - small**2) / (2 * d * large), -1, 1)
    kite = (small + large - d) * (d + small - large) * (d - small + large) * (d + small + large)
    common = (
        small**2 * np.arccos(to_small)
        + large**2 * np.arccos(to_large)
        - 0.5 * np.sqrt(np.maximum(kite, 0))
    )
    return np.asarray(common / (np.pi * (small**2 + large**2) - common))


def suppress_overlaps(
    frames: Frames, limit: int, max_overlap: float = MAX_OVERLAP
) -> NDArray[np.intp]:
    """(K,) ascending indices of frames, best first, that overlap no earlier one too much.

    Overlap is that of discs with the area of the ellipse inscribed in each window.
    """
    centre = frames[:, :, 2].astype(np.float64)
    radius = half_sizes(frames)
    kept = np.empty(min(limit, len(frames)), np.intp)
    count = 0
    for i in range(len(frames)):
        if count == limit:
            break
        others = kept[:count]
        distance = np.linalg.norm(centre[others] - centre[i], axis=1)
        if (disc_overlap(distance, radius[others], radius[i]) <= max_overlap).all():
            kept[count] = i
            count += 1
    return kept[:count]
