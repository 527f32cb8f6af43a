"""A patch set in the Brown format from COLMAP models: patches of one 3D point from its photos.

The photos show real changes of viewpoint, light and camera, as in the sets of Brown and others.
"""

from __future__ import annotations

import json
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import Progress, silent, within
from hardnet.frames import (
    WINDOW_SIGMAS,
    Frames,
    cut_patches,
    from_similarity,
    in_window,
    to_similarity,
)
from hardnet.images import Pixels
from hardnet.patchsets.brown import PATCH, PER_SHEET, BrownWriter
from hardnet.patchsets.build.choice import LEVEL, MIN_STD, apart, inside
from hardnet.patchsets.build.colmap_model import (
    Model,
    Observations,
    Scene,
    Tracks,
    read_model,
    read_photo,
)
from hardnet.patchsets.build.photos import KINDS
from hardnet.patchsets.build.tracks import (
    DetectedSettings,
    by_value,
    carried_frames,
    choose_points,
    database_frames,
    detect_tracks,
    drop_twins,
    long_enough,
    references,
    spread_out,
)
from hardnet.patchsets.build.views import add_noise
from hardnet.patchsets.patchset import Floats, Ints
from hardnet.threads import map_processes

Counts = dict[str, int | str]
"""Of a model: its name, where the frames come from, and how much was left out and why."""


