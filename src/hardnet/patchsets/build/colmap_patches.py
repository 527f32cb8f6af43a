"""Which patches to cut from a COLMAP model, and by which frames."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import WINDOW_SIGMAS, Frames, from_similarity, to_similarity
from hardnet.patchsets.build.colmap_model import Ints, Model, Tracks
from hardnet.patchsets.build.from_photos import inside
from hardnet.patchsets.build.from_sequences import add_noise
from hardnet.patchsets.build.track_choice import (
    choose_points,
    drop_twins,
    long_enough,
    spread_out,
)
from hardnet.patchsets.build.track_frames import carried_frames, database_frames, references

LEVEL = 25.0
"""Degrees between the orientations of one keypoint in two photos that are both held upright."""

Progress = Callable[[str, int, int], None]
"""Called with (what is done, done, total)."""


@dataclass(frozen=True)
class ColmapSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Attributes:
        min_track: photos that must see a point.
        max_track: most patches of one point; of more, those seen from the most different places.
        max_error: pixels by which an observation may miss the projected point.
        window: side of the measurement window in sigmas of the keypoint.
        affine: without a database, cut by the affine map between the photos. By default only its
            scale and rotation are used, as a detector without affine shape would: the change of
            viewpoint that is left is what the descriptor must learn to bear.
        noise: multiple of the easy noise of HPatches by which every frame is disturbed. Keypoints
            of a database have noise of their own; frames carried by the cameras have none.
        upright: cut with patch-up as image-up. Observations whose orientations say that the camera
            was turned against that of the reference are left out.
        points: most points of one model, those with the longest tracks; 0 for all.
        pairs: rows of the test pair file.
        seed: of the test pairs and the noise; nothing else is random.
    """

    min_track: int = 2
    max_track: int = 12
    max_error: float = 2.0
    window: float = WINDOW_SIGMAS
    affine: bool = False
    noise: float = 0.0
    upright: bool = False
    points: int = 0
    pairs: int = 100_000
    seed: int = 0


@dataclass(frozen=True)
class ModelPatches:
    """Which patches of a model to cut."""

    model: Model
    tracks: Tracks
    frames: Frames
    """(M, 2, 3), one per observation."""
    reference: Ints
    """(M,) view in which the observation's point has its reference."""
    interest: NDArray[np.float64]
    """(M, 4) x, y, orientation and log2 scale of the reference keypoint."""
    counts: dict[str, int | str]


def choose_patches(
    model: Model, settings: ColmapSettings, workers: int, used: set[Path], progress: Progress
) -> ModelPatches:
    """Decide which observations of a model become patches, and by which frames.

    Args:
        model: see :func:`~hardnet.patchsets.build.colmap_model.read_model`.
        settings: see :class:`ColmapSettings`.
        workers: processes.
        used: photos that another model of the set has used: the same spot must not get two names.
        progress: called with (what is done, done, total).
    """
    tracks = model.tracks
    counts: dict[str, int | str] = {"model": model.scene.name, "in the model": len(model.xyz)}
    fresh = np.array([view.path.resolve() not in used for view in model.views])
    tracks = tracks[(tracks.error <= settings.max_error) & (tracks.depth > 0) & fresh[tracks.view]]
    tracks = tracks[long_enough(tracks.point, settings.min_track)]
    counts["without enough photos or precision"] = len(model.xyz) - number_of_points(tracks)
    reference = references(model, tracks)
    frames = None
    if model.scene.database is not None:
        frames = database_frames(model, tracks, settings.window)
    counts["frames"] = "geometry" if frames is None else "database"
    if frames is None:
        frames = carried_frames(
            model,
            tracks,
            reference,
            settings.window,
            settings.affine,
            workers,
            lambda done, total: progress(f"{model.scene.name}: keypoints", done, total),
        )
    known = np.asarray(np.isfinite(frames[reference]).all((1, 2)))
    counts["without a keypoint in the reference"] = number_of_points(tracks[~known])
    if settings.upright:
        with np.errstate(invalid="ignore"):  # where there is no keypoint
            known &= level(frames, reference)
            xy, sigma, _ = to_similarity(frames, settings.window)
        frames = from_similarity(xy, sigma, 0.0, settings.window)
    whole = known & _whole(model, tracks, frames)
    whole[whole] = long_enough(tracks.point[whole], 2)
    counts["whole in fewer than 2 photos"] = number_of_points(tracks[known]) - number_of_points(
        tracks[whole]
    )
    home = reference[whole]
    xy, sigma, angle = to_similarity(frames[home], settings.window)
    interest = np.column_stack([xy, angle, np.log2(sigma)]).astype(np.float64)
    chosen = ModelPatches(model, tracks[whole], frames[whole], tracks.view[home], interest, counts)
    before = number_of_points(chosen.tracks)
    chosen = only(chosen, drop_twins(chosen.tracks, chosen.frames))
    counts["on top of another point"] = before - number_of_points(chosen.tracks)
    chosen = only(chosen, choose_points(chosen.tracks, settings.points))
    chosen = only(chosen, spread_out(model, chosen.tracks, settings.max_track))
    # The patches of a point follow one another, the reference first.
    t = chosen.tracks
    chosen = only(chosen, np.lexsort((t.view, t.view != chosen.reference, t.point)))
    if not settings.noise:
        return chosen
    rng = np.random.default_rng([settings.seed, zlib.crc32(model.scene.name.encode())])
    draw = rng.uniform(-1, 1, (len(chosen.frames), 6))
    return replace(chosen, frames=add_noise(chosen.frames, draw, settings.noise))


def level(frames: Frames, reference: Ints) -> NDArray[np.bool_]:
    """(M,) whether each frame is turned against its reference by at most :data:`LEVEL`."""
    angle = to_similarity(frames)[2]
    apart = np.abs((angle - angle[reference] + np.pi) % (2 * np.pi) - np.pi)
    return np.asarray(apart <= np.deg2rad(LEVEL))


def _whole(model: Model, tracks: Tracks, frames: Frames) -> NDArray[np.bool_]:
    """(M,) whether the window of the frame lies inside its photo."""
    size = np.array([view.size for view in model.views]).reshape(-1, 2)[tracks.view]
    return inside(frames, size[:, 0], size[:, 1])


def only(chosen: ModelPatches, rows: NDArray[np.bool_] | NDArray[np.intp] | Ints) -> ModelPatches:
    """Keep some of the rows: a mask or indices."""
    return replace(
        chosen,
        tracks=chosen.tracks[rows],
        frames=chosen.frames[rows],
        reference=chosen.reference[rows],
        interest=chosen.interest[rows],
    )


def number_of_points(tracks: Tracks) -> int:
    """How many points the observations are of."""
    return len(np.unique(tracks.point))
