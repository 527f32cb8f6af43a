"""Tables of the W1BS benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.cells import by_descriptor, by_name, interval
from hardnet.bench.report.table import Table
from hardnet.bench.w1bs import MEASURES, PLOTTED, TOTAL

_TITLES = {
    "ratio": "W1BS: mean area under the PR curve, ranked by distance ratio",
    "distance": "W1BS: mean area under the PR curve, ranked by distance",
    "difference": "W1BS: mean area under the PR curve, ranked by distance difference",
    "ap_trapezoid": "W1BS: mean average precision (HPatches matching task, trapezoid)",
    "ap_hits": "W1BS: mean average precision (HPatches matching task, hits)",
}
_NOTE = (
    "Recall over 1 - precision, as the benchmark defines it: the area ends where the curve does, "
    "so that a descriptor without wrong answers has area 0. Total: mean of the subsets. "
    "Interval: 95 %, of the total, resampling the pairs within each subset."
)


def tables(results: Mapping[str, Any]) -> list[Table]:
    """The plotted score by subset, the other measures, then every pair."""
    order = [PLOTTED, *(m for m in MEASURES if m != PLOTTED)]
    present = {row["score"] for row in results["means"]}
    values: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        name = f"{row['subset']}/{row['pair']}"
        values.setdefault(row["descriptor"], {})[name] = row[PLOTTED]
    per_pair = by_name("W1BS: area per pair, ranked by distance ratio", "pair", values)
    return [*(_by_subset(results, m) for m in order if m in present), per_pair]


def subsets(results: Mapping[str, Any]) -> list[str]:
    """The subsets in their order, the total last."""
    names = dict.fromkeys(row["subset"] for row in results["means"])
    return [*(name for name in names if name != TOTAL), TOTAL]


def _by_subset(results: Mapping[str, Any], measure: str) -> Table:
    means = [row for row in results["means"] if row["score"] == measure]
    names = list(dict.fromkeys(row["descriptor"] for row in means))
    columns: list[dict[str, float]] = [
        {row["descriptor"]: row["value"] for row in means if row["subset"] == subset}
        for subset in subsets(results)
    ]
    spread = {
        row["descriptor"]: interval(row["low"], row["high"])
        for row in means
        if row["subset"] == TOTAL
    }
    rows = [[*row, spread[row[0]]] for row in by_descriptor(columns, names)]
    heading = ["descriptor", *subsets(results), "95 % interval"]
    return Table(_TITLES[measure], heading, rows, note=_NOTE if measure == PLOTTED else "")
