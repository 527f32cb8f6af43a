"""Use a verified geometry: find more matches along it, and check that frames agree with it.

A false match may lie at the right place by chance, or on the right line, which is easier; then its
size, shape and orientation are arbitrary. The check of frames is that of MODS: the mean error of
three points of the frame (the centre, and the ends of its two axes at three sigma) has a bound.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import WINDOW_SIGMAS, Frames
from hardnet.matching.geometry import Geometry, Grid, Pairs, Points, project, transfer_error
from hardnet.matching.neighbours import CHUNK, Rows, pair_distances

GUIDED_RATIO = 0.95
"""Ratio test among the few that the geometry leaves; looser than among all of an image."""

AXIS_SIGMAS = 3.0  # how long the axes are, in sigmas of the keypoint
_HOMOGRAPHY, _EPIPOLAR = 12.0, 2.0  # thresholds that the mean error of frames may be
_CHUNK = CHUNK // 4  # pairs whose agreement with the geometry is held at once


def guided_matches(
    a: Rows,
    b: Rows,
    xy_a: NDArray[np.floating],
    xy_b: NDArray[np.floating],
    geometry: Geometry,
    threshold: float,
    ratio: float = GUIDED_RATIO,
    limit: float = np.inf,
    chunk: int = _CHUNK,
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Mutual nearest neighbours among the pairs that are nearer than ``threshold`` to a geometry.

    The ratio test compares with the nearest candidate at a different place, farther than twice the
    threshold from the nearest one: with a homography there is none, along a line there are many. No
    match has a larger distance of its descriptors than ``limit``.

    Returns (K, 2) index pairs and (K,) distances of their descriptors, nearest first.
    """
    left, right = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)
    near = [
        (i, j, pair_distances(a[i], b[j]))
        for i, j in _candidates(left, right, geometry, threshold, chunk)
    ]
    if not near:
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    i, j, distance = (np.concatenate(parts) for parts in zip(*near, strict=True))
    first = _nearest(i, distance, j)
    chosen, second = np.zeros(len(a), np.intp), np.full(len(a), np.inf, np.float32)
    chosen[i[first]] = j[first]
    far = ((right[j] - right[chosen[i]]) ** 2).sum(1) > (2 * threshold) ** 2
    np.minimum.at(second, i[far], distance[far])
    mutual = np.intersect1d(first, _nearest(j, distance, i))
    keep = mutual[(distance[mutual] < ratio * second[i[mutual]]) & (distance[mutual] <= limit)]
    keep = keep[np.lexsort((i[keep], distance[keep]))]
    return np.stack([i[keep], j[keep]], 1), distance[keep]


def _nearest(
    one: NDArray[np.intp], distance: NDArray[np.float32], other: NDArray[np.intp]
) -> NDArray[np.intp]:
    """Of each value of ``one``, the pair with the least distance, then the least ``other``."""
    order = np.lexsort((other, distance, one))
    return order[np.flatnonzero(np.diff(one[order], prepend=-1))]


def _candidates(
    a: Points, b: Points, geometry: Geometry, threshold: float, chunk: int
) -> Iterator[Pairs]:
    if geometry.model is None:
        return
    height = max(chunk // max(len(b), 1), 1)
    grid, fundamental = Grid(b, threshold), geometry.fundamental
    for start in range(0, len(a), height):
        part = a[start : start + height]
        if fundamental is None:
            i, j = grid.near(project(geometry.model, part))
        else:  # nearer to their epipolar lines, by the Sampson error
            lines_b = part @ fundamental[:, :2].T + fundamental[:, 2]
            lines_a = b @ fundamental[:2] + fundamental[2]
            algebraic = lines_b[:, :2] @ b.T + lines_b[:, 2:]
            gradient = (lines_b[:, :2] ** 2).sum(1)[:, None] + (lines_a[:, :2] ** 2).sum(1)
            i, j = np.nonzero(algebraic**2 < threshold**2 * gradient)
        if len(i):
            yield i + start, j


def consistent(
    frames_a: Frames, frames_b: Frames, geometry: Geometry, threshold: float
) -> NDArray[np.bool_]:
    """(M,) which matches have frames that the geometry carries onto each other.

    The error of a homography is the larger of both directions, of an epipolar geometry Sampson's;
    it is for the pixels of the frames, as the inlier ``threshold`` is. Without a geometry all are
    consistent.
    """
    if geometry.model is None:
        return np.ones(len(frames_a), bool)
    flat = geometry.kind == "homography"
    length = 2 * AXIS_SIGMAS / WINDOW_SIGMAS
    errors = []
    for point in ((0, 0, 1), (length, 0, 1), (0, length, 1)):
        a, b = (np.asarray(f, np.float64) @ point for f in (frames_a, frames_b))
        errors.append(geometry.errors(a, b))
        if flat:
            inverse = np.asarray(np.linalg.inv(geometry.model), np.float64)
            errors[-1] = np.maximum(errors[-1], transfer_error(inverse, b, a))
    most = threshold * (_HOMOGRAPHY if flat else _EPIPOLAR)
    return np.asarray(np.mean(errors, axis=0) <= most)
