"""Tracks of 3D points: which observations make good patches, and the frame of each.

A frame comes from one of three sources. COLMAP's database has the keypoints themselves, each with
a scale and an orientation. Without a database, the frame of one observation, the reference, is
found by detecting keypoints again, and the cameras carry it into the other photos. Or keypoints are
detected in each photo independently. Around a keypoint of one photo, the 3D points that a second
photo also sees determine where the keypoint is there and what its frame looks like; a keypoint
detected in that place shows the same spot, whether or not SIFT matched it. Such pairs are those
that a descriptor meets in practice, hard ones included.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog, orientation
from hardnet.errors import HardnetError, Steps, silent
from hardnet.frames import (
    WINDOW_SIGMAS,
    Frames,
    centres,
    empty_frames,
    from_colmap,
    points_from_colmap,
    rotation,
)
from hardnet.patchsets.build.choice import (
    LEVEL,
    apart,
    half_sizes,
    inside,
    suppress_overlaps,
    turns,
)
from hardnet.patchsets.build.colmap_model import (
    Model,
    Observations,
    Tracks,
    View,
    open_database,
    read_keypoints,
    read_photo,
)
from hardnet.patchsets.build.photos import KINDS, Tolerances, detect, pair_frames
from hardnet.patchsets.build.views import forget_affine_shape, jitter
from hardnet.patchsets.patchset import Floats, Ints
from hardnet.threads import map_processes

SAME_KEYPOINT = 1.5  # pixels between an observation and the keypoint detected again in its place
SAME_POSITION = 0.01
"""Pixels by which the positions in a database and in its model may differ: text files round."""
DETECTED = 100_000  # keypoints per photo: practically all


def references(model: Model, tracks: Tracks) -> Ints:
    """(M,) for every observation, the row of its point's reference observation.

    It sees the point at the median size: carrying its frame into the others scales it least.
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
    """(M, 2, 3) frames of COLMAP's keypoints; None if it has no database, or one of positions."""
    path = model.scene.database
    if path is None:
        return None
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
                other = f"other keypoints than {model.scene.model} in {view.name}"
                raise HardnetError(f"{path}: {other}")
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
    progress: Steps = silent,
) -> Frames:
    """(M, 2, 3) frames by geometry; NaN if no keypoint is detected at the reference.

    The surface is assumed to face the reference camera. The centre of a frame is the observation
    itself, which is more exact than the projected point.
    """
    frames = np.full((len(tracks), 2, 3), np.nan)
    roots = np.unique(reference)
    groups = by_value(tracks.view[roots], roots)
    views = [model.views[tracks.view[rows[0]]] for rows in groups]
    jobs = [(v.path, v.size, tracks.xy[rows]) for v, rows in zip(views, groups, strict=True)]
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
        home = rows == start  # the reference keeps its detected frame
        shape[home] = frames[rows[home], :, :2]
        carried[rows, :, :2], carried[rows, :, 2] = shape, tracks.xy[rows]
    return carried.astype(np.float32)


def by_value(values: Ints, rows: Ints) -> list[Ints]:
    """``rows`` in groups of equal (N,) ``values``, by ascending value."""
    order = np.argsort(values, kind="stable")
    borders = np.flatnonzero(np.diff(values[order])) + 1
    return [group for group in np.split(rows[order], borders) if len(group)]


def similar(shapes: Floats) -> Floats:
    """(N, 2, 2) the scaled rotation nearest in angle to each matrix, with the same area."""
    size = np.sqrt(np.abs(np.linalg.det(shapes)))
    return np.asarray(size[:, None, None] * rotation(turns(shapes)))


def _carry(source: View, target: View, frames: Floats, depth: Floats) -> Floats:
    def there(places: Floats) -> Floats:
        return target.project(source.lift(places, depth))

    centre, axes = frames[:, :, 2], (frames[:, :, 0], frames[:, :, 1])
    return np.stack([(there(centre + axis) - there(centre - axis)) / 2 for axis in axes], 2)


def _detect_again(job: tuple[Path, tuple[int, int], Floats], window: float) -> Floats:
    """(N, 2, 2) shapes of the keypoints at (N, 2) places of a photo; NaN where there is none."""
    path, size, xy = job
    detected, _ = dog.detect(read_photo(path, size), DETECTED)
    shapes = np.full((len(xy), 2, 2), np.nan)
    index, distance = nearest(xy, centres(detected))
    good = distance <= SAME_KEYPOINT
    shapes[good] = detected[index[good], :, :2] * (window / WINDOW_SIGMAS)
    return shapes


