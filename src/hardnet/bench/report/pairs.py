"""The benchmark on real image pairs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hardnet.bench.pairs import summarise
from hardnet.bench.report.style import Figures, canvas, grouped_bars
from hardnet.bench.report.table import (
    BASELINE,
    Column,
    Results,
    Table,
    against_baseline,
    by_name,
    column,
    ratio,
)

_COUNTS = {
    "tentative": "matches",
    "correct": "correct",
    "inliers": "inliers",
    "correct_inliers": "correct inliers",
}


def tables(results: Results) -> list[Table]:
    """Totals, then correct matches and verified pairs per sequence."""
    totals = summarise(results["rows"], "sequence")
    counts = [groups["all"] for groups in totals.values()]
    baseline = totals.get(BASELINE, {}).get("all", {}).get("correct")
    columns = [
        Column("descriptor", list(totals)),
        Column("verified pairs", [f"{each['verified']} / {each['pairs']}" for each in counts]),
        *(column(name, counts, key, "{}") for key, name in _COUNTS.items()),
        *against_baseline("correct", [ratio(each["correct"], baseline) for each in counts]),
    ]
    return [
        Table("Matches on real pairs", columns),
        by_name("Correct matches per sequence", "sequence", _values(results, "correct"), "{:.0f}"),
        by_name("Verified pairs per sequence", "sequence", _values(results, "verified"), "{:.0f}"),
    ]


def figures(results: Results) -> Figures:
    """Bars of the correct matches."""
    return {"bars": partial(_draw, results)}


def _values(results: Results, field: str) -> dict[str, dict[str, float]]:
    totals = summarise(results["rows"], "sequence")
    return {
        label: {name: float(counts[field]) for name, counts in groups.items() if name != "all"}
        for label, groups in totals.items()
    }


def _draw(results: Results, path: Path) -> None:
    values = _values(results, "correct")
    names = list(next(iter(values.values())))
    with canvas(path, 1.5 + 0.9 * len(names), 3.6) as figure:
        axes = figure.subplots()
        grouped_bars(axes, {who: [each[n] for n in names] for who, each in values.items()})
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel("correct matches")
        axes.legend(frameon=False, ncols=len(values), loc="lower left", bbox_to_anchor=(0, 1))
