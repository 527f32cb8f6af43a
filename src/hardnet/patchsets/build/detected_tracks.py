"""Points of a COLMAP model at frames that were detected in every photo independently.

Keypoints are detected in each photo as if nothing else were known. Around a keypoint of one photo,
the 3D points that a second photo sees as well tell where it must be there and what its frame looks
like; a keypoint detected in that place shows the same spot. Nobody asks whether SIFT matched it, so
the pairs are those that a descriptor meets, the hard ones included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import orientation
from hardnet.frames import Frames, centres, empty_frames
from hardnet.patchsets.build.choice import LEVEL, Rows, apart, inside
from hardnet.patchsets.build.colmap_model import Floats, Ints, Model, Tracks, read_photo
from hardnet.patchsets.build.detections import KINDS, Tolerances, detect, pair_frames
from hardnet.patchsets.build.views import forget_affine_shape, jitter
from hardnet.threads import map_processes

NEIGHBOURS = 8
"""3D points around a keypoint that say how it is mapped to another photo."""
SURE = 0.1
"""Most expected error of a carried frame, at its border, as a share of its half-size."""
NOISE = 0.5
"""Least error of the projection of a 3D point that is reckoned with, in pixels."""
SHARED = 20
"""3D points that two photos must share."""


@dataclass(frozen=True)
class DetectedSettings:
    """How frames are detected and paired; stored in ``set.json``.

    Attributes:
        keypoints: detected of each kind (see :data:`KINDS`) in each photo.
        seeds: most keypoints of one kind and photo that are looked for in other photos.
        carried: share of the keypoints not found again in a photo for which the frame is carried
            there, so that photos in which detectors fail are not left out.
        tolerances: by which a detection may differ from the carried frame.
    """

    keypoints: int = 1500
    seeds: int = 300
    carried: float = 0.1
    tolerances: Tolerances = field(default_factory=Tolerances)


@dataclass(frozen=True)
class Detected(Rows):
    """Frames of points: those of one point follow one another, its reference is the first.

    Attributes:
        point: (M,) numbers from 0.
        view: (M,) the photo of each frame.
        kind: (M,) of the keypoint, a number into :data:`KINDS`.
        frames: (M, 2, 3).
        carried: (M,) whether the frame was carried there and not detected.
    """

    point: Ints
    view: Ints
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
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Detected:
    """Detect keypoints in the photos of a model and pair them by its geometry.

    ``tracks`` are observations that are trusted; photos without any are not used. ``max_error`` is
    the number of pixels by which the 3D points around a keypoint may miss an affine map.
    """
    seen = [np.unique(tracks.point[tracks.view == k]) for k in range(len(model.views))]
    used = [k for k, points in enumerate(seen) if len(points)]
    found = [[empty_frames()] * len(KINDS) for _ in model.views]
    jobs = [(model.views[k].path, model.views[k].size) for k in used]
    detecting = map_processes(partial(_detect, keypoints=settings.keypoints), jobs, workers)
    for done, (k, frames) in enumerate(zip(used, detecting, strict=True), 1):
        found[k] = frames
        progress(done, len(used))
    search = _Search(model, seen, found, settings, max_error, rng)
    for view in used:
        for kind in range(len(KINDS)):
            search.follow(view, partners(seen, view, max_track - 1), kind)
    every = Detected.join(search.parts)
    return every[np.argsort(every.point, kind="stable")]


def _detect(job: tuple[Path, tuple[int, int]], keypoints: int) -> list[Frames]:
    path, size = job
    return [frames[inside(frames, *size)] for frames in detect(read_photo(path, size), keypoints)]


def partners(seen: list[Ints], view: int, limit: int) -> list[int]:
    """At most ``limit`` photos that share 3D points with ``view``, from many to few of them.

    ``seen`` are the 3D points of each photo. Where more photos share enough, near and far ones are
    taken evenly.
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
    """How the surroundings of frames are mapped to another photo, by 3D points around them.

    The affine map of least squares over the :data:`NEIGHBOURS` nearest points. It is not trusted
    where they miss it by more than ``max_error`` pixels, as they do at the border of an object, or
    lie so that they do not tell.

    Args:
        source: (C, 2) projections of the 3D points in the photo of the frames.
        target: (C, 2) in the other photo.
        frames: (N, 2, 3).
        max_error: root mean square.

    Returns:
        (N, 2, 3) the derivative of the map and the place of the frame's centre there, and (N,)
        whether it can be trusted.
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
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2].astype(np.float64))))
    at_border = spread[:, 2, 2] + half**2 * (spread[:, 0, 0] + spread[:, 1, 1])
    maps = solution.swapaxes(1, 2)
    good = (error <= max_error) & (np.linalg.det(maps[:, :, :2]) > 0)
    good &= np.maximum(error, NOISE) * np.sqrt(at_border) <= SURE * half
    return maps, good


class _Search:
    """Points that grow from the keypoints of one photo after the other.

    A keypoint belongs to one point at most: one that an earlier photo has claimed starts none.
    """

    def __init__(
        self,
        model: Model,
        seen: list[Ints],
        found: list[list[Frames]],
        settings: DetectedSettings,
        max_error: float,
        rng: np.random.Generator,
    ) -> None:
        self._model, self._seen, self._found = model, seen, found
        self._settings, self._max_error, self._rng = settings, max_error, rng
        self._free = [[np.ones(len(frames), bool) for frames in kinds] for kinds in found]
        self._points = 0
        none = np.zeros(0, np.int64)
        self.parts = [Detected(none, none, none, empty_frames(), np.zeros(0, bool))]

    def follow(self, view: int, others: list[int], kind: int) -> None:
        """Look for keypoints of ``view`` in other photos; those found in one become points."""
        start, free = self._found[view][kind], self._free[view][kind]
        most = self._settings.seeds
        seeds = np.flatnonzero(free)[: 6 * most]
        seeds = seeds[apart(start[seeds])]
        seeds = seeds[np.sort(self._rng.permutation(len(seeds))[:most])]
        rows: list[tuple[Ints, int, Frames, bool]] = []
        for other in others:
            number, true = self._carry(view, other, kind, start[seeds])
            candidates = np.flatnonzero(self._free[other][kind])
            there = self._found[other][kind][candidates]
            match = pair_frames(true, there, self._settings.tolerances)
            hit = match >= 0
            self._free[other][kind][candidates[match[hit]]] = False
            rows.append((number[hit], other, there[match[hit]], False))
            carry = ~hit & (self._rng.random(len(match)) < self._settings.carried)
            shape = true[carry] if "affine" in KINDS[kind] else forget_affine_shape(true[carry])
            shape = jitter(shape, self._rng, amount=0.5)
            whole = inside(shape, *self._model.views[other].size)
            rows.append((number[carry][whole], other, shape[whole], True))
        again = np.unique(np.concatenate([np.zeros(0, np.int64), *(row[0] for row in rows)]))
        free[seeds[again]] = False
        for number, where, shapes, carried in [(again, view, start[seeds[again]], False), *rows]:
            point, ones = np.searchsorted(again, number) + self._points, np.ones_like(number)
            part = Detected(point, where * ones, kind * ones, shapes, np.full(len(ones), carried))
            self.parts.append(part)
        self._points += len(again)

    def _carry(self, view: int, other: int, kind: int, frames: Frames) -> tuple[Ints, Frames]:
        """Which of the frames of a photo can be carried to another, and what they are there."""
        common = self._model.xyz[np.intersect1d(self._seen[view], self._seen[other])]
        source, target = (self._model.views[k].project(common) for k in (view, other))
        maps, good = local_maps(source, target, frames, self._max_error)
        upright = KINDS[kind].endswith("upright")
        if upright:
            turn = np.arctan2(maps[:, 1, 0] - maps[:, 0, 1], maps[:, 0, 0] + maps[:, 1, 1])
            good &= np.abs(np.rad2deg(turn)) <= LEVEL
        shape = maps[good, :, :2] @ frames[good, :, :2]
        true = np.concatenate([shape, maps[good, :, 2:]], 2).astype(np.float32)
        return np.flatnonzero(good), orientation.upright_form(true) if upright else true