def nearest(xy: Floats, others: NDArray[np.float32]) -> tuple[NDArray[np.intp], Floats]:
    """Index of and distance to the nearest of ``others``; of equals the first (strongest)."""
    index, distance = np.full(len(xy), -1, np.intp), np.full(len(xy), np.inf)
    order = np.argsort(others[:, 0], kind="stable")
    # Search a narrow band only: a photo has tens of thousands of keypoints.
    low = np.searchsorted(others[order, 0], xy[:, 0] - SAME_KEYPOINT)
    high = np.searchsorted(others[order, 0], xy[:, 0] + SAME_KEYPOINT, "right")
    for i in np.flatnonzero(high > low):
        band = np.sort(order[low[i] : high[i]])
        away = np.linalg.norm(others[band] - xy[i], axis=1)
        index[i], distance[i] = band[away.argmin()], away.min()
    return index, distance


def long_enough(point: Ints, length: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point has at least ``length`` observations."""
    _, group, count = np.unique(point, return_inverse=True, return_counts=True)
    return np.asarray(count[group] >= length)


def drop_twins(tracks: Observations, frames: Frames) -> NDArray[np.bool_]:
    """(M,) whether the observation's point stays.

    COLMAP makes two points of a keypoint with two orientations, and no descriptor can tell them
    apart: a point goes if in any photo its window overlaps that of a point with a longer track.
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


def choose_points(tracks: Observations, limit: int) -> NDArray[np.bool_]:
    """(M,) whether the observation's point is one of the ``limit`` with the longest tracks."""
    _, group, count = np.unique(tracks.point, return_inverse=True, return_counts=True)
    chosen = np.ones(len(count), bool)
    if limit:
        chosen[np.argsort(-count, kind="stable")[limit:]] = False
    return np.asarray(chosen[group])


def spread_out(model: Model, tracks: Observations, limit: int) -> NDArray[np.bool_]:
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

    The first is the one nearest to the mean, so that the choice does not start from an outlier.
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


NEIGHBOURS = 8  # 3D points around a keypoint that determine its map to another photo
SURE = 0.1  # largest expected error of a carried frame, at its border, as a share of its half-size
NOISE = 0.5  # least error assumed for the projection of a 3D point, in pixels
SHARED = 20  # 3D points that two photos must share


@dataclass(frozen=True)
class DetectedSettings:
    """How frames are detected and paired; stored in ``set.json``.

    Of ``keypoints`` of each kind in each photo at most ``seeds`` are searched for in other photos;
    see :class:`.DetectionSettings` for the rest.
    """

    windows: tuple[float, ...] = (WINDOW_SIGMAS,)
    keypoints: int = 1500
    seeds: int = 300
    carried: float = 0.1
    tolerances: Tolerances = field(default_factory=Tolerances)


@dataclass(frozen=True)
class Detected(Observations):
    """Observations of points whose reference is the first.

    ``frames`` are (M, 2, 3), ``kind`` is a number into :data:`KINDS`; ``carried``: not detected.
    """

    kind: Ints
    frames: Frames
    carried: NDArray[np.bool_]


def detect_tracks(
    model: Model,
    tracks: Tracks,
    settings: DetectedSettings,
    max_track: int,
    max_error: float,
    rng: np.random.Generator,
    workers: int,
    progress: Steps = silent,
) -> Detected:
    """Detect keypoints in the photos of a model and pair them by its geometry.

    Only photos of the trusted ``tracks`` are used. The 3D points around a keypoint may miss an
    affine map by ``max_error`` pixels.
    """
    seen = [np.unique(tracks.point[tracks.view == k]) for k in range(len(model.views))]
    used = [k for k, points in enumerate(seen) if len(points)]
    found = [[empty_frames()] * len(KINDS) for _ in model.views]
    jobs = [(model.views[k].path, model.views[k].size) for k in used]
    detecting = map_processes(partial(_detect, keypoints=settings.keypoints), jobs, workers)
    for done, (k, frames) in enumerate(zip(used, detecting, strict=True), 1):
        found[k] = frames
        progress(done, len(used))
    return _grow(model, seen, found, settings, max_track, max_error, rng)


def _detect(job: tuple[Path, tuple[int, int]], keypoints: int) -> list[Frames]:
    path, size = job
    return [f[inside(f, *size)] for f in detect(read_photo(path, size), keypoints)]


def partners(seen: list[Ints], view: int, limit: int) -> list[int]:
    """At most ``limit`` photos that share 3D points with ``view``, from many to few of them.

    Of more, near and far ones are taken evenly. ``seen`` are the 3D points of each photo.
    """
    shared = [len(np.intersect1d(points, seen[view])) for points in seen]
    enough = [k for k, count in enumerate(shared) if k != view and count >= SHARED]
    ranked = sorted(enough, key=lambda k: -shared[k])
    if len(ranked) <= limit:
        return ranked
    return [ranked[k] for k in np.linspace(0, len(ranked) - 1, limit).round().astype(int)]


def local_maps(
    source: Floats, target: Floats, frames: Frames, max_error: float
) -> tuple[Floats, NDArray[np.bool_]]:
    """(N, 2, 3) affine maps of frames to another photo, and (N,) whether they can be trusted.

    ``source`` and ``target`` are (C, 2) projections of 3D points in both photos. A map is that of
    least squares over the :data:`NEIGHBOURS` nearest of them. It is not trusted if they miss it by
    more than ``max_error`` pixels (root mean square), or do not determine it.
    """
    if len(source) < NEIGHBOURS or not len(frames):
        return np.zeros((len(frames), 2, 3)), np.zeros(len(frames), bool)
    places = centres(frames).astype(np.float64)
    away = np.linalg.norm(places[:, None] - source[None], axis=2)
    near = np.argsort(away, axis=1, kind="stable")[:, :NEIGHBOURS]
    design = np.concatenate(
        [source[near] - places[:, None], np.ones((len(places), NEIGHBOURS, 1))], 2
    )
    gram = design.swapaxes(1, 2) @ design
    spread = np.linalg.inv(gram + 1e-6 * np.eye(3))  # of points on a line it is huge, not infinite
    solution = spread @ design.swapaxes(1, 2) @ target[near]
    missed = ((design @ solution - target[near]) ** 2).sum((1, 2))
    error = np.sqrt(missed / (2 * NEIGHBOURS - 6))
    half = half_sizes(frames)
    at_border = spread[:, 2, 2] + half**2 * (spread[:, 0, 0] + spread[:, 1, 1])
    maps = solution.swapaxes(1, 2)
    good = (error <= max_error) & (np.linalg.det(maps[:, :, :2]) > 0)
    good &= np.maximum(error, NOISE) * np.sqrt(at_border) <= SURE * half
    return maps, good


def _grow(
    model: Model,
    seen: list[Ints],
    found: list[list[Frames]],
    settings: DetectedSettings,
    max_track: int,
    max_error: float,
    rng: np.random.Generator,
) -> Detected:
    """Points grow from the keypoints of one photo after the other; a keypoint has one at most."""
    frees = [[np.ones(len(frames), bool) for frames in kinds] for kinds in found]
    none = np.zeros(0, np.int64)
    parts = [Detected(none, none, none, empty_frames(), np.zeros(0, bool))]
    points = 0
    used = [k for k, each in enumerate(seen) if len(each)]
    others = {view: partners(seen, view, max_track - 1) for view in used}
    for view, kind in product(used, range(len(KINDS))):
        start, free = found[view][kind], frees[view][kind]
        seeds = np.flatnonzero(free)[: 6 * settings.seeds]
        seeds = seeds[apart(start[seeds])]
        seeds = seeds[np.sort(rng.permutation(len(seeds))[: settings.seeds])]
        rows: list[tuple[Ints, int, Frames, bool]] = []
        for other in others[view]:
            common = model.xyz[np.intersect1d(seen[view], seen[other])]
            source, target = (model.views[k].project(common) for k in (view, other))
            number, true = _carried(source, target, start[seeds], KINDS[kind], max_error)
            candidates = np.flatnonzero(frees[other][kind])
            there = found[other][kind][candidates]
            match = pair_frames(true, there, settings.tolerances)
            hit = match >= 0
            frees[other][kind][candidates[match[hit]]] = False
            rows.append((number[hit], other, there[match[hit]], False))
            carry = ~hit & (rng.random(len(match)) < settings.carried)
            shape = true[carry] if "affine" in KINDS[kind] else forget_affine_shape(true[carry])
            shape = jitter(shape, rng, amount=0.5)
            whole = inside(shape, *model.views[other].size)
            rows.append((number[carry][whole], other, shape[whole], True))
        again = np.unique(np.concatenate([none, *(row[0] for row in rows)]))
        free[seeds[again]] = False
        for number, where, shapes, carried in [(again, view, start[seeds[again]], False), *rows]:
            point, ones = np.searchsorted(again, number) + points, np.ones_like(number)
            part = Detected(point, where * ones, kind * ones, shapes, np.full(len(ones), carried))
            parts.append(part)
        points += len(again)
    every = Detected.join(parts)
    return every[np.argsort(every.point, kind="stable")]


def _carried(
    source: Floats, target: Floats, frames: Frames, kind: str, max_error: float
) -> tuple[Ints, Frames]:
    maps, good = local_maps(source, target, frames, max_error)
    upright = kind.endswith("upright")
    if upright:
        good &= np.abs(np.rad2deg(turns(maps))) <= LEVEL
    shape = maps[good, :, :2] @ frames[good, :, :2]
    true = np.concatenate([shape, maps[good, :, 2:]], 2).astype(np.float32)
    return np.flatnonzero(good), orientation.upright_form(true) if upright else true
