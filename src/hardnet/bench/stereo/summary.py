"""Table 3 from the measurements: pairs matched, mean inliers, areas and accuracies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from hardnet.bench.bootstrap import Interval, mean_interval
from hardnet.bench.stereo.curves import AUC_PIXELS, auc_lines, auc_steps
from hardnet.bench.stereo.rules import Rule

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
