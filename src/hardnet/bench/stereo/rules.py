"""When an image pair counts as matched, and Table 3 from the measurements by such a rule.

The paper follows the protocol of the WxBS paper, whose exact rule is not at hand. All readings of
it that we know are here, and the measurements are kept, so that any of them can be applied later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hardnet.bench.metrics import Interval, mean_interval
from hardnet.bench.pairs import MAX_GRID_ERROR, MIN_CORRECT_INLIERS
from hardnet.bench.stereo.measure import (
    AUC_PIXELS,
    CORRECT_PIXELS,
    THRESHOLDS,
    auc_lines,
    auc_steps,
)
from hardnet.errors import HardnetError

AGREEMENT_PIXELS = 5
MIN_AGREEMENT = 0.5


@dataclass(frozen=True)
class Rule:
    """When a pair is matched.

    Attributes:
        name: what ``--rule`` takes.
        needed: so many inliers at least.
        counts: which inliers are counted, for the rule and for the mean of the table. Where
            nothing is known about a pair, all verified inliers are counted.
        geometry: whether the estimated geometry must be right as well.
        about: the rule in words.
    """

    name: str
    needed: int
    counts: Literal["correct_inliers", "inliers"]
    geometry: bool
    about: str

    def counted(self, row: Mapping[str, Any]) -> int:
        """The inliers of a row (a Measurement's fields) that this rule counts."""
        correct = row["correct_inliers"]
        return int(row["inliers"] if self.counts == "inliers" or correct is None else correct)

    def matched(self, row: Mapping[str, Any]) -> bool:
        """Whether a row (a Measurement's fields) is of a matched pair."""
        if self.counted(row) < self.needed:
            return False
        return not self.geometry or _geometry_is_right(row)


def _geometry_is_right(row: Mapping[str, Any]) -> bool:
    if row["agreement"] is not None:
        return bool(row["agreement"][THRESHOLDS.index(AGREEMENT_PIXELS)] >= MIN_AGREEMENT)
    if row["correct_inliers"] is None:
        return row["geometry"] is not None
    return row["grid_error"] is not None and row["grid_error"] <= MAX_GRID_ERROR


_CORRECT = f"inliers within {CORRECT_PIXELS:g} px of the ground truth"
RULES = {
    rule.name: rule
    for rule in (
        Rule(
            "gt-15",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            False,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}. An assumption: the exact rule of the "
            "paper's protocol is not known",
        ),
        Rule(
            "mods",
            15,
            "inliers",
            False,
            "at least 15 verified inliers, whether right or not: where MODS stops by default",
        ),
        Rule(
            "mods-deep",
            10,
            "inliers",
            False,
            "at least 10 verified inliers, whether right or not: MODS's settings for learned "
            "descriptors",
        ),
        Rule(
            "geometry",
            MIN_CORRECT_INLIERS,
            "correct_inliers",
            True,
            f"at least {MIN_CORRECT_INLIERS} {_CORRECT}, and the geometry is right: a homography "
            f"within {MAX_GRID_ERROR:g} px of the true one on average over the common part, a "
            f"fundamental matrix within {AGREEMENT_PIXELS} px (symmetric) of at least "
            f"{MIN_AGREEMENT:.0%} of the correspondences picked by hand",
        ),
    )
}


def rule_by_name(name: str) -> Rule:
    """The rule called ``name``."""
    try:
        return RULES[name]
    except KeyError:
        raise HardnetError(f"no rule '{name}': choose one of {', '.join(RULES)}") from None


Row = Mapping[str, Any]


def summarise(rows: Iterable[Row], rule: Rule) -> list[dict[str, Any]]:
    """One entry per set, detector and descriptor.

    Means over the pairs that a descriptor matched are not comparable between descriptors: who
    matches one hard pair more, with few inliers, lowers its mean. So the mean over the pairs that
    all descriptors matched (with this detector) is given too.

    Returns:
        set, detector, descriptor, pairs, matched, mean_inliers (over its own matched pairs),
        common (how many pairs all matched), mean_common (over those) and its 95% interval
        common_interval, mean_tentative and mean_correct (matches before verification, over all
        pairs), and where the ground truth says it: auc and auc_lines {pixels: area}, auc_interval
        {pixels: 95% interval}, accuracy (10,) and agreement (10,), each the mean over the pairs.
        Intervals are of the bootstrap over scenes: the pairs of one sequence are drawn together.
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
        common = set.intersection(*matched.values())
        for label, by_pair in by_descriptor.items():
            entry = {
                "set": name,
                "detector": detector,
                "descriptor": label,
                "pairs": len(by_pair),
                "matched": len(matched[label]),
                "mean_inliers": _mean([rule.counted(by_pair[p]) for p in matched[label]]),
                "common": len(common),
                "mean_common": _mean([rule.counted(by_pair[p]) for p in common]),
                "common_interval": _interval({p: rule.counted(by_pair[p]) for p in sorted(common)}),
                "mean_tentative": _mean([row["tentative"] for row in by_pair.values()]),
                "mean_correct": _mean(
                    [row["correct"] for row in by_pair.values() if row["correct"] is not None]
                ),
            }
            entries.append(entry | _curves(list(by_pair.values())))
    return entries


def _interval(values: Mapping[str, float]) -> Interval:
    """Of the mean of pair -> value."""
    return mean_interval(list(values.values()), [_scene(pair) for pair in values])


def _scene(pair: str) -> str:
    """``graf`` of the pair ``graf-1-3``; a pair that is not of a sequence is a scene itself."""
    return pair.rpartition("-1-")[0] or pair


def _mean(values: list[int]) -> float | None:
    return float(np.mean(values)) if values else None


def _curves(rows: list[Row]) -> dict[str, Any]:
    """What the ground truth of the rows allows; None where it does not."""
    by_pair = {
        row["pair"]: np.inf if row["corner_error"] is None else row["corner_error"]
        for row in rows
        if row["has_corners"]
    }
    errors = list(by_pair.values())
    areas: dict[str, Any] = {
        name: {str(limit): area(errors, limit) for limit in AUC_PIXELS} if errors else None
        for name, area in (("auc", auc_steps), ("auc_lines", auc_lines))
    }
    areas["auc_interval"] = {
        str(limit): _interval({pair: auc_steps([e], limit) for pair, e in by_pair.items()})
        for limit in AUC_PIXELS
    }
    return areas | {field: _mean_curve(rows, field) for field in ("accuracy", "agreement")}


def _mean_curve(rows: list[Row], field: str) -> list[float] | None:
    curves = [row[field] for row in rows if row[field] is not None]
    return [round(float(x), 6) for x in np.mean(curves, axis=0)] if curves else None
