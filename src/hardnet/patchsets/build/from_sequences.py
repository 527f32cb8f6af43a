"""A patch set in the HPatches layout from image sequences with homographies.

A frame of the reference image is carried to every target by the true homography, with geometric
noise added as a detector would make it, so that a benchmark scores the descriptor alone.
Differences to HPatches: the frames are our DoG frames only (HPatches adds Hessian and Harris), by
default with the window of the pipeline (12 sigma; HPatches takes 5 times the scale), at most 1000
per sequence.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.frames import WINDOW_SIGMAS, Frames, disturb, transform
from hardnet.images import read_image, to_grey
from hardnet.patches import cut_patches
from hardnet.patchsets.build.ordered_map import ordered_map
from hardnet.patchsets.hpatches import SIDE, SPLITS_FILE, TARGETS
from hardnet.patchsets.hpatches_writer import write_sequence, write_splits
from hardnet.patchsets.overlap import suppress_overlaps
from hardnet.patchsets.part_folder import new_folder
from hardnet.patchsets.sequences import Sequence, inside, project
from hardnet.storage import claim

MAX_FRAMES = 1000
"""Frames per sequence, the strongest; HPatches has about 1300 on average."""
CANDIDATES = 10_000
"""Keypoints among which those are looked for: many leave an image or show the same spot."""
SHIFT, ZOOM, TURN, STRETCH = 0.15, 0.15, 10.0, 0.1
"""Easy noise, each the bound of a uniform draw: shift in x and y as a share of the half-size,
log2 of the scale, degrees, log2 of the anisotropy (along a random direction)."""
NOISE_LEVELS: Mapping[str, float] = {"easy": 1.0, "hard": 2.0, "tough": 3.0}
"""Multiples of the easy noise."""
STILL_CAMERA = 0.06
"""Share of the image diagonal by which the corners of a sequence may move and its camera still
count as still: Oxford's bikes, trees and ubc move by at most 0.045, its wall by up to 0.39."""


@dataclass(frozen=True)
class SequenceSettings:
    """What the set is made of; stored beside it in ``set.json``.

    Attributes:
        limit: most frames per sequence, the strongest.
        window: side of the measurement window in sigmas of the keypoint.
        seed: of the noise; the noise of a sequence follows from it and from the sequence's name.
    """

    limit: int = MAX_FRAMES
    window: float = WINDOW_SIGMAS
    seed: int = 0


@dataclass(frozen=True)
class SequencePatches:
    """The patches of one sequence: row i shows the same spot in every array."""

    name: str
    reference: NDArray[np.uint8]
    """(N, S, S)."""
    targets: Mapping[str, list[NDArray[np.uint8]]]
    """Noise level -> one (N, S, S) per target image."""


@dataclass(frozen=True)
class SequenceReport:
    """What a builder made of sequences: patches of the reference by written name."""

    counts: Mapping[str, int]
    skipped: Mapping[str, str]
    """Sequence -> why it is not in the set."""


def cut_sequence(sequence: Sequence, settings: SequenceSettings) -> SequencePatches:
    """Cut the patches of a sequence; the same seed gives the same patches."""
    image = to_grey(read_image(sequence.reference))
    targets = [(to_grey(read_image(t.image)), t.homography) for t in sequence.targets]
    frames = visible_everywhere(reference_frames(image, settings.window), image, targets)
    frames = frames[suppress_overlaps(frames, settings.limit)]
    if len(frames) < 2:
        raise HardnetError(f"{sequence.name}: fewer than 2 keypoints are inside all of its images")
    rng = np.random.default_rng([settings.seed, zlib.crc32(sequence.name.encode())])
    patches: dict[str, list[NDArray[np.uint8]]] = {level: [] for level in NOISE_LEVELS}
    for target, homography in targets:
        # One draw for the three levels: harder is the same error, only larger.
        draw = rng.uniform(-1, 1, (len(frames), 6))
        for level, factor in NOISE_LEVELS.items():
            carried = transform(add_noise(frames, draw, factor), homography)
            patches[level].append(cut_patches(target, carried, SIDE))
    return SequencePatches(sequence.name, cut_patches(image, frames, SIDE), patches)


def reference_frames(image: NDArray[np.uint8], window: float) -> Frames:
    """(N, 2, 3) DoG frames, strongest first, with a window of ``window`` sigmas."""
    frames = dog.detect(image, CANDIDATES)[0]
    frames[:, :, :2] *= window / WINDOW_SIGMAS
    return frames


