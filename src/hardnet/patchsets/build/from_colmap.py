"""A patch set in the Brown format from COLMAP models: patches of one 3D point from its photos.

The photos show real changes of viewpoint, light and camera, as in the sets of Brown and others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames
from hardnet.patches import cut_patches
from hardnet.patchsets.brown import PATCH, PER_SHEET
from hardnet.patchsets.brown_writer import BrownWriter
from hardnet.patchsets.build.colmap_model import Ints, Scene, read_model, read_photo
from hardnet.patchsets.build.colmap_patches import (
    ColmapSettings,
    ModelPatches,
    Progress,
    choose_patches,
    number_of_points,
    only,
)
from hardnet.patchsets.build.from_photos import MIN_STD
from hardnet.patchsets.build.ordered_map import ordered_map
from hardnet.patchsets.build.track_choice import long_enough
from hardnet.patchsets.build.track_frames import by_value


@dataclass(frozen=True)
class ColmapReport:
    """What :func:`build_from_colmap` made."""

    points: int
    patches: int
    models: tuple[dict[str, int | str], ...]
    """One row per model: its name, where the frames come from, and what was left out why."""


def build_from_colmap(
    scenes: Sequence[Scene],
    output: Path,
    settings: ColmapSettings,
    workers: int,
    progress: Progress = lambda what, done, total: None,
    origin: Mapping[str, Any] | None = None,
) -> ColmapReport:
    """Build a patch set in the Brown format from COLMAP models.

    Non-matching test pairs come from points with the same reference photo.

    Args:
        scenes: models, photos and databases; the larger ones should come first.
        output: the set to write; must not exist.
        settings: see :class:`ColmapSettings`.
        workers: processes; the set does not depend on their number.
        progress: called with (what is done, done, total).
        origin: more to write into ``set.json``: where the models come from.
    """
    models: list[dict[str, int | str]] = []
    interest: list[str] = []
    used: set[Path] = set()
    points = photos = 0
    with BrownWriter(output) as writer:
        for scene in scenes:
            model = read_model(scene)
            chosen = choose_patches(model, settings, workers, used, progress)
            with tempfile.TemporaryDirectory(
                dir=output.parent, prefix=f"{output.name}."
            ) as scratch:
                patches = _cut(chosen, Path(scratch) / "patches.npy", workers, progress)
                rows = _worth_keeping(patches, chosen)
                chosen = only(chosen, rows)
                groups, images = chosen.reference + photos, chosen.tracks.view + photos
                _, dense = np.unique(chosen.tracks.point, return_inverse=True)
                for start in range(0, len(rows), PER_SHEET):
                    part = slice(start, start + PER_SHEET)
                    writer.add(
                        patches[rows[part]], dense[part] + points, groups[part], images[part]
                    )
                del patches  # before its file goes
            table = zip(groups, chosen.interest, strict=True)
            interest += [f"{g} {x:.2f} {y:.2f} {a:.4f} {s:.4f}\n" for g, (x, y, a, s) in table]
            chosen.counts["points"] = number_of_points(chosen.tracks)
            chosen.counts["patches"] = len(rows)
            models.append(chosen.counts)
            points += number_of_points(chosen.tracks)
            photos += len(model.views)
            used |= {model.views[v].path.resolve() for v in np.unique(chosen.tracks.view)}
        about: dict[str, Any] = {
            "builder": "colmap",
            "settings": asdict(settings),
            "models": models,
        }
        about |= origin or {}
        files = {
            "set.json": json.dumps(about, indent=1) + "\n",
            "interest.txt": "".join(interest),
        }
        size = writer.finish(settings.pairs, settings.seed, files)
    return ColmapReport(points, size, tuple(models))


def _cut(
    chosen: ModelPatches, scratch: Path, workers: int, progress: Progress
) -> NDArray[np.uint8]:
    """(M, 64, 64) patches of all observations, in a file: they may not fit into memory."""
    tracks, frames = chosen.tracks, chosen.frames
    shape = (max(len(tracks), 1), PATCH, PATCH)
    patches = np.lib.format.open_memmap(scratch, "w+", np.uint8, shape)
    groups = by_value(tracks.view, np.arange(len(tracks)))
    views = [chosen.model.views[tracks.view[rows[0]]] for rows in groups]
    jobs = [(v.path, v.size, frames[rows]) for v, rows in zip(views, groups, strict=True)]
    for done, (rows, cut) in enumerate(
        zip(groups, ordered_map(_cut_photo, jobs, workers), strict=True)
    ):
        patches[rows] = cut
        progress(f"{chosen.model.scene.name}: patches", done + 1, len(groups))
    return patches


def _cut_photo(job: tuple[Path, tuple[int, int], Frames]) -> NDArray[np.uint8]:
    path, size, frames = job
    return cut_patches(read_photo(path, size), frames, PATCH)


def _worth_keeping(patches: NDArray[np.uint8], chosen: ModelPatches) -> Ints:
    """Rows of patches with contrast, of points that have at least two of them."""
    point = chosen.tracks.point
    contrast = np.array([patches[i].std() for i in range(len(point))]).reshape(-1)
    rows = np.flatnonzero(contrast >= MIN_STD)
    kept = rows[long_enough(point[rows], 2)]
    chosen.counts["without contrast"] = len(np.unique(point)) - len(np.unique(point[kept]))
    return kept
