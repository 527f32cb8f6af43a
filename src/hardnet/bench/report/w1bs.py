"""The W1BS benchmark: scores by nuisance factor, and precision-recall curves."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import numpy as np

from hardnet.bench.report.style import Figures, canvas, line_style
from hardnet.bench.report.table import (
    BASELINE,
    Best,
    Column,
    Results,
    Table,
    against_baseline,
    by_name,
    distinct,
    interval,
    ratio,
)
from hardnet.bench.w1bs import MEASURES, PLOTTED, SCORES, TOTAL

_TITLES = {
    "ratio": "W1BS: mean area under the PR curve, ranked by distance ratio",
    "distance": "W1BS: mean area under the PR curve, ranked by distance",
    "difference": "W1BS: mean area under the PR curve, ranked by distance difference",
    "ap_trapezoid": "W1BS: mean average precision (HPatches matching task, trapezoid)",
    "ap_hits": "W1BS: mean average precision (HPatches matching task, hits)",
}
_NOTE = (
    "mAP: the HPatches matching task on these patches. AUC: recall over 1 - precision, as the "
    "benchmark defines it; this area ends where the curve does, so that a descriptor without wrong "
    "answers has area 0 and on easy pairs a better one may have less: no best is marked. Both are "
    "means of the subsets; the 95 % intervals resample the pairs within each subset."
)
_FACTORS = {
    "A": "appearance",
    "G": "geometry",
    "L": "illumination",
    "S": "sensor",
    "map2photo": "map to photo",
}


def tables(results: Results) -> list[Table]:
    """Both headlines, each measure by subset, then every pair."""
    order = ["ap_hits", *(m for m in MEASURES if m != "ap_hits")]
    present = {row["score"] for row in results["means"]}
    values: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        name = f"{row['subset']}/{row['pair']}"
        values.setdefault(row["descriptor"], {})[name] = row["ap_hits"]
    return [
        _summary(results),
        *(_by_subset(results, measure) for measure in order if measure in present),
        by_name("W1BS: average precision per pair (hits)", "pair", values),
    ]


def figures(results: Results) -> Figures:
    """Precision-recall curves per nuisance factor and in total."""
    return {"curves": partial(_draw, results)}


def _subsets(results: Results) -> list[str]:
    names = distinct(results["means"], "subset")
    return [*(name for name in names if name != TOTAL), TOTAL]


def _best(measure: str) -> Best | None:
    """The largest area is not the best."""
    return None if measure in SCORES else "largest"


def _summary(results: Results) -> Table:
    total = {(r["score"], r["descriptor"]): r for r in results["means"] if r["subset"] == TOTAL}
    names = list(dict.fromkeys(name for _, name in total))

    def column(heading: str, measure: str) -> Column:
        found = [total.get((measure, name), {}) for name in names]
        ends = [(each.get("low"), each.get("high")) for each in found]
        values = [each.get("value") for each in found]
        return Column(heading, values, best=_best(measure), intervals=ends)

    precision, area = column("mAP", "ap_hits"), column("mean AUC", PLOTTED)
    baseline = total.get(("ap_hits", BASELINE), {}).get("value")
    ratios = [ratio(total.get(("ap_hits", name), {}).get("value"), baseline) for name in names]
    about = results.get("set", {})
    return Table(
        "W1BS" + (f": {about['name']}, {about['pairs']} pairs" if about else ""),
        [Column("descriptor", names), precision, area, *against_baseline("mAP", ratios)],
        _NOTE,
    )


def _by_subset(results: Results, measure: str) -> Table:
    means = {(r["subset"], r["descriptor"]): r for r in results["means"] if r["score"] == measure}
    names = list(dict.fromkeys(name for _, name in means))
    columns = [
        Column(s, [means.get((s, n), {}).get("value") for n in names], best=_best(measure))
        for s in _subsets(results)
    ]
    spread = [interval(means[TOTAL, n]["low"], means[TOTAL, n]["high"]) for n in names]
    return Table(
        _TITLES[measure], [Column("descriptor", names), *columns, Column("95 % interval", spread)]
    )


def _draw(results: Results, path: Path) -> None:
    """One panel per subset; its legend has mAP and mean area, the highest mAP first.

    Not the largest area first: that misleads on easy pairs (see :mod:`hardnet.bench.w1bs`).
    """
    panels = _subsets(results)
    curves = [row for row in results["curves"] if row["score"] == PLOTTED]
    means = {
        (row["score"], row["subset"], row["descriptor"]): row["value"] for row in results["means"]
    }
    names = distinct(curves, "descriptor")
    lines = math.ceil(len(panels) / 3)
    across = math.ceil(len(panels) / lines)
    heights = (2.4, 0.4 + 0.17 * len(names))  # of the curves, of the legend under them
    with canvas(path, 3.4 * across, sum(heights) * lines) as figure:
        grid = figure.subplots(
            2 * lines, across, squeeze=False, gridspec_kw={"height_ratios": heights * lines}
        )
        for axes in grid.ravel():
            axes.set_axis_off()
        for k, subset in enumerate(panels):
            axes = grid[2 * (k // across), k % across]
            chosen = [row for row in curves if row["subset"] == subset]
            chosen.sort(key=lambda row: -means["ap_hits", row["subset"], row["descriptor"]])
            for row in chosen:
                name = row["descriptor"]
                style = line_style(names.index(name)) | {"marker": "", "lw": 1.3}
                precision, area = (means[s, subset, name] for s in ("ap_hits", PLOTTED))
                label = f"{precision:.3f}, {area:.3f}  {name}"
                axes.plot(1 - np.asarray(row["precision"]), row["recall"], label=label, **style)
            axes.set_axis_on()
            title = f"{subset} ({_FACTORS[subset]})" if subset in _FACTORS else subset
            axes.set_title(title, fontsize=10)
            axes.set_xlim(0, 1)
            axes.set_ylim(bottom=0)
            axes.grid()
            axes.set_xlabel("1 - precision")
            axes.set_ylabel("recall")
            # In a panel of its own: the curves may run anywhere.
            grid[2 * (k // across) + 1, k % across].legend(
                *axes.get_legend_handles_labels(),
                loc="upper center",
                title="mAP, mean AUC",
                alignment="left",
                frameon=False,
                fontsize=8,
                title_fontsize=8,
            )