def visible_everywhere(
    frames: Frames,
    image: NDArray[np.uint8],
    targets: list[tuple[NDArray[np.uint8], NDArray[np.float64]]],
) -> Frames:
    """The frames whose whole window lies inside the reference and, carried over, every target."""
    square = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]], np.float64)
    corners = square @ frames[:, :, :2].transpose(0, 2, 1) + frames[:, None, :, 2]
    visible = inside(corners, image.shape).all(1)
    for target, homography in targets:
        visible &= inside(project(homography, corners), target.shape).all(1)
    return frames[visible]


def add_noise(frames: Frames, draw: NDArray[np.float64], factor: float) -> Frames:
    """Frames with a wrong place, size, orientation and shape, relative to their own size.

    Args:
        frames: (N, 2, 3).
        draw: (N, 6) in [-1, 1]: shift x, shift y, scale, turn, stretch, direction of the stretch.
        factor: multiple of the easy noise.
    """
    shift_x, shift_y, zoom, turn, stretch = factor * draw[:, :5].T
    return disturb(
        frames,
        shift=SHIFT * np.stack([shift_x, shift_y], 1),
        octaves=ZOOM * zoom,
        angle=np.deg2rad(TURN) * turn,
        stretch=STRETCH * stretch,
        axis=draw[:, 5] * (np.pi / 2),
    )


def camera_moves(sequence: Sequence) -> bool:
    """Whether the viewpoint changes: some homography moves an image corner noticeably.

    A sequence whose homographies are (nearly) the identity shows a change of light, blur or
    compression instead.
    """
    height, width = read_image(sequence.reference).shape[:2]
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float64)
    for target in sequence.targets:
        motion = np.linalg.norm(project(target.homography, corners) - corners, axis=1)
        # A corner behind the second camera is NaN: nothing moves further than that.
        if not (motion <= STILL_CAMERA * np.hypot(width, height)).all():
            return True
    return False


def hpatches_name(sequence: Sequence) -> str:
    """The name with the prefix HPatches code reads: ``v_`` viewpoint, ``i_`` illumination."""
    if sequence.name.startswith(("v_", "i_")):
        return sequence.name
    return ("v_" if camera_moves(sequence) else "i_") + sequence.name


def build_from_sequences(
    sequences: Iterable[Sequence],
    output: Path,
    settings: SequenceSettings,
    workers: int,
    progress: Callable[[int, int], None] | None = None,
) -> SequenceReport:
    """Build a patch set in the HPatches layout.

    Args:
        sequences: those with fewer than 5 targets are skipped; of more, the first 5 are used.
        output: the set to write; must not exist.
        settings: see :class:`SequenceSettings`.
        workers: processes; the set does not depend on their number.
        progress: called with (sequences done, sequences in all).
    """
    every = list(sequences)
    skipped = {
        s.name: f"{len(s.targets)} of the {TARGETS} target images HPatches has"
        for s in every
        if len(s.targets) < TARGETS
    }
    usable = [s for s in every if s.name not in skipped]
    if not usable:
        raise HardnetError(
            f"no sequence has the {TARGETS} target images HPatches needs: {', '.join(skipped)}; "
            "shorter ones can be written in the W1BS layout"
        )
    names = [hpatches_name(s) for s in usable]
    if len(set(names)) < len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise HardnetError(f"two sequences would be called {', '.join(twice)}: rename a folder")
    counts: dict[str, int] = {}
    with new_folder(output) as part:
        write = partial(_write_one, settings=settings)
        jobs = [(s, part / name) for s, name in zip(usable, names, strict=True)]
        for done, count in enumerate(ordered_map(write, jobs, workers)):
            if isinstance(count, str):
                skipped[usable[done].name] = count
            else:
                counts[names[done]] = count
            if progress:
                progress(done + 1, len(usable))
        if not counts:
            raise HardnetError("no sequence gave patches: " + "; ".join(skipped.values()))
        write_splits(part / SPLITS_FILE, counts)
        about = {
            "builder": "sequences",
            "layout": "hpatches",
            "settings": asdict(settings),
            "noise": {
                "shift": SHIFT,
                "zoom": ZOOM,
                "turn": TURN,
                "stretch": STRETCH,
                "levels": dict(NOISE_LEVELS),
            },
            "patches": dict(sorted(counts.items())),
            "skipped": skipped,
        }
        claim(part / "set.json").write_text(json.dumps(about, indent=1) + "\n")
    return SequenceReport(counts, skipped)


def _write_one(job: tuple[Sequence, Path], settings: SequenceSettings) -> int | str:
    """Cut one sequence and write it to a folder; its patches, or why there are none."""
    sequence, folder = job
    try:
        cut = cut_sequence(replace(sequence, targets=sequence.targets[:TARGETS]), settings)
    except HardnetError as error:
        return str(error)
    write_sequence(folder, cut.reference, cut.targets)
    return len(cut.reference)
