"""Tracks of 3D points: which observations make good patches, and the frame of each.

There are two ways to a frame. COLMAP's database has the keypoints themselves, each with its own
scale and orientation. Without it, the frame of one observation, the reference, is found by
detecting keypoints again, and the cameras carry it into the other photos.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.frames import WINDOW_SIGMAS, Frames, centres, from_colmap, points_from_colmap, rotation
from hardnet.patchsets.build.choice import suppress_overlaps
from hardnet.patchsets.build.colmap_model import (
    Floats,
    Ints,
    Model,
    Tracks,
    View,
    open_database,
    read_keypoints,
    read_photo,
)
from hardnet.threads import map_processes

SAME_KEYPOINT = 1.5
"""Pixels between an observation and the keypoint detected again in its place."""
SAME_POSITION = 0.01
"""Pixels by which the positions in a database and in its model may differ: text files round."""
DETECTED = 100_000
"""Keypoints looked for in a photo: practically all."""


def references(model: Model, tracks: Tracks) -> Ints:
    """(M,) for every observation, the row of its point's reference observation.

    The reference is the observation in which the point is seen at the median size (focal length
    over depth): carrying its frame into the others changes the scale least.
    """
    focal = np.array([view.camera.mean_focal_length() for view in model.views])
    size = focal[tracks.view] / tracks.depth
    order = np.lexsort((size, tracks.point))
    _, start, group, count = np.unique(
        tracks.point, return_index=True, return_inverse=True, return_counts=True
    )
    middle = order[start + (count - 1) // 2]
    return np.asarray(middle[group], np.int64)


def database_frames(model: Model, tracks: Tracks, window: float) -> Frames | None:
    """(M, 2, 3) frames of COLMAP's keypoints; None if its database has positions only.

    Raises:
        HardnetError: the database is not that of the model.
    """
    path = model.scene.database
    assert path is not None
    frames = np.zeros((len(tracks), 2, 3), np.float32)
    with open_database(path) as database:
        for number, view in enumerate(model.views):
            keypoints = read_keypoints(database, view.name)
            if keypoints is None:
                raise HardnetError(f"{path} has no image called {view.name}: not this model's")
            same = keypoints.shape[:1] == view.keypoints.shape[:1] and np.allclose(
                points_from_colmap(keypoints[:, :2]), view.keypoints, atol=SAME_POSITION, rtol=1e-5
            )
            if not same:
                raise HardnetError(
                    f"{path}: other keypoints than {model.scene.model} in {view.name}"
                )
            if keypoints.shape[1] == 2:
                return None
            rows = tracks.view == number
            frames[rows] = from_colmap(keypoints[tracks.keypoint[rows]], window)
    return frames


def carried_frames(
    model: Model,
    tracks: Tracks,
    reference: Ints,
    window: float,
    affine: bool,
    workers: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Frames:
    """(M, 2, 3) frames by geometry; NaN where the reference finds no keypoint in its place.

    The surface is taken to face the reference camera: without its normal nothing better is known.
    The frame's centre is the observation itself, which is more exact than the projected point.
    ``affine`` keeps the affine map between the views; else only its scale and rotation count.
    """
    frames = np.full((len(tracks), 2, 3), np.nan)
    roots = np.unique(reference)
    jobs = []
    groups = by_value(tracks.view[roots], roots)
    for rows in groups:
        view = model.views[tracks.view[rows[0]]]
        jobs.append((view.path, view.size, tracks.xy[rows]))
    found = map_processes(partial(_detect_again, window=window), jobs, workers)
    for done, (rows, shapes) in enumerate(zip(groups, found, strict=True)):
        frames[rows, :, :2], frames[rows, :, 2] = shapes, tracks.xy[rows]
        progress(done + 1, len(groups))
    carried = np.full_like(frames, np.nan)
    known = np.flatnonzero(np.isfinite(frames[reference, 0, 0]))
    pair = tracks.view[reference[known]] * len(model.views) + tracks.view[known]
    for rows in by_value(pair, known):
        start = reference[rows]
        source, target = model.views[tracks.view[start[0]]], model.views[tracks.view[rows[0]]]
        shape = _carry(source, target, frames[start], tracks.depth[start])
        if not affine:
            shape = similar(shape)
        own = rows == start  # the reference stays what the detector found
        shape[own] = frames[rows[own], :, :2]
        carried[rows, :, :2], carried[rows, :, 2] = shape, tracks.xy[rows]
    return carried.astype(np.float32)


def by_value(values: Ints, rows: Ints) -> list[Ints]:
    """``rows`` in groups of equal (N,) ``values``, by ascending value."""
    order = np.argsort(values, kind="stable")
    borders = np.flatnonzero(np.diff(values[order])) + 1
    return [group for group in np.split(rows[order], borders) if len(group)]


def similar(shapes: Floats) -> Floats:
    """(N, 2, 2) the scaled rotation nearest to each matrix in turn, with its area."""
    size = np.sqrt(np.abs(np.linalg.det(shapes)))
    turn = np.arctan2(shapes[:, 1, 0] - shapes[:, 0, 1], shapes[:, 0, 0] + shapes[:, 1, 1])
    return np.asarray(size[:, None, None] * rotation(turn))


def _carry(source: View, target: View, frames: Floats, depth: Floats) -> Floats:
    """(N, 2, 2) shapes of source frames in the target, for a surface that faces the source."""
    shapes = np.empty((len(frames), 2, 2))
    for axis in (0, 1):
        ends = [
            target.project(source.lift(frames[:, :, 2] + sign * frames[:, :, axis], depth))
            for sign in (1, -1)
        ]
        shapes[:, :, axis] = (ends[0] - ends[1]) / 2
    return shapes


def _detect_again(job: tuple[Path, tuple[int, int], Floats], window: float) -> Floats:
    """(N, 2, 2) shapes of the keypoints at (N, 2) places of a photo; NaN where there is none."""
    path, size, xy = job
    detected, _ = dog.detect(read_photo(path, size), DETECTED)
    shapes = np.full((len(xy), 2, 2), np.nan)
    if not len(detected):
        return shapes
    index, distance = nearest(xy, centres(detected))
    good = distance <= SAME_KEYPOINT
    shapes[good] = detected[index[good], :, :2] * (window / WINDOW_SIGMAS)
    return shapes


def nearest(xy: Floats, others: NDArray[np.float32]) -> tuple[NDArray[np.intp], Floats]:
    """Index of and distance to the nearest of ``others``; of equals the first, the strongest."""
    index, distance = np.empty(len(xy), np.intp), np.empty(len(xy))
    order = np.argsort(others[:, 0], kind="stable")
    # Only what lies in a narrow band can be near: a photo has tens of thousands of keypoints.
    low = np.searchsorted(others[order, 0], xy[:, 0] - SAME_KEYPOINT)
    high = np.searchsorted(others[order, 0], xy[:, 0] + SAME_KEYPOINT, "right")
    for i in range(len(xy)):
        band = np.sort(order[low[i] : high[i]])
        away = np.linalg.norm(others[band] - xy[i], axis=1)
        k = int(away.argmin()) if len(band) else -1
        index[i], distance[i] = (band[k], away[k]) if k >= 0 else (-1, np.inf)
    return index, distance


def long_enough(point: Ints, length: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point has at least ``length`` observations."""
    _, group, count = np.unique(point, return_inverse=True, return_counts=True)
    return np.asarray(count[group] >= length)


