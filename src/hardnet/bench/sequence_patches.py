"""HPatches-style patches from image sequences, and the matching task on them.

A frame of the reference image is carried to every target by the true homography, with geometric
noise added as a detector would make it, so that the score is that of the descriptor alone.
Differences to HPatches: the frames are our DoG frames only (HPatches adds Hessian and Harris) with
the window of the pipeline (12 sigma; HPatches takes 5 times the scale), at most 1000 per sequence.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.metrics import average_precision_at_hits, average_precision_trapezoid
from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.frames import Frames, disturb, transform
from hardnet.images import read_image, to_grey
from hardnet.patches import cut_patches
from hardnet.patchsets.overlap import suppress_overlaps
from hardnet.patchsets.sequences import Sequence, inside, project

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor

PATCH_SIDE = 65
"""Pixels, as on disk in HPatches; the descriptors resize to what they read."""
MAX_FRAMES = 1000
"""Frames per sequence, the strongest; HPatches has about 1300 on average."""
CANDIDATES = 10_000
"""Keypoints among which those are looked for: many leave an image or show the same spot."""
SHIFT, ZOOM, TURN, STRETCH = 0.15, 0.15, 10.0, 0.1
"""Easy noise, each the bound of a uniform draw: shift in x and y as a share of the half-size,
log2 of the scale, degrees, log2 of the anisotropy (along a random direction)."""
NOISE_LEVELS: Mapping[str, float] = {"easy": 1.0, "hard": 2.0, "tough": 3.0}
"""Multiples of the easy noise."""


@dataclass(frozen=True)
class SequencePatches:
    """The patches of one sequence: row i shows the same spot in every array."""

    name: str
    reference: NDArray[np.uint8]
    """(N, S, S)."""
    targets: Mapping[str, list[NDArray[np.uint8]]]
    """Noise level -> one (N, S, S) per target image."""


@dataclass(frozen=True)
class MatchingScore:
    """Matching average precision, mean over the targets of a sequence, in both conventions."""

    trapezoid: float
    hits: float


def cut_sequence(sequence: Sequence, limit: int = MAX_FRAMES, seed: int = 0) -> SequencePatches:
    """Cut the patches of a sequence; the same seed gives the same patches."""
    image = to_grey(read_image(sequence.reference))
    targets = [(to_grey(read_image(t.image)), t.homography) for t in sequence.targets]
    frames = visible_everywhere(dog.detect(image, CANDIDATES)[0], image, targets)
    frames = frames[suppress_overlaps(frames, limit)]
    if len(frames) < 2:
        raise HardnetError(f"{sequence.name}: fewer than 2 keypoints are inside all of its images")
    rng = np.random.default_rng([seed, zlib.crc32(sequence.name.encode())])
    patches: dict[str, list[NDArray[np.uint8]]] = {level: [] for level in NOISE_LEVELS}
    for target, homography in targets:
        # One draw for the three levels: harder is the same error, only larger.
        draw = rng.uniform(-1, 1, (len(frames), 6))
        for level, factor in NOISE_LEVELS.items():
            carried = transform(add_noise(frames, draw, factor), homography)
            patches[level].append(cut_patches(target, carried, PATCH_SIDE))
    return SequencePatches(sequence.name, cut_patches(image, frames, PATCH_SIDE), patches)


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


def score_sequence(patches: SequencePatches, describe: Descriptor) -> dict[str, MatchingScore]:
    """Matching AP of one descriptor per noise level."""
    reference = describe(patches.reference)
    scores = {}
    for level, targets in patches.targets.items():
        each = [matching_ap(reference, describe(target)) for target in targets]
        scores[level] = MatchingScore(
            float(np.mean([s.trapezoid for s in each])), float(np.mean([s.hits for s in each]))
        )
    return scores


def compare(
    sequences: Iterable[Sequence],
    descriptors: Mapping[str, Descriptor],
    limit: int = MAX_FRAMES,
    seed: int = 0,
    advance: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """Score every descriptor on the same patches of every sequence.

    Args:
        sequences: where the patches come from.
        descriptors: label -> descriptor.
        limit: most frames per sequence; the score falls as it grows.
        seed: of the noise.
        advance: called after each sequence and descriptor.

    Returns:
        One row per sequence, descriptor and noise level: those three, the number of patches, and
        the average precision in both conventions ("trapezoid", "hits").
    """
    rows = []
    for sequence in sequences:
        patches = cut_sequence(sequence, limit, seed)
        for label, describe in descriptors.items():
            for level, score in score_sequence(patches, describe).items():
                where = {"sequence": sequence.name, "descriptor": label, "noise": level}
                rows.append(where | {"patches": len(patches.reference)} | asdict(score))
            advance()
    return rows


def summarise(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, dict[str, float]]:
    """Mean trapezoid AP: descriptor -> value of ``key`` ("noise" or "sequence") and "all" -> AP.

    Every sequence and every noise level counts the same.
    """
    values: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        groups = values.setdefault(row["descriptor"], {})
        for group in (row[key], "all"):
            groups.setdefault(group, []).append(row["trapezoid"])
    return {
        label: {group: float(np.mean(each)) for group, each in groups.items()}
        for label, groups in values.items()
    }


def matching_ap(reference: NDArray[np.float32], target: NDArray[np.float32]) -> MatchingScore:
    """The HPatches matching task for one pair of images.

    Every reference descriptor is matched to its nearest target descriptor, which is correct if it
    has the same index; the answers are ranked by distance; all reference patches count as positive.

    Args:
        reference: (N, D) unit descriptors.
        target: (N, D), row i of the same spot.
    """
    if not len(reference):
        return MatchingScore(0.0, 0.0)
    similarity = reference @ target.T
    nearest = similarity.argmax(1)
    index = np.arange(len(reference))
    distance = np.linalg.norm(reference - target[nearest], axis=1)
    correct = nearest == index
    return MatchingScore(
        average_precision_trapezoid(distance, correct, len(index)),
        average_precision_at_hits(distance, correct, len(index)),
    )
