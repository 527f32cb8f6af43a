"""Real photographs with a true homography: are matches correct, are frames repeatable?

:func:`compare` judges descriptors with the pipeline that users run. The keypoints of an image are
detected and cut once, and every descriptor gets the same patches, so that descriptors are compared
and nothing else. :func:`repeatability` judges detectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

import hardnet
from hardnet import detectors
from hardnet.bench.metrics import Floats
from hardnet.errors import silent
from hardnet.features import describe, find, prepare
from hardnet.frames import Frames, centres, transform
from hardnet.patchsets.sequences import Sequence, inside, project

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor


CORRECT_PIXELS = 3.0
MIN_CORRECT_INLIERS = 15
MAX_GRID_ERROR = 5.0
_GRID = 20  # points per side

RULES = {
    "correct": f"a match within {CORRECT_PIXELS:g} px of where the true homography puts it",
    "verified": (
        f"at least {MIN_CORRECT_INLIERS} correct inliers, and the estimated homography is within"
        f" {MAX_GRID_ERROR:g} px of the true one, on average over those points of a"
        f" {_GRID} x {_GRID} grid on image 1 that image 2 shows"
    ),
}
"""How a match and a pair are judged, in words, for the results file."""


def compare(
    sequences: Iterable[Sequence],
    descriptors: Mapping[str, Descriptor],
    keypoints: int,
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    """One row per pair (reference, target) and descriptor: its names and :func:`score_pair`."""
    rows = []
    detect = detectors.load("dog")
    for sequence in sequences:
        found = [find(prepare(path), detect, keypoints) for path in sequence.files]
        for label, descriptor in descriptors.items():
            features = [describe(each, descriptor) for each in found]
            for target, other in zip(sequence.targets, features[1:], strict=True):
                matches = hardnet.match(features[0], other, model="homography")
                score = score_pair(
                    matches, target.homography, features[0].image_size, other.image_size
                )
                where = {"sequence": sequence.name, "target": target.name, "descriptor": label}
                rows.append(where | score)
                advance()
    return rows


def score_pair(
    matches: hardnet.Matches, homography: Floats, size_a: tuple[int, int], size_b: tuple[int, int]
) -> dict[str, Any]:
    """Judge the matches of one pair by the true homography; sizes are (width, height).

    ``grid_error`` is the mean error of the estimated homography in pixels; None without one.
    """
    error = np.linalg.norm(project(homography, matches.xy_a) - matches.xy_b, axis=1)
    correct = error <= CORRECT_PIXELS  # NaN, behind the camera, is not
    inliers = np.asarray(matches.inliers, bool)
    grid_error = None
    if matches.geometry.kind == "homography" and matches.geometry.model is not None:
        grid_error = homography_error(matches.geometry.model, homography, size_a, size_b)
    found = int((correct & inliers).sum())
    near = grid_error is not None and grid_error <= MAX_GRID_ERROR
    return {
        "tentative": len(correct),
        "correct": int(correct.sum()),
        "inliers": int(inliers.sum()),
        "correct_inliers": found,
        "grid_error": grid_error,
        "verified": found >= MIN_CORRECT_INLIERS and near,
    }


def homography_error(
    estimate: Floats, truth: Floats, size_a: tuple[int, int], size_b: tuple[int, int]
) -> float | None:
    """Mean distance, in pixels of image b, between two homographies on the part both images show.

    None if the images share no grid point, or the estimate puts one behind the camera.
    """
    ticks = [np.linspace(0, side - 1, _GRID) for side in size_a]
    grid = np.stack(np.meshgrid(*ticks), -1).reshape(-1, 2)
    target = project(truth, grid)
    visible = inside(target, (size_b[1], size_b[0]))
    sign = np.sign(np.linalg.det(estimate))
    error = np.linalg.norm(project(estimate * sign, grid[visible]) - target[visible], axis=1)
    return float(error.mean()) if len(error) and np.isfinite(error).all() else None


def summarise(rows: Iterable[Mapping[str, Any]], key: str) -> dict[str, dict[str, dict[str, int]]]:
    """Totals of the rows: descriptor -> value of ``key`` (e.g. "sequence") and "all" -> counts."""
    fields = ("tentative", "correct", "inliers", "correct_inliers", "verified")
    totals: dict[str, dict[str, dict[str, int]]] = {}
    for row in rows:
        groups = totals.setdefault(row["descriptor"], {})
        for group in (row[key], "all"):
            counts = groups.setdefault(group, dict.fromkeys(("pairs", *fields), 0))
            counts["pairs"] += 1
            for field in fields:
                counts[field] += int(row[field])
    return totals


MAX_OVERLAP_ERROR = 0.4
"""Largest part of the union of two ellipses that is not in both."""

MAX_DISTANCE = 3.0
"""Pixels between the centres, for the variant that compares places only."""

RADIUS = 30.0
"""Pixels; the size to which ellipses are scaled before they are compared."""

_CHORDS = 50
_CHUNK = 20_000  # pairs of ellipses at a time


@dataclass(frozen=True)
class Repeatability:
    """How many frames of two images correspond, by ellipse overlap and by the distance of centres.

    ``visible``: frames of each image whose centre the other image shows.
    """

    visible: tuple[int, int]
    by_overlap: int
    by_distance: int

    @property
    def overlap(self) -> float:
        """Share of the frames visible in both that repeat, by overlap; 0 without frames."""
        return self.by_overlap / max(min(self.visible), 1)

    @property
    def distance(self) -> float:
        """The same, by distance."""
        return self.by_distance / max(min(self.visible), 1)


def repeatability(
    frames_a: Frames,
    frames_b: Frames,
    homography: ArrayLike,
    size_a: tuple[int, int],
    size_b: tuple[int, int],
) -> Repeatability:
    """Do (N, 2, 3) and (M, 2, 3) frames of one scene repeat (Mikolajczyk et al. 2005)?

    Frames of both images count if their centre is visible in the other. A frame of image a, carried
    to image b by the true homography, corresponds to a frame of b if their ellipses overlap enough.
    Each frame corresponds to at most one other, the best overlaps first. Larger ellipses overlap
    more easily, so every pair is scaled, about its own centres, until the carried ellipse has the
    area of a circle of ``RADIUS``: the unit of the frames (their measurement window) does not
    matter.
    """
    forth = np.asarray(homography, np.float64)
    forth = forth * np.sign(np.linalg.det(forth))
    in_b = inside(project(forth, centres(frames_a)), size_b[::-1])
    in_a = inside(project(np.linalg.inv(forth), centres(frames_b)), size_a[::-1])
    carried, there = transform(frames_a[in_b], forth), frames_b[in_a]
    a, b = _candidates(carried, there)
    distance = np.linalg.norm(centres(carried)[a] - centres(there)[b], axis=1).astype(np.float64)
    error = np.ones(len(a))
    areas = [np.abs(np.linalg.det(f[:, :, :2].astype(np.float64))) for f in (carried[a], there[b])]
    # Others could not overlap enough even if one lay within the other.
    possible = np.flatnonzero(np.minimum(*areas) > (1 - MAX_OVERLAP_ERROR) * np.maximum(*areas))
    for start in range(0, len(possible), _CHUNK):
        part = possible[start : start + _CHUNK]
        error[part] = overlap_errors(carried[a[part]], there[b[part]])
    near, alike = distance < MAX_DISTANCE, error < MAX_OVERLAP_ERROR
    return Repeatability(
        (len(carried), len(there)),
        len(one_to_one(a[alike], b[alike], error[alike])[0]),
        len(one_to_one(a[near], b[near], distance[near])[0]),
    )


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


def _candidates(first: Frames, second: Frames) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    axes = np.linalg.svd(first[:, :, :2].astype(np.float64), compute_uv=False)
    # If a centre lies outside the other ellipse, half of its own ellipse does too.
    reach = np.maximum(RADIUS * np.sqrt(axes[:, 0] / axes[:, 1]), MAX_DISTANCE)
    a, b = centres(first).astype(np.float64), centres(second).astype(np.float64)
    i, j = np.nonzero(np.abs(a[:, None] - b[None]).max(2, initial=0) <= reach[:, None])
    return i, j
