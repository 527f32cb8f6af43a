"""Benchmarks on pairs of patches: Brown, after Table 1 of the paper, and W1BS by nuisance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet.bench.report.style import canvas, line_style, log_ticks, name_rows
from hardnet.bench.report.table import (
    BASELINE,
    SAME,
    Best,
    Column,
    Results,
    Table,
    Value,
    against_baseline,
    by_name,
    column,
    distinct,
    interval,
    ratio,
)
from hardnet.bench.w1bs import MEASURES, PLOTTED, SCORES, TOTAL

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PERCENT = "{:.2f}"
_WEIGHTS = re.compile(r"\.(params|pth|pt|onnx|safetensors)$")

_UNTESTED = (
    "A descriptor is not tested on the set it was trained on (-); its mean is over the others."
)

Row = Mapping[str, Any]
Means = Mapping[tuple[str, str], Row]
"""(subset, descriptor) -> the mean of one measure."""


def tables_of_brown(results: Results) -> list[Table]:
    """By descriptor; as in the paper if a family was trained on several sets; in detail."""
    rows: list[Row] = results["rows"]
    trained = {(family(row), row["trained"]) for row in rows if row["trained"]}
    several = len({name for name, _ in trained}) < len(trained)
    layout = [_as_in_the_paper(rows)] if several else []
    return [_by_descriptor(rows), *layout, _details(rows)]


def seen_in_training(row: Row) -> bool:
    """Whether the set is (one of) the descriptor's training sets, joined by "+"."""
    return row["trained"] is not None and row["set"].lower() in row["trained"].lower().split("+")


def family(row: Row) -> str:
    """The descriptor without its training set: "tfeat-liberty.params" on liberty is "tfeat"."""
    name = _WEIGHTS.sub("", row["descriptor"])
    if row["trained"]:
        name = re.sub(rf"[-_.]?{re.escape(row['trained'])}$", "", name, flags=re.IGNORECASE)
    return name or row["descriptor"]


def _full_name(row: Row) -> str:
    """The descriptor with its training set: several may share a name, as in the paper."""
    return f"{row['descriptor']}[{row['trained']}]" if row["trained"] else str(row["descriptor"])


def _by_descriptor(rows: Sequence[Row]) -> Table:
    sets = distinct(rows, "set")
    names = {_full_name(row): (row["descriptor"], row["trained"]) for row in rows}
    valid = [row for row in rows if not seen_in_training(row)]
    rates = {(_full_name(row), row["set"]): 100 * row["fpr95"] for row in valid}
    return Table(
        "FPR95 on Brown sets, %",
        [
            Column("descriptor", [name for name, _ in names.values()]),
            Column("trained on", [trained for _, trained in names.values()]),
            *(Column(s, [rates.get((n, s)) for n in names], PERCENT, "smallest") for s in sets),
            *_means([[row for row in valid if _full_name(row) == n] for n in names], "mean {}"),
        ],
        "" if len(valid) == len(rows) else _UNTESTED,
    )


def _as_in_the_paper(rows: Sequence[Row]) -> Table:
    """Test sets across, under each the training sets; one number where nothing was trained."""
    sets = distinct(rows, "set")
    training = [name for name in distinct(rows, "trained") if name]
    valid = [row for row in rows if not seen_in_training(row)]
    # A family and whether it was trained: "net" without a training set has its own line.
    lines = list(dict.fromkeys((family(row), bool(row["trained"])) for row in rows))
    rates = {(family(row), row["set"], row["trained"]): 100 * row["fpr95"] for row in valid}
    columns = [Column("test: trained on", [name for name, _ in lines])]
    for test in sets:
        sources = [s for s in training if any((r["set"], r["trained"]) == (test, s) for r in valid)]
        for source in sources:
            values: list[Value] = [
                rates.get((name, test, source if trained else None)) for name, trained in lines
            ]
            if source != sources[0]:
                values = [v if line[1] else SAME for v, line in zip(values, lines, strict=True)]
            columns.append(Column(source, values, PERCENT, "smallest", test))
    of_line = [[r for r in valid if (family(r), bool(r["trained"])) == line] for line in lines]
    return Table(
        "FPR95 on Brown sets by training set, %",
        [*columns, *_means(of_line, "{}", "mean")],
        f"{SAME} not trained: one number per test set.",
    )


def _means(of_line: Sequence[Sequence[Row]], heading: str, group: str = "") -> list[Column]:
    found = []
    for field in ("fdr95", "fpr95"):
        values = [
            100 * float(np.mean([row[field] for row in rows])) if rows else None for rows in of_line
        ]
        found.append(Column(heading.format(field.upper()), values, PERCENT, "smallest", group))
    return found


def _details(rows: Sequence[Row]) -> Table:
    ties = [100 * row.get("fpr95_before", row["fpr95"]) for row in rows]
    ends = [interval(100 * row["low"], 100 * row["high"], PERCENT) for row in rows]
    return Table(
        "Brown sets: all measures",
        [
            Column("descriptor", [_full_name(row) for row in rows]),
            column("set", rows, "set"),
            column("pairs", rows, "pairs", "{}"),
            column("FPR95", rows, "fpr95", PERCENT, factor=100),
            Column("95 % interval", ends),
            Column("ties rejected", ties, PERCENT),
            column("FDR95", rows, "fdr95", PERCENT, factor=100),
            column("ROC AUC", rows, "auc", "{:.4f}"),
        ],
        "The interval resamples pairs. Ties rejected: FPR95 when false pairs exactly on the "
        "threshold do not count. FDR95 is what some papers print as FPR95.",
    )


