"""The Brown figure: FPR95 of every descriptor on every set, on a logarithmic axis."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.brown import full_name, seen_in_training
from hardnet.bench.report.canvas import canvas, log_ticks, name_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOUR = "#0072B2"


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One panel per test set; a dot with its interval and number for each descriptor."""
    rows = [row for row in results["rows"] if not seen_in_training(row)]
    sets = list(dict.fromkeys(row["set"] for row in rows))
    names = list(dict.fromkeys(full_name(row) for row in rows))
    means = {n: _mean([row["fpr95"] for row in rows if full_name(row) == n]) for n in names}
    names.sort(key=lambda name: means[name])
    width = 0.4 + 0.075 * max(map(len, names)) + 2.6 * len(sets)
    with canvas(path, width, 1.1 + 0.3 * len(names)) as figure:
        panels = figure.subplots(1, len(sets), squeeze=False, sharey=True)[0]
        for axes, name in zip(panels, sets, strict=True):
            _panel(axes, [row for row in rows if row["set"] == name], names)
            axes.set_title(name, fontsize=10)


def _panel(axes: Axes, rows: list[Mapping[str, Any]], names: list[str]) -> None:
    ends = []
    for row in rows:
        y, rate = names.index(full_name(row)), 100 * row["fpr95"]
        # A rate of 0 has no logarithm: it is drawn where half of the pairs' resolution would be.
        floor = 50 / row["pairs"]
        low, dot, high = (max(x, floor) for x in (100 * row["low"], rate, 100 * row["high"]))
        axes.plot([low, high], [y, y], color="black", lw=1, marker="|", ms=8)
        axes.plot(dot, y, "o", color=_COLOUR, ms=4.5)
        axes.text(1.02, y, f"{rate:.2f}", va="center", transform=axes.get_yaxis_transform())
        ends += [low, dot, high]
    ticks = log_ticks(min(ends), max(ends))
    axes.set_xscale("log")
    axes.set_xlim(ticks[0], ticks[-1])
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("FPR95 [%]")
    axes.grid(color="#EEEEEE")
    axes.set_axisbelow(True)
    name_rows(axes, names)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
