"""Tables of the W1BS benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hardnet.bench.report.cells import (
    BASELINE,
    by_descriptor,
    by_name,
    interval,
    ratio,
    with_interval,
)
from hardnet.bench.report.table import Table
from hardnet.bench.w1bs import MEASURES, PLOTTED, SCORES, TOTAL

_TITLES = {
    "ratio": "W1BS: mean area under the PR curve, ranked by distance ratio",
    "distance": "W1BS: mean area under the PR curve, ranked by distance",
    "difference": "W1BS: mean area under the PR curve, ranked by distance difference",
    "ap_trapezoid": "W1BS: mean average precision (HPatches matching task, trapezoid)",
    "ap_hits": "W1BS: mean average precision (HPatches matching task, hits)",
}
_HEADLINES = {"ap_hits": "mAP", PLOTTED: "mean AUC"}
_NOTE = (
    "mAP: the HPatches matching task on these patches. AUC: recall over 1 - precision, as the "
    "benchmark defines it; this area ends where the curve does, so that a descriptor without wrong "
    "answers has area 0 and on easy pairs a better one may have less: no best is marked. Both are "
    "means of the subsets; the 95 % intervals resample the pairs within each subset."
)


def tables(results: Mapping[str, Any]) -> list[Table]:
    """Both headlines, each measure by subset, then every pair."""
    order = ["ap_hits", *(m for m in MEASURES if m != "ap_hits")]
    present = {row["score"] for row in results["means"]}
    values: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        name = f"{row['subset']}/{row['pair']}"
        values.setdefault(row["descriptor"], {})[name] = row["ap_hits"]
    per_pair = by_name("W1BS: average precision per pair (hits)", "pair", values)
    by_subset = [_by_subset(results, measure) for measure in order if measure in present]
    return [_summary(results), *by_subset, per_pair]


def subsets(results: Mapping[str, Any]) -> list[str]:
    """The subsets in their order, the total last."""
    names = dict.fromkeys(row["subset"] for row in results["means"])
    return [*(name for name in names if name != TOTAL), TOTAL]


def _summary(results: Mapping[str, Any]) -> Table:
    """The totals: the area of the benchmark, and the average precision to judge it by."""
    totals = {
        (row["score"], row["descriptor"]): row for row in results["means"] if row["subset"] == TOTAL
    }
    names = list(dict.fromkeys(name for _, name in totals))
    columns = [
        {name: totals[measure, name]["value"] for name in names if (measure, name) in totals}
        for measure in _HEADLINES
    ]
    rows = []
    for name, *cells in by_descriptor(columns, names):
        row = [name]
        for measure, cell in zip(_HEADLINES, cells, strict=True):
            total = totals.get((measure, name), {})
            text = _plain(cell) if measure in SCORES else cell
            row.append(with_interval(text, total.get("low"), total.get("high")))
        rows.append([*row, ratio(columns[0].get(name), columns[0].get(BASELINE))])
    headings = [*_HEADLINES.values()]
    about = results.get("set", {})
    where = f": {about['name']}, {about['pairs']} pairs" if about else ""
    return Table(f"W1BS{where}", ["descriptor", *headings, f"mAP / {BASELINE}"], rows, note=_NOTE)


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
    if measure in SCORES:
        rows = [[_plain(cell) for cell in row] for row in rows]
    heading = ["descriptor", *subsets(results), "95 % interval"]
    return Table(_TITLES[measure], heading, rows)


def _plain(cell: str) -> str:
    """Without bold: the largest area is not the best."""
    return cell.replace("**", "")