def draw_brown(results: Results, path: Path) -> None:
    """FPR95 of every descriptor on every set."""
    rows = [row for row in results["rows"] if not seen_in_training(row)]
    sets = distinct(rows, "set")
    rates: dict[str, list[float]] = {}
    for row in rows:
        rates.setdefault(_full_name(row), []).append(row["fpr95"])
    names = sorted(rates, key=lambda name: sum(rates[name]) / len(rates[name]))
    width = 0.4 + 0.075 * max(map(len, names)) + 2.6 * len(sets)
    with canvas(path, width, 1.1 + 0.3 * len(names)) as figure:
        panels = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, sets, strict=True):
            _panel(axes, [row for row in rows if row["set"] == name], names)
            axes.set_title(name, fontsize=10)


def _panel(axes: Axes, rows: list[Row], names: list[str]) -> None:
    ends = []
    for row in rows:
        y, rate = names.index(_full_name(row)), 100 * row["fpr95"]
        # A rate of 0 has no logarithm: draw it at half the resolution of the pairs.
        floor = 50 / row["pairs"]
        low, dot, high = (max(x, floor) for x in (100 * row["low"], rate, 100 * row["high"]))
        axes.plot([low, high], [y, y], color="black", lw=1, marker="|", ms=8)
        axes.plot(dot, y, "o", color=line_style(0)["color"], ms=4.5)
        axes.text(1.02, y, f"{rate:.2f}", va="center", transform=axes.get_yaxis_transform())
        ends += [low, dot, high]
    ticks = log_ticks(min(ends), max(ends))
    axes.set_xscale("log")
    axes.set_xlim(ticks[0], ticks[-1])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("FPR95 [%]")
    axes.grid()
    name_rows(axes, names)


_TITLES = {
    "ratio": "mean area under the PR curve, ranked by distance ratio",
    "distance": "mean area under the PR curve, ranked by distance",
    "difference": "mean area under the PR curve, ranked by distance difference",
    "ap_trapezoid": "mean average precision (HPatches matching task, trapezoid)",
    "ap_hits": "mean average precision (HPatches matching task, hits)",
}
_FACTORS = {
    "A": "appearance",
    "G": "geometry",
    "L": "illumination",
    "S": "sensor",
    "map2photo": "map to photo",
}


def tables_of_w1bs(results: Results) -> list[Table]:
    """Both headlines, each measure by subset, then every pair."""
    order = ["ap_hits", *(m for m in MEASURES if m != "ap_hits")]
    known = {
        measure: {
            (r["subset"], r["descriptor"]): r for r in results["means"] if r["score"] == measure
        }
        for measure in order
    }
    values: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        name = f"{row['subset']}/{row['pair']}"
        values.setdefault(row["descriptor"], {})[name] = row["ap_hits"]
    return [
        _summary(results, known),
        *(_by_subset(measure, means) for measure, means in known.items() if means),
        by_name("W1BS: average precision per pair (hits)", "pair", values),
    ]


def _best(measure: str) -> Best | None:
    """None for areas: the largest is not the best."""
    return None if measure in SCORES else "largest"


def _summary(results: Results, known: Mapping[str, Means]) -> Table:
    names = list(dict.fromkeys(n for means in known.values() for s, n in means if s == TOTAL))

    def total(measure: str, key: str) -> list[float | None]:
        return [known[measure].get((TOTAL, name), {}).get(key) for name in names]

    def column(heading: str, measure: str) -> Column:
        ends = list(zip(total(measure, "low"), total(measure, "high"), strict=True))
        return Column(heading, total(measure, "value"), best=_best(measure), intervals=ends)

    baseline = known["ap_hits"].get((TOTAL, BASELINE), {}).get("value")
    ratios = [ratio(value, baseline) for value in total("ap_hits", "value")]
    about = results.get("set", {})
    return Table(
        "W1BS" + (f": {about['name']}, {about['pairs']} pairs" if about else ""),
        [
            Column("descriptor", names),
            column("mAP", "ap_hits"),
            column("mean AUC", PLOTTED),
            *against_baseline("mAP", ratios),
        ],
        "mAP: the HPatches matching task on these patches. AUC: recall over 1 - precision, as the "
        "benchmark defines it. This area ends where the curve does: a descriptor without wrong "
        "answers has area 0, and on easy pairs a better one may have less, so no best is marked. "
        "Both are means over subsets; the 95 % intervals resample the pairs within each subset.",
    )


def _by_subset(measure: str, means: Means) -> Table:
    names = list(dict.fromkeys(name for _, name in means))
    columns = [
        Column(s, [means.get((s, n), {}).get("value") for n in names], best=_best(measure))
        for s in _total_last(subset for subset, _ in means)
    ]
    spread = [interval(means[TOTAL, n]["low"], means[TOTAL, n]["high"]) for n in names]
    columns.append(Column("95 % interval", spread))
    return Table(f"W1BS: {_TITLES[measure]}", [Column("descriptor", names), *columns])


def _total_last(subsets: Iterable[str]) -> list[str]:
    return [*(name for name in dict.fromkeys(subsets) if name != TOTAL), TOTAL]


def draw_w1bs(results: Results, path: Path) -> None:
    """Precision-recall curves, a panel per subset; the highest mAP first in its legend.

    Not the largest area first: that misleads on easy pairs (see :mod:`hardnet.bench.w1bs`).
    """
    panels = _total_last(row["subset"] for row in results["means"])
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
            # In its own panel: the curves may be anywhere.
            grid[2 * (k // across) + 1, k % across].legend(
                *axes.get_legend_handles_labels(),
                loc="upper center",
                title="mAP, mean AUC",
                alignment="left",
                frameon=False,
                fontsize=8,
                title_fontsize=8,
            )
