"""Real photographs with a true homography: are the matches of the users' pipeline correct?

The keypoints of an image are detected and cut once, and every descriptor gets the same patches, so
that descriptors are compared and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

import hardnet
from hardnet.bench.development import Setup
from hardnet.bench.metrics import Floats
from hardnet.errors import silent
from hardnet.matching.geometry import transfer_error
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
    for sequence in sequences:
        features = Setup(keypoints=keypoints).describer()
        for label, descriptor in descriptors.items():
            first, *others = (features(descriptor, path) for path in sequence.files)
            for target, other in zip(sequence.targets, others, strict=True):
                matches = hardnet.match(first, other, model="homography")
                where = {"sequence": sequence.name, "target": target.name, "descriptor": label}
                rows.append(where | score_pair(matches, target.homography))
                advance()
    return rows


def score_pair(matches: hardnet.Matches, homography: Floats) -> dict[str, Any]:
    """Judge the matches of one pair by the true homography.

    ``grid_error`` is the mean error of the estimated homography in pixels; None without one.
    """
    a, b = matches.xy_a.astype(np.float64), matches.xy_b.astype(np.float64)
    correct = transfer_error(homography, a, b) <= CORRECT_PIXELS
    inliers, grid_error = np.asarray(matches.inliers, bool), None
    if matches.geometry.kind == "homography" and matches.geometry.model is not None:
        sizes = matches.a.image_size, matches.b.image_size
        grid_error = homography_error(matches.geometry.model, homography, *sizes)
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