def drop_twins(tracks: Tracks, frames: Frames) -> NDArray[np.bool_]:
    """(M,) whether the observation's point stays when one of each two on the same spot goes.

    COLMAP gives a keypoint with two orientations two points. Trained or tested as different, they
    would be a question without an answer. A point goes if in any photo its window overlaps that of
    a point with a longer track.
    """
    _, group, count = np.unique(tracks.point, return_inverse=True, return_counts=True)
    length = count[group]
    gone = np.zeros(len(count), bool)
    for rows in by_value(tracks.view, np.arange(len(tracks))):
        alive = rows[~gone[group[rows]]]
        best = alive[np.lexsort((tracks.point[alive], -length[alive]))]
        kept = suppress_overlaps(frames[best], len(best))
        gone[group[np.delete(best, kept)]] = True
    return np.asarray(~gone[group])


def choose_points(tracks: Tracks, limit: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point is one of the ``limit`` with the longest tracks."""
    _, group, count = np.unique(tracks.point, return_inverse=True, return_counts=True)
    chosen = np.ones(len(count), bool)
    if limit:
        chosen[np.argsort(-count, kind="stable")[limit:]] = False
    return np.asarray(chosen[group])


def spread_out(model: Model, tracks: Tracks, limit: int) -> NDArray[np.bool_]:
    """(M,) at most ``limit`` observations of a point, seen from the most different directions."""
    keep = np.ones(len(tracks), bool)
    places = np.array([view.to_world(np.zeros((1, 3)))[0] for view in model.views])
    for rows in by_value(tracks.point, np.arange(len(tracks))):
        if len(rows) > limit:
            towards = places[tracks.view[rows]] - model.xyz[tracks.point[rows[0]]]
            keep[rows] = False
            keep[rows[farthest(towards, limit)]] = True
    return keep


def farthest(directions: Floats, limit: int) -> NDArray[np.intp]:
    """Indices of ``limit`` of the (N, 3) directions, each the farthest from all before it.

    The first is the one nearest to the mean, so that the choice does not begin with a freak.
    """
    unit = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    chosen = [int((unit @ unit.mean(0)).argmax())]
    closeness = unit @ unit[chosen[0]]
    closeness[chosen[0]] = np.inf
    while len(chosen) < limit:
        chosen.append(int(closeness.argmin()))
        closeness = np.maximum(closeness, unit @ unit[chosen[-1]])
        closeness[chosen[-1]] = np.inf
    return np.array(chosen, np.intp)
