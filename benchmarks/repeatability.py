"""How many frames of two images of one scene repeat (Mikolajczyk et al. 2005)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench.ratio import MAX_OVERLAP_ERROR, RADIUS, one_to_one, overlap_errors
from hardnet.frames import Frames, centres, transform
from hardnet.patchsets.sequences import inside, project

MAX_DISTANCE = 3.0
"""Pixels between the centres, for the variant that compares places only."""
_CHUNK = 20_000  # pairs of ellipses at a time


@dataclass(frozen=True)
class Repeatability:
    """How many frames of two images correspond, by ellipse overlap and by the distance of centres.

    ``visible``: frames of each image whose centre the other image shows.
    """

    visible: tuple[int, int]
    by_overlap: int
    by_distance: int

    @property
    def overlap(self) -> float:
        """Share of the frames visible in both that repeat, by overlap; 0 without frames."""
        return self.by_overlap / max(min(self.visible), 1)

    @property
    def distance(self) -> float:
        """The same, by distance."""
        return self.by_distance / max(min(self.visible), 1)


def repeatability(
    frames_a: Frames,
    frames_b: Frames,
    homography: ArrayLike,
    size_a: tuple[int, int],
    size_b: tuple[int, int],
) -> Repeatability:
    """Do (N, 2, 3) and (M, 2, 3) frames of one scene repeat (Mikolajczyk et al. 2005)?

    Frames of both images count if their centre is visible in the other. A frame of image a, carried
    to image b by the true homography, corresponds to a frame of b if their ellipses overlap enough.
    Each frame corresponds to at most one other, the best overlaps first. Larger ellipses overlap
    more easily, so every pair is scaled, about its own centres, until the carried ellipse has the
    area of a circle of ``RADIUS``: the unit of the frames (their measurement window) does not
    matter.
    """
    forth = np.asarray(homography, np.float64)
    forth = forth * np.sign(np.linalg.det(forth))
    in_b = inside(project(forth, centres(frames_a)), size_b[::-1])
    in_a = inside(project(np.linalg.inv(forth), centres(frames_b)), size_a[::-1])
    carried, there = transform(frames_a[in_b], forth), frames_b[in_a]
    a, b = _candidates(carried, there)
    distance = np.linalg.norm(centres(carried)[a] - centres(there)[b], axis=1).astype(np.float64)
    error = np.ones(len(a))
    areas = [np.abs(np.linalg.det(f[:, :, :2].astype(np.float64))) for f in (carried[a], there[b])]
    # Others could not overlap enough even if one lay within the other.
    possible = np.flatnonzero(np.minimum(*areas) > (1 - MAX_OVERLAP_ERROR) * np.maximum(*areas))
    for start in range(0, len(possible), _CHUNK):
        part = possible[start : start + _CHUNK]
        error[part] = overlap_errors(carried[a[part]], there[b[part]])
    near, alike = distance < MAX_DISTANCE, error < MAX_OVERLAP_ERROR
    return Repeatability(
        (len(carried), len(there)),
        len(one_to_one(a[alike], b[alike], error[alike])[0]),
        len(one_to_one(a[near], b[near], distance[near])[0]),
    )


def _candidates(first: Frames, second: Frames) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    axes = np.linalg.svd(first[:, :, :2].astype(np.float64), compute_uv=False)
    # If a centre lies outside the other ellipse, half of its own ellipse does too.
    reach = np.maximum(RADIUS * np.sqrt(axes[:, 0] / axes[:, 1]), MAX_DISTANCE)
    a, b = centres(first).astype(np.float64), centres(second).astype(np.float64)
    i, j = np.nonzero(np.abs(a[:, None] - b[None]).max(2, initial=0) <= reach[:, None])
    return i, j
