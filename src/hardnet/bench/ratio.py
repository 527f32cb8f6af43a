"""The patch metric that orders descriptors as real image pairs do.

A matcher compares an anchor with its true partner and with the most similar wrong patch of the same
image, and trusts a match by how much nearer it is. So all anchors of a reference image are sorted
by the ratio of the two distances, and the score is the average precision of "the partner is
nearer". Patches are cut at frames detected in both images and paired by the known geometry: frames
carried over by the truth would have none of a detector's noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench import development
from hardnet.bench.development import SAME_PLACE, Contestant, Scene
from hardnet.bench.metrics import Floats, average_precision_at_hits
from hardnet.errors import silent
from hardnet.features import Features
from hardnet.frames import Frames, centres, transform
from hardnet.images import list_images
from hardnet.matching.neighbours import distance_matrix
from hardnet.patchsets.sequences import find_sequences, has_sequences

MAX_OVERLAP_ERROR = 0.4
"""Largest part of the union of two ellipses that is not in both."""
RADIUS = 30.0
"""Pixels; the size to which ellipses are scaled before they are compared."""
_CHORDS = 50
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
class Anchors:
    """The anchors of a reference image in another: (K,) rows of the frames of each.

    ``negatives`` (K, M): which frames of the other image may be negatives.
    """

    anchor: NDArray[np.intp]
    partner: NDArray[np.intp]
    negatives: NDArray[np.bool_]


def read_patch_scenes(folder: Path | str) -> list[Scene[Floats]]:
    """The sequences of a folder (reference with every target), or its frames of a fixed camera.

    The truth is the (3, 3) homography from the first image to the second.
    """
    folder = Path(folder)
    if has_sequences(folder):
        return [
            Scene(s.name, tuple((s.reference, t.image, t.homography) for t in s.targets))
            for s in find_sequences([folder])
        ]
    frames = combinations(list_images(folder), 2)
    return [Scene(folder.resolve().name, tuple((a, b, np.eye(3)) for a, b in frames))]


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
    scenes: Sequence[Scene[Floats]],
    entrants: Iterable[Contestant],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    def score(a: Features, b: Features, homography: Floats) -> tuple[float | None, int]:
        anchors = pair_frames(a.frames, b.frames, homography)
        return score_pair(a.descriptors, b.descriptors, anchors), len(anchors.anchor)

    def summarise(found: Mapping[str, list[tuple[float | None, int]]]) -> dict[str, Any]:
        ap = {name: [score for score, _ in each] for name, each in found.items()}
        counts = {name: {"anchors": sum(n for _, n in each)} for name, each in found.items()}
        return development.summary(scenes, "ap", ap, counts)

    return development.compare(scenes, entrants, score, summarise, advance)


def _turn(a: Frames, b: Frames) -> Floats:
    """(N,) degrees between two frames: the rotation that is left of b after undoing a's."""
    relative = np.linalg.solve(a[:, :, :2].astype(np.float64), b[:, :, :2].astype(np.float64))
    sine = relative[:, 1, 0] - relative[:, 0, 1]
    cosine = relative[:, 0, 0] + relative[:, 1, 1]
    return np.abs(np.rad2deg(np.arctan2(sine, cosine)))


def overlap_errors(first: Frames, second: Frames) -> Floats:
    """(N,) one minus intersection over union of pairs of ellipses, (N, 2, 3) each.

    The first is scaled about its centre to the area of a circle of ``RADIUS`` pixels, the second
    about its own by the same factor.
    """
    a, b = (frames[:, :, :2].astype(np.float64) for frames in (first, second))
    shift = second[:, :, 2].astype(np.float64) - first[:, :, 2]
    factor = RADIUS / np.sqrt(np.abs(np.linalg.det(a)))
    # In the coordinates of the first frame, its ellipse is the unit circle.
    inverse = np.linalg.inv(a)
    shape = inverse @ b
    centre = (inverse @ shift[:, :, None])[:, :, 0] / factor[:, None]
    both = _circle_overlap(shape, centre)
    area = np.pi * np.abs(np.linalg.det(shape))
    return np.asarray(1 - both / (np.pi + area - both))


def _circle_overlap(shape: Floats, centre: Floats) -> Floats:
    """Area common to the unit circle and ellipses (N, 2, 2) at (N, 2), summed over chords."""
    t = (np.arange(_CHORDS) + 0.5) * (np.pi / _CHORDS)
    spread = shape @ shape.swapaxes(1, 2)
    xx, xy = spread[:, 0, 0, None], spread[:, 0, 1, None]
    det = np.linalg.det(spread)[:, None]
    # Chords cover the common range and are denser at its ends, where the edges are steep.
    left = np.maximum(centre[:, :1] - np.sqrt(xx), -1)
    right = np.minimum(centre[:, :1] + np.sqrt(xx), 1)
    reach = np.maximum(right - left, 0) / 2
    x = (left + right) / 2 + reach * np.cos(t)
    width = reach * np.sin(t) * (np.pi / _CHORDS)
    edge = np.sqrt(np.maximum(1 - x * x, 0))
    u = x - centre[:, :1]
    # The ellipse above u: v = v0 +- h, from p^T spread^-1 p = 1.
    middle = centre[:, 1:] + xy / xx * u
    half = np.sqrt(np.maximum(det * (xx - u * u), 0)) / xx
    top = np.minimum(middle + half, edge)
    bottom = np.maximum(middle - half, -edge)
    return np.asarray((np.maximum(top - bottom, 0) * width).sum(1))


def one_to_one(
    a: NDArray[np.intp], b: NDArray[np.intp], cost: Floats
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """The pairs that remain if each index is used once, cheapest first, sorted by the first."""
    used_a: set[int] = set()
    used_b: set[int] = set()
    kept = []
    order = np.lexsort((b, a, cost))
    for i, j in zip(a[order].tolist(), b[order].tolist(), strict=True):
        if i not in used_a and j not in used_b:
            used_a.add(i)
            used_b.add(j)
            kept.append((i, j))
    table = np.array(sorted(kept), np.intp).reshape(-1, 2)
    return table[:, 0], table[:, 1]
