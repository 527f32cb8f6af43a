"""The W1BS figure: precision-recall curves per nuisance factor and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.w1bs import subsets
from hardnet.bench.w1bs import PLOTTED

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLUMNS = 3
_FACTORS = {
    "A": "appearance",
    "G": "geometry",
    "L": "illumination",
    "S": "sensor",
    "map2photo": "map to photo",
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One panel per subset; its legend has mAP and mean area, the highest mAP first.

    Not the largest area first: that misleads on easy pairs (see :mod:`hardnet.bench.w1bs`).
    """
    panels = subsets(results)
    curves = [row for row in results["curves"] if row["score"] == PLOTTED]
    means = {
        (row["score"], row["subset"], row["descriptor"]): row["value"] for row in results["means"]
    }
    names = list(dict.fromkeys(row["descriptor"] for row in curves))
    lines = math.ceil(len(panels) / _COLUMNS)
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
            _dress(axes, f"{subset} ({_FACTORS[subset]})" if subset in _FACTORS else subset)
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


def _dress(axes: Axes, title: str) -> None:
    axes.set_axis_on()
    axes.set_title(title, fontsize=10)
    axes.set_xlim(0, 1)
    axes.set_ylim(bottom=0)
    axes.grid(color="#EEEEEE")
    axes.set_xlabel("1 - precision")
    axes.set_ylabel("recall")
