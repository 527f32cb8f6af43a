"""Changes of light: fixed cameras over days, nights and seasons, where the truth is the identity.

The scene does not move between two frames of a fixed camera. So a match is correct if it stays in
place, and nothing has to be estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench.development import (
    CORRECT_MATCHES,
    SAME_PLACE,
    Contestant,
    Scores,
    correct_at_precision,
    role,
    totals,
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


@dataclass(frozen=True)
class Camera:
    """The frames of a fixed camera."""

    name: str
    frames: tuple[Path, ...]

    @property
    def pairs(self) -> list[tuple[Path, Path]]:
        """Every frame with every later one."""
        return list(combinations(self.frames, 2))


class LightScore(NamedTuple):
    """What one descriptor found between two frames, see ``RULES``.

    ``possible``: keypoints of the first frame that have a partner.
    """

    ap: float
    correct: int
    possible: int


def read_camera(folder: Path) -> Camera:
    """The camera whose frames are in a folder."""
    frames = list_images(folder)
    if len(frames) < 2:
        raise HardnetError(f"{folder} holds one image: a camera needs two frames or more")
    return Camera(folder.resolve().name, tuple(frames))


def score_pair(a: Features, b: Features) -> LightScore:
    """Judge the mutual nearest neighbours of two frames."""
    if a.image_size != b.image_size:
        raise HardnetError(
            f"{a.path} is {a.image_size} pixels and {b.path} {b.image_size}: "
            "the frames of a fixed camera have one size"
        )
    indices, scores = match_descriptors(a.descriptors, b.descriptors, ratio=1.0)
    moved = np.linalg.norm(a.xy[indices[:, 0]] - b.xy[indices[:, 1]], axis=1)
    correct = moved <= SAME_PLACE
    possible = int(has_partner(a.xy, b.xy).sum())
    ratios = 1 - scores
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
    cameras: Sequence[Camera],
    entrants: Iterable[Contestant],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    """One entry per contestant: scores over the cameras of each role, and of every camera."""

    def measure(camera: Camera, extract: Callable[[Path], Features]) -> list[LightScore]:
        features = {path: extract(path) for path in camera.frames}
        scores = []
        for a, b in camera.pairs:
            scores.append(score_pair(features[a], features[b]))
            advance()
        return scores

    return [
        one.names | summarise(cameras, {c.name: measure(c, one.features) for c in cameras})
        for one in entrants
    ]


def summarise(
    cameras: Iterable[Camera], scores: Mapping[str, Sequence[LightScore]]
) -> dict[str, Any]:
    """The entry of one descriptor and setup; see :func:`compare`."""
    pairs = {c.name: [(a.name, b.name) for a, b in c.pairs] for c in cameras}
    ap = {name: Scores([s.ap for s in each], pairs[name]) for name, each in scores.items()}
    correct = {n: Scores([s.correct for s in each], pairs[n]) for n, each in scores.items()}
    entry: dict[str, Any] = dict(totals(ap, "ap"))
    for wanted, found in totals(correct, "correct").items():
        entry[wanted]["correct"] = found["correct"]
    entry["cameras"] = {
        name: {
            "role": role(name),
            "ap": ap[name].mean,
            "correct": correct[name].mean,
            "possible": float(np.mean([s.possible for s in each])),
            "pairs": [[round(s.ap, 5), s.correct, s.possible] for s in each],
        }
        for name, each in scores.items()
    }
    return entry