@dataclass(frozen=True)
class ColmapSettings:
    """What the set is made of; stored beside it in ``set.json``.

    A point is seen in at least ``min_track`` photos; of more than ``max_track`` patches, those with
    the most different viewpoints are kept. ``max_error`` is the distance of an observation from the
    projected point, in pixels. Without a database, ``affine`` cuts by the affine map between the
    photos, otherwise by its scale and rotation. ``noise`` is a multiple of HPatches' easy noise;
    frames carried by the cameras have none. With ``upright``, observations of rotated
    cameras are left out.
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
class Chosen(Observations):
    """Which patches of a model to cut.

    ``frames`` are (M, 2, 3); ``kind`` (M,) is that of the keypoint if several were detected, else
    0; ``reference`` (M,) the view in which the observation's point has its reference, and
    ``interest`` (M, 4) x, y, orientation and log2 scale of the keypoint there.
    """

    frames: Frames
    kind: Ints
    reference: Ints
    interest: Floats


def choose_patches(
    model: Model, settings: ColmapSettings, workers: int, used: set[Path], progress: Progress
) -> tuple[Chosen, Counts]:
    """Decide which observations of a model become patches, and by which frames.

    ``used`` are photos of other models of the set: the same spot must not get two names.
    """
    name, window = model.scene.name, settings.window
    counts: Counts = {"model": name, "in the model": len(model.xyz)}
    tracks = _trusted(model, settings, used)
    counts["without enough photos or precision"] = len(model.xyz) - tracks.points
    reference = references(model, tracks)
    frames = database_frames(model, tracks, window)
    counts["frames"] = "geometry" if frames is None else "database"
    if frames is None:
        report = partial(within, progress, name, "keypoints")
        frames = carried_frames(model, tracks, reference, window, settings.affine, workers, report)
    known = np.asarray(np.isfinite(frames[reference]).all((1, 2)))
    counts["without a keypoint in the reference"] = tracks[~known].points
    if settings.upright:
        with np.errstate(invalid="ignore"):  # where there is no keypoint
            known &= level(frames, reference)
            xy, sigma, _ = to_similarity(frames, window)
        frames = from_similarity(xy, sigma, 0.0, window)
    whole = known & _whole(model, tracks, frames)
    whole[whole] = long_enough(tracks.point[whole], 2)
    counts["whole in fewer than 2 photos"] = tracks[known].points - tracks[whole].points
    home, seen = reference[whole], tracks[whole]
    interest, kind = _interest(frames[home], window), np.zeros(len(home), np.int64)
    chosen = Chosen(seen.point, seen.view, frames[whole], kind, tracks.view[home], interest)
    before = chosen.points
    chosen = chosen[drop_twins(chosen, chosen.frames)]
    counts["on top of another point"] = before - chosen.points
    chosen = chosen[choose_points(chosen, settings.points)]
    chosen = chosen[spread_out(model, chosen, settings.max_track)]
    # The patches of a point follow one another, the reference first.
    chosen = chosen[np.lexsort((chosen.view, chosen.view != chosen.reference, chosen.point))]
    if settings.noise:
        draw = _rng(model, settings).uniform(-1, 1, (len(chosen), 6))
        chosen = replace(chosen, frames=add_noise(chosen.frames, draw, settings.noise))
    return chosen, counts


def choose_detections(
    model: Model,
    settings: ColmapSettings,
    detected: DetectedSettings,
    workers: int,
    used: set[Path],
    progress: Progress,
) -> tuple[Chosen, Counts]:
    """The same with frames detected in every photo; see :func:`.detect_tracks`."""
    name, tracks, rng = model.scene.name, _trusted(model, settings, used), _rng(model, settings)
    report = partial(within, progress, name, "keypoints")
    limits = settings.max_track, settings.max_error
    found = detect_tracks(model, tracks, detected, *limits, rng, workers, report)
    found = found[long_enough(found.point, settings.min_track)]
    counts: Counts = {
        "model": name,
        "in the model": len(model.xyz),
        "frames": "detections",
        "detected": int((~found.carried).sum()),
        "carried": int(found.carried.sum()),
    }
    _, first, group = np.unique(found.point, return_index=True, return_inverse=True)
    frames, home = found.frames, first[group]
    interest = _interest(frames[home], WINDOW_SIGMAS)
    chosen = Chosen(found.point, found.view, frames, found.kind, found.view[home], interest)
    parts = [_in_window(model, chosen, k, window) for k, window in enumerate(detected.windows)]
    counts["on top of another point"] = chosen.points * len(parts) - sum(p.points for p in parts)
    return Chosen.join([part[choose_points(part, settings.points)] for part in parts]), counts


def _interest(frames: Frames, window: float) -> Floats:
    xy, sigma, angle = to_similarity(frames, window)
    return np.column_stack([xy, angle, np.log2(sigma)]).astype(np.float64)


def _in_window(model: Model, chosen: Chosen, number: int, window: float) -> Chosen:
    """The patches of one window, as other points and kinds; whole, and apart."""
    point, kind, step = chosen.point, chosen.kind, int(chosen.point.max(initial=0)) + 1
    frames = in_window(chosen.frames, window)
    image = kind * len(model.views) + chosen.view
    twin = np.zeros(len(image), bool)
    for rows in by_value(image, np.arange(len(image))):
        twin[rows] = ~apart(frames[rows])
    good = ~np.isin(point, point[twin])
    if window > WINDOW_SIGMAS:  # the default window was checked when the frames were found
        good &= _whole(model, chosen, frames)
        good[good] = long_enough(point[good], 2)
    points, kinds = point + number * step, kind + number * len(KINDS)
    return replace(chosen, point=points, kind=kinds, frames=frames)[good]


def _rng(model: Model, settings: ColmapSettings) -> np.random.Generator:
    return np.random.default_rng([settings.seed, zlib.crc32(model.scene.name.encode())])


def _trusted(model: Model, settings: ColmapSettings, used: set[Path]) -> Tracks:
    tracks = model.tracks
    fresh = np.array([view.path.resolve() not in used for view in model.views])
    tracks = tracks[(tracks.error <= settings.max_error) & (tracks.depth > 0) & fresh[tracks.view]]
    return tracks[long_enough(tracks.point, settings.min_track)]


def level(frames: Frames, reference: Ints) -> NDArray[np.bool_]:
    """(M,) whether each frame is rotated from its reference by at most :data:`LEVEL`."""
    angle = to_similarity(frames)[2]
    apart = np.abs((angle - angle[reference] + np.pi) % (2 * np.pi) - np.pi)
    return np.asarray(apart <= np.deg2rad(LEVEL))


def _whole(model: Model, tracks: Observations, frames: Frames) -> NDArray[np.bool_]:
    size = np.array([view.size for view in model.views]).reshape(-1, 2)[tracks.view]
    return inside(frames, size[:, 0], size[:, 1])


@dataclass(frozen=True)
class ColmapReport:
    """What :func:`build_from_colmap` made."""

    points: int
    patches: int
    models: tuple[Counts, ...]


def build_from_colmap(
    scenes: Sequence[Scene],
    output: Path,
    settings: ColmapSettings,
    workers: int,
    progress: Progress = silent,
    origin: Mapping[str, Any] | None = None,
    detected: DetectedSettings | None = None,
) -> ColmapReport:
    """Build a patch set in the Brown format from COLMAP models, the larger scenes first.

    Non-matching test pairs come from points with the same reference photo. The set does not depend
    on the number of ``workers``, which are processes. ``origin`` is added to ``set.json``.
    ``detected``: detect frames in every photo instead of using those that COLMAP matched.
    """
    models: list[Counts] = []
    interest: list[str] = []
    used: set[Path] = set()
    points = photos = 0
    kinds = 1 if detected is None else len(KINDS) * len(detected.windows)
    with BrownWriter(output) as writer:
        for scene in scenes:
            model = read_model(scene)
            if detected is None:
                chosen, counts = choose_patches(model, settings, workers, used, progress)
            else:
                chosen, counts = choose_detections(
                    model, settings, detected, workers, used, progress
                )
            scratch = tempfile.TemporaryDirectory(dir=output.parent, prefix=f"{output.name}.")
            with scratch as folder:
                patches = _cut(model, chosen, Path(folder), workers, progress)
                contrast = np.array([patch.std() for patch in patches[: len(chosen)]])
                rows = np.flatnonzero(contrast >= MIN_STD)
                rows = rows[long_enough(chosen.point[rows], 2)]
                counts["without contrast"] = chosen.points - chosen[rows].points
                chosen = chosen[rows]
                first = photos + chosen.kind * len(model.views)
                groups, images = first + chosen.reference, first + chosen.view
                _, dense = np.unique(chosen.point, return_inverse=True)
                dense += points
                for start in range(0, len(rows), PER_SHEET):
                    part = slice(start, start + PER_SHEET)
                    writer.add(patches[rows[part]], dense[part], groups[part], images[part])
                del patches  # before its file is deleted
            table = zip(groups, chosen.interest, strict=True)
            interest += [f"{g} {x:.2f} {y:.2f} {a:.4f} {s:.4f}\n" for g, (x, y, a, s) in table]
            models.append(counts | {"points": chosen.points, "patches": len(rows)})
            points += chosen.points
            photos += len(model.views) * kinds
            used |= {model.views[v].path.resolve() for v in np.unique(chosen.view)}
        about = {"builder": "colmap", "settings": asdict(settings), "models": models}
        about |= {} if detected is None else {"detections": asdict(detected)}
        text = json.dumps({**about, **(origin or {})}, indent=1) + "\n"
        files = {"set.json": text, "interest.txt": "".join(interest)}
        size = writer.finish(settings.pairs, settings.seed, files)
    return ColmapReport(points, size, tuple(models))


def _cut(model: Model, chosen: Chosen, scratch: Path, workers: int, progress: Progress) -> Pixels:
    """(M, 64, 64) patches of all observations, in a file: they may not fit into memory."""
    shape = (max(len(chosen), 1), PATCH, PATCH)
    patches = np.lib.format.open_memmap(scratch / "patches.npy", "w+", np.uint8, shape)
    groups = by_value(chosen.view, np.arange(len(chosen)))
    views = [model.views[chosen.view[rows[0]]] for rows in groups]
    jobs = [(v.path, v.size, chosen.frames[rows]) for v, rows in zip(views, groups, strict=True)]
    cutting = map_processes(_cut_photo, jobs, workers)
    for done, (rows, cut) in enumerate(zip(groups, cutting, strict=True)):
        patches[rows] = cut
        progress(f"{model.scene.name}: patches", done + 1, len(groups))
    return patches


def _cut_photo(job: tuple[Path, tuple[int, int], Frames]) -> Pixels:
    path, size, frames = job
    return cut_patches(read_photo(path, size), frames, PATCH)
