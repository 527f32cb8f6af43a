"""Patch sets from image sequences with homographies, in the HPatches or the W1BS layout.

For HPatches a frame of the reference image is carried to every target by the true homography, with
geometric noise added as a detector would make it, so that a benchmark scores the descriptor alone.
Differences to HPatches: the frames are our DoG frames only (HPatches adds Hessian and Harris), by
default with the window of the pipeline (12 sigma; HPatches takes 5 times the scale), at most 1000
per sequence.

For W1BS the frames are carried exactly, so that only what changed between two photos separates a
patch from its counterpart. Every target makes a pair with the reference; the pairs are grouped into
subsets by what changed.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.detectors import dog
from hardnet.errors import HardnetError, Steps, silent
from hardnet.frames import WINDOW_SIGMAS, Frames, cut_patches, transform
from hardnet.images import Pixels, read_image, to_grey
from hardnet.patchsets.build.choice import suppress_overlaps
from hardnet.patchsets.build.views import SHIFT, STRETCH, TURN, ZOOM, add_noise
from hardnet.patchsets.hpatches import SIDE, TARGETS, write_sequence
from hardnet.patchsets.patchset import Floats
from hardnet.patchsets.sequences import Sequence, Target, inside, project
from hardnet.patchsets.w1bs import write_pair
from hardnet.storage import NewFolder
from hardnet.threads import map_processes

MAX_FRAMES = 1000  # frames per sequence, the strongest; HPatches has about 1300 on average
CANDIDATES = 10_000  # keypoints to choose from: many leave an image or show the same spot
NOISE_LEVELS: Mapping[str, float] = {"easy": 1.0, "hard": 2.0, "tough": 3.0}
"""Multiples of the easy noise."""
STILL_CAMERA = 0.06
"""Share of the image diagonal by which the corners may move while the camera counts as still."""
PAIR_SIDE = 64  # of patches in the W1BS layout; its readers take strips of any width
NARROWEST = 8.0  # least width of a window in the target, in pixels: a steeper view shows nothing


@dataclass(frozen=True)
class SequenceSettings:
    """What the set is made of; stored in its ``set.json`` (W1BS) or ``.set.json``.

    ``limit`` is the most frames per sequence, the strongest; ``window`` is in sigmas.
    """

    limit: int = MAX_FRAMES
    window: float = WINDOW_SIGMAS
    seed: int = 0


@dataclass(frozen=True)
class SequenceReport:
    """What was made: name in the set -> patches of the reference, or why it is not there."""

    counts: Mapping[str, int]
    skipped: Mapping[str, str]


def cut_sequence(
    sequence: Sequence, settings: SequenceSettings
) -> tuple[Pixels, dict[str, list[Pixels]]]:
    """(N, 65, 65) patches of the reference; per noise level those of the first five targets.

    Row i shows the same spot in every array.
    """
    image = to_grey(read_image(sequence.reference))
    targets = [(to_grey(read_image(t.image)), t.homography) for t in sequence.targets[:TARGETS]]
    frames = visible_everywhere(reference_frames(image, settings.window), image, targets)
    frames = frames[suppress_overlaps(frames, settings.limit)]
    if len(frames) < 2:
        raise HardnetError("fewer than 2 keypoints are inside all of its images")
    rng = np.random.default_rng([settings.seed, zlib.crc32(sequence.name.encode())])
    patches: dict[str, list[Pixels]] = {level: [] for level in NOISE_LEVELS}
    for target, homography in targets:
        # One draw for the three levels: harder means the same error, scaled up.
        draw = rng.uniform(-1, 1, (len(frames), 6))
        for level, factor in NOISE_LEVELS.items():
            carried = transform(add_noise(frames, draw, factor), homography)
            patches[level].append(cut_patches(target, carried, SIDE))
    return cut_patches(image, frames, SIDE), patches


def reference_frames(image: Pixels, window: float) -> Frames:
    """(N, 2, 3) DoG frames, strongest first, with a window of ``window`` sigmas."""
    frames = dog.detect(image, CANDIDATES)[0]
    frames[:, :, :2] *= window / WINDOW_SIGMAS
    return frames


def visible_everywhere(
    frames: Frames, image: Pixels, targets: list[tuple[Pixels, Floats]]
) -> Frames:
    """The frames whose whole window lies inside the reference and, carried over, every target."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)
    corners = square @ frames[:, :, :2].transpose(0, 2, 1) + frames[:, None, :, 2]
    visible = inside(corners, image.shape).all(1)
    for target, homography in targets:
        visible &= inside(project(homography, corners), target.shape).all(1)
    return frames[visible]


def cut_pair(image: Pixels, frames: Frames, target: Target, limit: int) -> tuple[Pixels, Pixels]:
    """(N, 64, 64) patches of an image and of a target, at most ``limit``, the strongest."""
    other = to_grey(read_image(target.image))
    frames = visible_everywhere(frames, image, [(other, target.homography)])
    carried = transform(frames, target.homography)
    across = 2 * np.linalg.svd(carried[:, :, :2].astype(np.float64), compute_uv=False)[:, -1]
    frames = frames[across >= NARROWEST]
    frames = frames[suppress_overlaps(frames, limit)]
    if len(frames) < 2:
        raise HardnetError("fewer than 2 keypoints are inside both images")
    carried = transform(frames, target.homography)
    return cut_patches(image, frames, PAIR_SIDE), cut_patches(other, carried, PAIR_SIDE)


