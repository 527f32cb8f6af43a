"""Benchmarks on pairs of patches: Brown, after Table 1 of the paper, and W1BS by nuisance."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from hardnet.bench.report.style import canvas, line_style, log_ticks, name_rows
from hardnet.bench.report.table import (
    SAME,
    Best,
    Column,
    Results,
    Row,
    Table,
    Value,
    against_baseline,
    by_name,
    column,
    distinct,
    grouped,
    interval,
)
from hardnet.bench.w1bs import PLOTTED, SCORES, TOTAL

PERCENT = "{:.2f}"
_WEIGHTS = re.compile(r"\.(params|pth|pt|onnx|safetensors)$")


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
    lines = list(grouped(rows, "descriptor", "trained").values())
    valid = [[row for row in line if not seen_in_training(row)] for line in lines]
    first = [line[0] for line in lines]
    columns = [column("descriptor", first, "descriptor"), column("trained on", first, "trained")]
    for name in distinct(rows, "set"):
        of_set = [next((row for row in line if row["set"] == name), None) for line in valid]
        columns.append(column(name, of_set, "fpr95", PERCENT, "smallest", 100))
    untested = sum(map(len, valid)) < len(rows)
    return Table(
        "FPR95 on Brown sets, %",
        [*columns, *_means(valid, "mean {}")],
        "A descriptor is not tested on the set it was trained on (-); its mean is over the others."
        if untested
        else "",
    )


def _as_in_the_paper(rows: Sequence[Row]) -> Table:
    """Test sets across, under each the training sets; one number where nothing was trained."""
    valid = [row for row in rows if not seen_in_training(row)]
    # A family and whether it was trained: "net" without a training set has another line.
    lines = list(dict.fromkeys((family(row), bool(row["trained"])) for row in rows))
    rates = {(family(row), row["set"], row["trained"]): 100 * row["fpr95"] for row in valid}
    columns = [Column("test: trained on", [name for name, _ in lines])]
    training = [name for name in distinct(rows, "trained") if name]
    tested = {(row["set"], row["trained"]) for row in valid}
    for test in distinct(rows, "set"):
        sources = [source for source in training if (test, source) in tested]
        for source in sources:
            values: list[Value] = [
                rates.get((name, test, source if trained else None))
                if trained or source == sources[0]
                else SAME
                for name, trained in lines
            ]
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
    return Table(
        "Brown sets: all measures",
        [
            column("descriptor", rows, _full_name),
            column("set", rows, "set"),
            column("pairs", rows, "pairs", "{}"),
            column("FPR95", rows, "fpr95", PERCENT, factor=100),
            column(
                "95 % interval",
                rows,
                lambda r: interval(r["low"], r["high"], style=PERCENT, factor=100),
            ),
            column("ties rejected", rows, "fpr95_before", PERCENT, factor=100),
            column("FDR95", rows, "fdr95", PERCENT, factor=100),
            column("ROC AUC", rows, "auc", "{:.4f}"),
        ],
        "The interval resamples pairs. Ties rejected: FPR95 when false pairs exactly on the "
        "threshold do not count. FDR95 is what some papers print as FPR95.",
    )


def draw_brown(results: Results, path: Path) -> None:
    rows = [row for row in results["rows"] if not seen_in_training(row)]
    sets, rates = grouped(rows, "set"), dict[str, list[float]]()
    for row in rows:
        rates.setdefault(_full_name(row), []).append(row["fpr95"])
    names = sorted(rates, key=lambda name: sum(rates[name]) / len(rates[name]))
    width = 0.4 + 0.075 * max(map(len, names)) + 2.6 * len(sets)
    height = 1.1 + 0.3 * len(names)
    with canvas(path, width, height, 1, len(sets), sharey=True) as (_, [panels]):
        for axes, (name, of_set) in zip(panels, sets.items(), strict=True):
            ends: list[float] = []
            for row in of_set:
                y, rate = names.index(_full_name(row)), 100 * row["fpr95"]
                # A rate of 0 has no logarithm: draw it at half the resolution of the pairs.
                floor = 50 / row["pairs"]
                ends += (max(x, floor) for x in (100 * row["low"], rate, 100 * row["high"]))
                axes.plot(ends[-3::2], [y, y], color="black", lw=1, marker="|", ms=8)
                axes.plot(ends[-2], y, "o", color=line_style(0)["color"], ms=4.5)
                axes.text(1.02, y, f"{rate:.2f}", va="center", transform=axes.get_yaxis_transform())
            ticks = log_ticks(min(ends), max(ends))
            axes.set(xscale="log", xlim=(ticks[0], ticks[-1]), xlabel="FPR95 [%]")
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
            axes.grid()
            name_rows(axes, names)
            axes.set_title(name, fontsize=10)


_TITLES = {
    "ap_hits": "mean average precision (HPatches matching task, hits)",
    "ratio": "mean area under the PR curve, ranked by distance ratio",
    "distance": "mean area under the PR curve, ranked by distance",
    "difference": "mean area under the PR curve, ranked by distance difference",
    "ap_trapezoid": "mean average precision (HPatches matching task, trapezoid)",
}
_FACTORS = {
    "A": "appearance",
    "G": "geometry",
    "L": "illumination",
    "S": "sensor",
    "map2photo": "map to photo",
}
_AREA = (
    "mAP: the HPatches matching task on these patches. AUC: recall over 1 - precision, as the "
    "benchmark defines it. This area ends where the curve does: a descriptor without wrong "
    "answers has area 0, and on easy pairs a better one may have less, so no best is marked. "
    "Both are means over subsets; the 95 % intervals resample the pairs within each subset."
)


def tables_of_w1bs(results: Results) -> list[Table]:
    means: Mapping[tuple[str, str, str], Row] = {
        (row["score"], row["subset"], row["descriptor"]): row for row in results["means"]
    }
    names, about = distinct(results["means"], "descriptor"), results["set"]
    subsets = _total_last(row["subset"] for row in results["means"])

    def cells(heading: str, measure: str, subset: str, ends: bool = False) -> Column:
        rows = [means[measure, subset, name] for name in names]
        best: Best | None = None if measure in SCORES else "largest"  # areas: see _AREA
        between = [(row["low"], row["high"]) for row in rows] if ends else ()
        return Column(heading, [row["value"] for row in rows], best=best, intervals=between)

    precision = cells("mAP", "ap_hits", TOTAL, ends=True)
    area = cells("mean AUC", PLOTTED, TOTAL, ends=True)
    ratios = against_baseline("mAP", names, [means["ap_hits", TOTAL, n]["value"] for n in names])
    shown = [
        Table(
            f"W1BS: {about['name']}, {about['pairs']} pairs",
            [Column("descriptor", names), precision, area, *ratios],
            _AREA,
        )
    ]
    for measure, title in _TITLES.items():
        totals = [means[measure, TOTAL, name] for name in names]
        columns = [
            Column("descriptor", names),
            *(cells(subset, measure, subset) for subset in subsets),
            column("95 % interval", totals, lambda row: interval(row["low"], row["high"])),
        ]
        shown.append(Table(f"W1BS: {title}", columns))
    values: dict[str, dict[str, float]] = {}
    for row in results["rows"]:
        pair = f"{row['subset']}/{row['pair']}"
        values.setdefault(row["descriptor"], {})[pair] = row["ap_hits"]
    return [*shown, by_name("W1BS: average precision per pair (hits)", "pair", values)]


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
    size = 3.4 * across, sum(heights) * lines
    ratios = {"height_ratios": heights * lines}
    with canvas(path, *size, 2 * lines, across, gridspec_kw=ratios) as (_, grid):
        for axes in grid.ravel():
            axes.set_axis_off()
        for k, subset in enumerate(panels):
            axes, below = grid[2 * (k // across) :, k % across][:2]
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
            axes.set(xlim=(0, 1), ylim=(0, None), xlabel="1 - precision", ylabel="recall")
            axes.grid()
            # In another panel: the curves may be anywhere.
            small = {"fontsize": 8, "title_fontsize": 8, "alignment": "left", "frameon": False}
            entries = axes.get_legend_handles_labels()
            below.legend(*entries, loc="upper center", title="mAP, mean AUC", **small)
