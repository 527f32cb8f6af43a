"""The patch metric that orders descriptors as real image pairs do.

A matcher compares an anchor with its true partner and with the most similar wrong patch of the same
image, and trusts a match by how much nearer it is. So all anchors of a reference image are sorted
by the ratio of the two distances, and the score is the average precision of "the partner is
nearer". Patches are cut at frames detected in both images and paired by the known geometry: frames
carried over by the truth would have none of a detector's noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.development import SAME_PLACE, Contestant, Scores, role, totals
from hardnet.bench.metrics import Floats, average_precision_at_hits
from hardnet.bench.pairs import MAX_OVERLAP_ERROR, one_to_one, overlap_errors
from hardnet.errors import silent
from hardnet.features import Features
from hardnet.frames import Frames, centres, transform
from hardnet.images import list_images
from hardnet.matching.neighbours import distance_matrix
from hardnet.patchsets.sequences import find_sequences, has_sequences

MAX_TURN = 30.0
"""Degrees between two frames of a pair: a descriptor cannot undo a wrong orientation."""
REACH = 0.25
"""Radius around the true place without negatives, in window sides (at least ``SAME_PLACE`` pixels):
patches there show the same thing."""

RULES = {
    "pairs": (
        f"frames detected in both images, within {SAME_PLACE:g} px and {MAX_TURN:g} degrees of "
        f"each other under the known geometry, ellipses overlapping by {1 - MAX_OVERLAP_ERROR:.0%};"
        " each frame is in one pair, closest places first"
    ),
    "negative": (
        "the most similar patch of the other image whose centre lies farther than "
        f"{REACH:g} window sides (at least {SAME_PLACE:g} px) from the true place"
    ),
    "ap": (
        "anchors sorted by the ratio of the smaller to the larger of d(partner) and d(negative), "
        "correct if the partner is nearer; precision at the correct ones, averaged over all "
        "anchors of an image; "
        "then the mean over the image pairs of a scene, then over scenes"
    ),
}
"""How patches are paired and judged, in words, for the results file."""


@dataclass(frozen=True, eq=False)
class PatchScene:
    """Images of one scene: (reference, other, (3, 3) homography from the one to the other)."""

    name: str
    pairs: tuple[tuple[Path, Path, Floats], ...]


@dataclass(frozen=True, eq=False)
class Anchors:
    """The anchors of a reference image in another: (K,) rows of the frames of each.

    ``negatives`` (K, M): which frames of the other image may be negatives.
    """

    anchor: NDArray[np.intp]
    partner: NDArray[np.intp]
    negatives: NDArray[np.bool_]


def read_patch_scenes(folder: Path | str) -> list[PatchScene]:
    """The sequences of a folder (reference with every target), or its frames of a fixed camera."""
    folder = Path(folder)
    if has_sequences(folder):
        return [
            PatchScene(s.name, tuple((s.reference, t.image, t.homography) for t in s.targets))
            for s in find_sequences([folder])
        ]
    frames = combinations(list_images(folder), 2)
    return [PatchScene(folder.resolve().name, tuple((a, b, np.eye(3)) for a, b in frames))]


def pair_frames(a: Frames, b: Frames, homography: Floats) -> Anchors:
    """Pair the frames of two images, (N, 2, 3) and (M, 2, 3), by geometry; see ``RULES``."""
    carried = transform(a, homography)
    xy, places = centres(carried).astype(np.float64), centres(b).astype(np.float64)
    distance = np.linalg.norm(xy[:, None] - places[None], axis=2)  # NaN behind the camera
    i, j = np.nonzero(distance <= SAME_PLACE)
    alike = _turn(carried[i], b[j]) <= MAX_TURN
    i, j = i[alike], j[alike]
    alike = overlap_errors(carried[i], b[j]) <= MAX_OVERLAP_ERROR
    i, j = i[alike], j[alike]
    first, second = one_to_one(i, j, distance[i, j])
    side = 2 * np.sqrt(np.abs(np.linalg.det(carried[first][:, :, :2].astype(np.float64))))
    reach = np.maximum(REACH * side, SAME_PLACE)
    return Anchors(first, second, distance[first] > reach[:, None])


def ratio_ap(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> float:
    """Average precision of "the partner is nearer", the surest anchors first.

    From the (K,) distances of each anchor to its partner and to its hardest negative.
    """
    near, far = np.minimum(positive, negative), np.maximum(positive, negative)
    ratio = np.where(far > 0, near / np.where(far > 0, far, 1), 1.0)  # two copies: undecided
    return average_precision_at_hits(ratio, positive < negative, len(positive))


def score_pair(a: NDArray[Any], b: NDArray[Any], anchors: Anchors) -> float | None:
    """The score of the descriptors (N, D) and (M, D) of two images; None without anchors."""
    if not len(anchors.anchor):
        return None
    distance = distance_matrix(a[anchors.anchor], b)
    positive = distance[np.arange(len(distance)), anchors.partner]
    negative = np.where(anchors.negatives, distance, np.inf).min(1)
    decided = np.isfinite(negative)
    return ratio_ap(positive[decided], negative[decided]) if decided.any() else None


def compare(
    scenes: Sequence[PatchScene],
    entrants: Iterable[Contestant],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    """One entry per contestant: mean AP over the scenes of each role, and each scene."""

    def measure(scene: PatchScene, extract: Callable[[Path], Features]) -> tuple[Scores, int]:
        features = {path: extract(path) for pair in scene.pairs for path in pair[:2]}
        values, names, count = [], [], 0
        for a, b, homography in scene.pairs:
            anchors = pair_frames(features[a].frames, features[b].frames, homography)
            count += len(anchors.anchor)
            score = score_pair(features[a].descriptors, features[b].descriptors, anchors)
            if score is not None:
                values.append(score)
                names.append((a.name, b.name))
            advance()
        return Scores(values, names), count

    entries = []
    for one in entrants:
        found = {scene.name: measure(scene, one.features) for scene in scenes}
        scores = {name: each for name, (each, _) in found.items() if each.values}
        of_scenes = {
            name: {"role": role(name), "ap": each.mean, "anchors": found[name][1]}
            for name, each in scores.items()
        }
        entries.append(one.names | totals(scores, "ap") | {"scenes": of_scenes})
    return entries


def _turn(a: Frames, b: Frames) -> Floats:
    """(N,) degrees between two frames: the rotation that is left of b after undoing a's."""
    relative = np.linalg.solve(a[:, :, :2].astype(np.float64), b[:, :, :2].astype(np.float64))
    sine = relative[:, 1, 0] - relative[:, 0, 1]
    cosine = relative[:, 0, 0] + relative[:, 1, 1]
    return np.abs(np.rad2deg(np.arctan2(sine, cosine)))
