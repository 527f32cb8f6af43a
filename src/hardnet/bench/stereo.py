"""The stereo benchmark: every detector, pair and descriptor once, and when a pair is matched.

Every measurement is cached, so that an interrupted run continues where it was. The paper follows
the protocol of the WxBS paper, whose exact rule is not available. All readings of it that we know
are here; the results keep the measurements, so that any of them can be applied later.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hardnet
from hardnet import detectors
from hardnet.bench.development import Setup, label_of
from hardnet.bench.metrics import (
    Interval,
    auc_steps,
    corner_error,
    eight_point,
    mean_interval,
    share_within,
    symmetric_distance,
)
from hardnet.bench.pairs import MAX_GRID_ERROR, MIN_CORRECT_INLIERS, homography_error
from hardnet.bench.stereo_sets import OpenSet
from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError, silent
from hardnet.features import KEYPOINTS, MAX_SIZE, Features
from hardnet.image_files import file_digest
from hardnet.matching.geometry import sampson_error, transfer_error
from hardnet.matching.matches import MODS, Strategy
from hardnet.patchsets.sequences import ImagePair
from hardnet.provenance import PIPELINE, Cache, descriptor_digest, versions

_IMAGES = 2  # image 1 of a sequence, and the one it is matched with
PairModel = Literal["by-truth", "homography", "fundamental"]
STRATEGIES: Mapping[str, Strategy] = {
    "default": Strategy(),
    "mods": MODS,
    "mods-degensac": replace(MODS, estimator="degensac"),
}
"""What ``--strategy`` takes; "mods-degensac" needs pydegensac."""


@dataclass(frozen=True)
class Protocol:
    """What happens to every pair.

    ``model`` is the geometry that is fitted; "by-truth": a homography where the ground truth is
    one, a fundamental matrix where it is correspondences, either where there is none.
    """

    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    model: PairModel = "by-truth"
    strategy: Strategy = field(default_factory=Strategy)

    def geometry_of(self, pair: ImagePair) -> Literal["auto", "homography", "fundamental"]:
        """The ``model`` that ``hardnet.match`` is given for a pair."""
        if self.model != "by-truth":
            return self.model
        if pair.truth == "none":
            return "auto"
        return "homography" if pair.truth == "homography" else "fundamental"


def compare(
    sets: Iterable[OpenSet],
    descriptors: Mapping[str, Descriptor],
    detector_names: Sequence[str],
    protocol: Protocol,
    store: Path | None = None,
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    """Measure every descriptor on every pair with every detector.

    One row per set, pair, detector and descriptor, with these names, the kind of ground truth and
    the numbers of :func:`measure`. ``store``: folder of the cache; the user's by default.
    """
    kept = Cache("stereo", store)
    digests = {label: descriptor_digest(each) for label, each in descriptors.items()}
    todo = [(s.name, pair, label) for s in sets for pair in s.pairs for label in descriptors]
    rows = []
    for name in detector_names:
        setup = Setup(name, protocol.upright, protocol.keypoints, protocol.max_size)
        measured = _measurer(setup, descriptors, protocol)
        about = {
            "detector": [name.partition(":")[0], *detectors.weights(name)],
            "protocol": asdict(protocol),
            "versions": versions(PIPELINE),
        }
        for set_name, pair, label in todo:
            of_pair = {"pair": pair_digest(pair), "descriptor": digests[label]}
            found = kept.json(about | of_pair, partial(measured, pair, label))
            where = {"set": set_name, "pair": pair.name, "truth": pair.truth}
            rows.append(where | {"detector": label_of(name), "descriptor": label} | found)
            advance()
    return rows


def _measurer(
    setup: Setup, descriptors: Mapping[str, Descriptor], protocol: Protocol
) -> Callable[[ImagePair, str], dict[str, Any]]:
    features = setup.describer(_IMAGES)

    @lru_cache(_IMAGES * len(descriptors))
    def described(path: Path, label: str) -> Features:
        return features(descriptors[label], path)

    def measured(pair: ImagePair, label: str) -> dict[str, Any]:
        a, b = described(pair.first, label), described(pair.second, label)
        model, strategy = protocol.geometry_of(pair), protocol.strategy
        return measure(hardnet.match(a, b, model=model, strategy=strategy), pair)

    return measured


def pair_digest(pair: ImagePair) -> str:
    """Identifies a pair by the content of its images and its ground truth."""
    digest = hashlib.sha256()
    for image in (pair.first, pair.second):
        digest.update(_image_digest(image).encode())
    for truth in (pair.homography, pair.correspondences):
        digest.update(b"|" if truth is None else truth.tobytes() + b"|")
    return digest.hexdigest()


@cache
def _image_digest(path: Path) -> str:
    try:
        return file_digest(path)
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error


CORRECT_PIXELS = 4.0
"""MODS's threshold: a match this near to where the truth puts it (its point, or its epipolar line
by Sampson's distance) is correct.

