"""A patch set in the W1BS layout from photo pairs and sequences with homographies.

The frames of the reference are carried exactly into the target, without noise, so that only what
changed between the two photos separates a patch from its counterpart. Every pair is one matching
task; the pairs are grouped into subsets by what changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import WINDOW_SIGMAS, Frames, transform
from hardnet.images import read_image, to_grey
from hardnet.patches import cut_patches
from hardnet.patchsets.build.from_sequences import (
    MAX_FRAMES,
    SequenceReport,
    camera_moves,
    reference_frames,
    visible_everywhere,
)
from hardnet.patchsets.build.ordered_map import ordered_map
from hardnet.patchsets.overlap import suppress_overlaps
from hardnet.patchsets.part_folder import new_folder
from hardnet.patchsets.sequences import Sequence, Target
from hardnet.patchsets.w1bs_writer import write_pair
from hardnet.storage import claim

PATCH_SIDE = 64
"""Pixels; readers of the layout take strips of any width."""
NARROWEST = 8.0
"""Pixels across which a window must still reach in the target: a steeper view shows nothing."""


@dataclass(frozen=True)
class PairSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Attributes:
        limit: most frames per pair, the strongest.
        window: side of the measurement window in sigmas of the keypoint.
    """

    limit: int = MAX_FRAMES
    window: float = WINDOW_SIGMAS


def cut_pair(
    image: NDArray[np.uint8], frames: Frames, target: Target, limit: int
) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Patches (N, 64, 64) of an image and of a target.

    Args:
        image: (H, W) the reference.
        frames: (M, 2, 3) its frames, strongest first.
        target: the other image.
        limit: most frames.
    """
    other = to_grey(read_image(target.image))
    frames = visible_everywhere(frames, image, [(other, target.homography)])
    carried = transform(frames, target.homography)
    across = 2 * np.linalg.svd(carried[:, :, :2].astype(np.float64), compute_uv=False)[:, -1]
    frames = frames[across >= NARROWEST]
    frames = frames[suppress_overlaps(frames, limit)]
    if len(frames) < 2:
        raise HardnetError("fewer than 2 keypoints are inside both images")
    carried = transform(frames, target.homography)
    return cut_patches(image, frames, PATCH_SIDE), cut_patches(other, carried, PATCH_SIDE)


def nuisance(sequence: Sequence) -> str:
    """What changes between the photos: "viewpoint" or, if the camera stays, "photometric"."""
    return "viewpoint" if camera_moves(sequence) else "photometric"


def build_photo_pairs(
    sequences: Iterable[Sequence],
    output: Path,
    settings: PairSettings,
    workers: int,
    subsets: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SequenceReport:
    """Build a patch set in the W1BS layout: one pair SEQUENCE-K per target K of each sequence.

    Args:
        sequences: any number of targets each.
        output: the set to write; must not exist.
        settings: see :class:`PairSettings`.
        workers: processes; the set does not depend on their number.
        subsets: sequence -> subset, for those not to be grouped by :func:`nuisance`.
        progress: called with (sequences done, sequences in all).
    """
    every, chosen = list(sequences), dict(subsets or {})
    if unknown := sorted(chosen.keys() - {s.name for s in every}):
        raise HardnetError(
            f"no sequence called {', '.join(unknown)}; there are {', '.join(s.name for s in every)}"
        )
    jobs = [(chosen.get(s.name) or nuisance(s), s) for s in every]
    counts: dict[str, int] = {}
    skipped: dict[str, str] = {}
    with new_folder(output) as part:
        write = partial(_write_pairs, folder=part, settings=settings)
        for done, pairs in enumerate(ordered_map(write, jobs, workers)):
            for name, count in pairs.items():
                if isinstance(count, str):
                    skipped[name] = count
                else:
                    counts[f"{jobs[done][0]}/{name}"] = count
            if progress:
                progress(done + 1, len(jobs))
        if not counts:
            reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
            raise HardnetError(f"no pair gave patches: {reasons}")
        about = {
            "builder": "sequences",
            "layout": "w1bs",
            "settings": asdict(settings),
            "patches": dict(sorted(counts.items())),
            "skipped": skipped,
        }
        claim(part / "set.json").write_text(json.dumps(about, indent=1) + "\n")
    return SequenceReport(counts, skipped)


def _write_pairs(
    job: tuple[str, Sequence], folder: Path, settings: PairSettings
) -> dict[str, int | str]:
    """Cut and write the pairs of a sequence: name -> patches, or why there are none."""
    subset, sequence = job
    image = to_grey(read_image(sequence.reference))
    frames = reference_frames(image, settings.window)
    written: dict[str, int | str] = {}
    for target in sequence.targets:
        name = f"{sequence.name}-{target.name}"
        try:
            first, second = cut_pair(image, frames, target, settings.limit)
        except HardnetError as error:
            written[name] = str(error)
        else:
            write_pair(folder, subset, name, first, second)
            written[name] = len(first)
    return written