def camera_moves(sequence: Sequence) -> bool:
    """Whether some homography moves an image corner noticeably; else light or blur changes."""
    height, width = read_image(sequence.reference).shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    moves = [project(target.homography, corners) - corners for target in sequence.targets]
    # A corner behind the second camera is NaN: nothing moves further than that.
    still = np.linalg.norm(moves, axis=-1) <= STILL_CAMERA * np.hypot(width, height)
    return not still.all()


def hpatches_name(sequence: Sequence) -> str:
    """The name with the prefix that HPatches code expects: ``v_`` viewpoint, ``i_`` light."""
    if sequence.name.startswith(("v_", "i_")):
        return sequence.name
    return ("v_" if camera_moves(sequence) else "i_") + sequence.name


def build_from_sequences(
    sequences: Iterable[Sequence],
    output: Path,
    settings: SequenceSettings,
    workers: int,
    progress: Steps = silent,
) -> SequenceReport:
    """Build a patch set in the HPatches layout, of sequences with 5 targets or more.

    The set does not depend on the number of ``workers``.
    """
    every = list(sequences)
    skipped = {
        s.name: f"{len(s.targets)} of the {TARGETS} target images HPatches has"
        for s in every
        if len(s.targets) < TARGETS
    }
    jobs = [(hpatches_name(s), s) for s in every if s.name not in skipped]
    if not jobs:
        raise HardnetError(
            f"no sequence has the {TARGETS} target images HPatches needs: {', '.join(skipped)}; "
            "shorter ones can be written in the W1BS layout"
        )
    names = [name for name, _ in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise HardnetError(f"two sequences would be called {', '.join(twice)}: rename a folder")
    noise = {"shift": SHIFT, "zoom": ZOOM, "turn": TURN, "stretch": STRETCH}
    about = {
        "builder": "sequences",
        "layout": "hpatches",
        "settings": asdict(settings),
        "noise": {**noise, "levels": dict(NOISE_LEVELS)},
    }
    return _write_set(output, _write_sequence, jobs, settings, workers, about, skipped, progress)


def build_photo_pairs(
    sequences: Iterable[Sequence],
    output: Path,
    settings: SequenceSettings,
    workers: int,
    subsets: Mapping[str, str] | None = None,
    progress: Steps = silent,
) -> SequenceReport:
    """Build a patch set in the W1BS layout: one pair SEQUENCE-K per target K of each sequence.

    ``subsets`` maps sequences to subsets; the others go to "viewpoint" or, if the camera does not
    move, to "photometric".
    """
    every, chosen = list(sequences), dict(subsets or {})
    names = [s.name for s in every]
    if unknown := sorted(chosen.keys() - set(names)):
        raise HardnetError(f"no sequence called {', '.join(unknown)}; there are {', '.join(names)}")
    jobs = [
        (chosen.get(s.name) or ("viewpoint" if camera_moves(s) else "photometric"), s)
        for s in every
    ]
    used = {"limit": settings.limit, "window": settings.window}
    about = {"builder": "sequences", "layout": "w1bs", "settings": used}
    return _write_set(output, _write_pairs, jobs, settings, workers, about, {}, progress)


def _write_set(
    output: Path,
    write: Callable[..., dict[str, int | str]],
    jobs: list[tuple[str, Sequence]],
    settings: SequenceSettings,
    workers: int,
    about: dict[str, Any],
    skipped: dict[str, str],
    progress: Steps,
) -> SequenceReport:
    counts: dict[str, int] = {}
    with NewFolder(output) as new:
        writing = partial(write, folder=new.path, settings=settings)
        for done, written in enumerate(map_processes(writing, jobs, workers), 1):
            counts |= {name: n for name, n in written.items() if isinstance(n, int)}
            skipped |= {name: why for name, why in written.items() if isinstance(why, str)}
            progress(done, len(jobs))
        if not counts:
            reasons = "; ".join(f"{name}: {why}" for name, why in skipped.items())
            raise HardnetError(f"no sequence gave patches: {reasons}")
        about |= {"patches": dict(sorted(counts.items())), "skipped": skipped}
        # Hidden: the tools of HPatches take every visible entry of the folder for a sequence.
        name = ".set.json" if about["layout"] == "hpatches" else "set.json"
        new.claim(name).write_text(json.dumps(about, indent=1) + "\n")
    return SequenceReport(counts, skipped)


def _write_sequence(
    job: tuple[str, Sequence], folder: Path, settings: SequenceSettings
) -> dict[str, int | str]:
    name, sequence = job
    try:
        reference, targets = cut_sequence(sequence, settings)
    except HardnetError as error:
        return {sequence.name: str(error)}
    write_sequence(folder / name, reference, targets)
    return {name: len(reference)}


def _write_pairs(
    job: tuple[str, Sequence], folder: Path, settings: SequenceSettings
) -> dict[str, int | str]:
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
            written[f"{subset}/{name}"] = len(first)
    return written