An epipolar line is a weak truth: some matches to a random place lie this near to it, and the lines
of few correspondences are inexact, so that right matches are rejected."""


def measure(matches: hardnet.Matches, pair: ImagePair) -> dict[str, Any]:
    """The numbers of one pair; None if the ground truth does not define them.

    ``correct`` and ``correct_inliers`` are the right ones of the matches before and after
    verification. ``grid_error`` and ``corner_error`` are mean pixels between the estimated and the
    true homography where both images show the scene, and over the corners of image a; None also
    without an estimate (``has_corners``: whether one could have a corner error). ``accuracy``:
    share of the tentative matches within 1, 2, ... 10 px of the true homography; ``agreement``:
    share of the correspondences picked by hand as near to the estimated geometry (0 without one).
    """
    a, b = matches.xy_a.astype(np.float64), matches.xy_b.astype(np.float64)
    inliers = np.asarray(matches.inliers, bool)
    kind, model = matches.geometry.kind, matches.geometry.model
    unknown = ("correct", "correct_inliers", "grid_error", "corner_error")
    facts: dict[str, Any] = {
        "tentative": len(inliers),
        "inliers": int(inliers.sum()),
        "geometry": kind,
        **dict.fromkeys(unknown),
        "has_corners": False,
        "accuracy": None,
        "agreement": None,
    }
    if (truth := pair.homography) is not None:
        sizes = matches.a.image_size, matches.b.image_size
        errors = transfer_error(truth, a, b)
        facts["has_corners"] = corner_error(truth, truth, sizes[0]) is not None
        facts["accuracy"] = share_within(errors, THRESHOLDS).tolist()
        if kind == "homography" and model is not None:
            corners = corner_error(model, truth, sizes[0])
            facts["grid_error"] = homography_error(model, truth, *sizes)
            facts["corner_error"] = None if corners is None or np.isinf(corners) else corners
    elif pair.correspondences is not None:
        x, y = pair.correspondences[:, :2], pair.correspondences[:, 2:]
        errors = sampson_error(eight_point(x, y), a, b)
        apart = np.full(len(x), np.inf)
        if kind is not None and model is not None:
            apart = (transfer_error if kind == "homography" else symmetric_distance)(model, x, y)
        facts["agreement"] = share_within(apart, THRESHOLDS).tolist()
    if pair.truth != "none":
        correct = errors <= CORRECT_PIXELS
        facts["correct"] = int(correct.sum())
        facts["correct_inliers"] = int((correct & inliers).sum())
    return facts


THRESHOLDS = tuple(range(1, 11))
"""Pixels at which matching accuracy and agreement are given."""
AUC_PIXELS = (3, 5, 10)
Row = Mapping[str, Any]
AGREEMENT_PIXELS = 5
MIN_AGREEMENT = 0.5


@dataclass(frozen=True)
class Rule:
    """When a pair is matched.

    It needs at least ``needed`` inliers, with ``correct`` right ones, and with ``geometry`` a
    correct estimate. Without ground truth all verified inliers count.
    """

    needed: int
    about: str
    correct: bool = False
    geometry: bool = False

    def counted(self, row: Row) -> int:
        """The inliers that this rule counts of a row, which has the fields of :func:`measure`."""
        right = row["correct_inliers"]
        return int(right if self.correct and right is not None else row["inliers"])

    def matched(self, row: Row) -> bool:
        if self.counted(row) < self.needed or not self.geometry:
            return self.counted(row) >= self.needed
        if row["agreement"] is not None:
            return bool(row["agreement"][THRESHOLDS.index(AGREEMENT_PIXELS)] >= MIN_AGREEMENT)
        if row["correct_inliers"] is None:
            return row["geometry"] is not None
        return row["grid_error"] is not None and row["grid_error"] <= MAX_GRID_ERROR


_ENOUGH = f"at least {MIN_CORRECT_INLIERS} inliers within {CORRECT_PIXELS:g} px of the ground truth"
RULES = {
    "gt-15": Rule(
        MIN_CORRECT_INLIERS,
        f"{_ENOUGH}. An assumption: the paper does not state its exact rule",
        correct=True,
    ),
    "mods": Rule(15, "at least 15 verified inliers, correct or not: where MODS stops by default"),
    "mods-deep": Rule(
        10, "at least 10 verified inliers, correct or not: MODS's settings for learned descriptors"
    ),
    "geometry": Rule(
        MIN_CORRECT_INLIERS,
        f"{_ENOUGH}, and a correct geometry: a homography within {MAX_GRID_ERROR:g} px of the true "
        "one on average over the common part, a fundamental matrix within "
        f"{AGREEMENT_PIXELS} px (symmetric) of at least {MIN_AGREEMENT:.0%} of the hand-picked "
        "correspondences",
        correct=True,
        geometry=True,
    ),
}


def summarise(rows: Iterable[Row], rule: Rule) -> list[dict[str, Any]]:
    """One entry per set, detector and descriptor.

    Means over the pairs that a descriptor matched are not comparable between descriptors: matching
    one more hard pair, with few inliers, lowers the mean. So the mean over the pairs that all
    descriptors matched (with this detector) is given too. Intervals are of the bootstrap over
    scenes: the pairs of one sequence are drawn together.
    """
    groups: dict[tuple[str, str], dict[str, dict[str, Row]]] = {}
    for row in rows:
        by_descriptor = groups.setdefault((row["set"], row["detector"]), {})
        by_descriptor.setdefault(row["descriptor"], {})[row["pair"]] = row
    entries = []
    for (name, detector), by_descriptor in groups.items():
        matched = {
            label: {pair for pair, row in by_pair.items() if rule.matched(row)}
            for label, by_pair in by_descriptor.items()
        }
        common = sorted(set.intersection(*matched.values()))
        for label, by_pair in by_descriptor.items():
            counted = {pair: rule.counted(row) for pair, row in by_pair.items()}
            both = {pair: counted[pair] for pair in common}
            each = list(by_pair.values())
            entries.append(
                {
                    "set": name,
                    "detector": detector,
                    "descriptor": label,
                    "pairs": len(by_pair),
                    "matched": len(matched[label]),
                    "mean_inliers": _mean([counted[pair] for pair in matched[label]]),
                    "common": len(common),
                    "mean_common": _mean(list(both.values())),
                    "common_interval": _interval(both),
                    "mean_tentative": _mean([row["tentative"] for row in each]),
                    "mean_correct": _mean([n for row in each if (n := row["correct"]) is not None]),
                    **_areas(each),
                    **{curve: _curve(each, curve) for curve in ("accuracy", "agreement")},
                }
            )
    return entries


def _interval(values: Mapping[str, float]) -> Interval:
    # ``graf`` of the pair ``graf-1-3``; a pair that is not of a sequence is a scene itself.
    scenes = [pair.rpartition("-1-")[0] or pair for pair in values]
    return mean_interval(list(values.values()), scenes)


def _mean(values: list[int]) -> float | None:
    return float(np.mean(values)) if values else None


def _areas(rows: list[Row]) -> dict[str, Any]:
    errors = {
        row["pair"]: np.inf if row["corner_error"] is None else row["corner_error"]
        for row in rows
        if row["has_corners"]
    }
    parts = {limit: {k: auc_steps([e], limit) for k, e in errors.items()} for limit in AUC_PIXELS}
    areas = {str(limit): auc_steps(list(errors.values()), limit) for limit in AUC_PIXELS if errors}
    ends = {str(limit): _interval(each) for limit, each in parts.items()}
    return {"auc": areas or None, "auc_interval": ends}


def _curve(rows: list[Row], name: str) -> list[float] | None:
    curves = [row[name] for row in rows if row[name] is not None]
    return [round(x, 6) for x in np.mean(curves, axis=0).tolist()] if curves else None
