"""Changes of light: fixed cameras over days, nights and seasons, where the truth is the identity.

The scene does not move between two frames of a fixed camera. So a match is correct if it stays in
place, and nothing has to be estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench import development
from hardnet.bench.development import (
    CORRECT_MATCHES,
    SAME_PLACE,
    Contestant,
    Scene,
    correct_at_precision,
)
from hardnet.bench.metrics import average_precision_at_hits
from hardnet.errors import HardnetError, silent
from hardnet.features import Features
from hardnet.images import list_images
from hardnet.matching.neighbours import match_descriptors

RULES = {
    "matches": "mutual nearest neighbours, sorted by the ratio to the second nearest",
    "correct": f"both keypoints at the same place, to {SAME_PLACE:g} px",
    "ap": (
        "mean, over the keypoints of the first frame that have a keypoint of the second within "
        f"{SAME_PLACE:g} px, of the precision at which each is matched correctly (0 if it is not);"
        " then the mean over the pairs of frames of a camera, then over cameras"
    ),
    "correct matches": CORRECT_MATCHES,
}
"""How frames are compared, in words, for the results file."""


class LightScore(NamedTuple):
    """What one descriptor found between two frames, see ``RULES``.

    ``possible``: keypoints of the first frame that have a partner.
    """

    ap: float
    correct: int
    possible: int


def read_camera(folder: Path) -> Scene[None]:
    """The frames of a fixed camera in a folder, every one with every later one."""
    frames = list_images(folder)
    if len(frames) < 2:
        raise HardnetError(f"{folder} holds one image: a camera needs two frames or more")
    pairs = tuple((a, b, None) for a, b in combinations(frames, 2))
    return Scene(folder.resolve().name, pairs)


def score_pair(a: Features, b: Features, truth: None = None) -> LightScore:
    if a.image_size != b.image_size:
        raise HardnetError(
            f"{a.path} is {a.image_size} pixels and {b.path} {b.image_size}: "
            "the frames of a fixed camera have one size"
        )
    indices, scores = match_descriptors(a.descriptors, b.descriptors, ratio=1.0)
    moved = np.linalg.norm(a.xy[indices[:, 0]] - b.xy[indices[:, 1]], axis=1)
    correct, ratios = moved <= SAME_PLACE, 1 - scores
    possible = int(has_partner(a.xy, b.xy).sum())
    return LightScore(
        average_precision_at_hits(ratios, correct, possible) if possible else 0.0,
        correct_at_precision(ratios, correct),
        possible,
    )


def has_partner(a: ArrayLike, b: ArrayLike) -> NDArray[np.bool_]:
    """Which of the points (N, 2) have one of (M, 2) within ``SAME_PLACE`` pixels: (N,)."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.array([(((y - point) ** 2).sum(1) <= SAME_PLACE**2).any() for point in x], bool)


def compare(
    cameras: Sequence[Scene[None]],
    entrants: Iterable[Contestant],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    def summarise(found: Mapping[str, list[LightScore]]) -> dict[str, Any]:
        ap = {name: [score.ap for score in scores] for name, scores in found.items()}
        facts = {
            name: {
                "correct": float(np.mean([s.correct for s in scores])),
                "possible": float(np.mean([s.possible for s in scores])),
                "pairs": [[round(s.ap, 5), s.correct, s.possible] for s in scores],
            }
            for name, scores in found.items()
        }
        entry = development.summary(cameras, "ap", ap, facts, "cameras")
        for wanted in ("choose", "report"):
            means = [c["correct"] for c in entry["cameras"].values() if c["role"] == wanted]
            entry[wanted]["correct"] = float(np.mean(means)) if means else None
        return entry

    return development.compare(cameras, entrants, score_pair, summarise, advance)
