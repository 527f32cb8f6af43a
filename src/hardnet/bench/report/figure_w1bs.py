"""The W1BS figure: precision-recall curves per nuisance factor and in total."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.w1bs import subsets
from hardnet.bench.w1bs import PLOTTED, TOTAL

_COLUMNS = 3
_FACTORS = {
    "A": "appearance",
    "G": "geometry",
    "L": "illumination",
    "S": "sensor",
    "map2photo": "map to photo",
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """One panel per subset, the legend of each with its mean areas, the best first."""
    panels = subsets(results)
    curves = [row for row in results["curves"] if row["score"] == PLOTTED]
    areas = {
        (row["subset"], row["descriptor"]): row["value"]
        for row in results["means"]
        if row["score"] == PLOTTED
    }
    names = list(dict.fromkeys(row["descriptor"] for row in curves))
    lines = math.ceil(len(panels) / _COLUMNS)
    height = 2.3 + 0.17 * len(names)
    with canvas(path, 3.4 * min(len(panels), _COLUMNS), height * lines) as figure:
        grid = figure.subplots(lines, min(len(panels), _COLUMNS), squeeze=False).ravel()
        for axes in grid[len(panels) :]:
            axes.set_visible(False)
        for axes, subset in zip(grid, panels, strict=False):
            chosen = [row for row in curves if row["subset"] == subset]
            for row in sorted(chosen, key=lambda r: -areas[subset, r["descriptor"]]):
                name = row["descriptor"]
                style = line_style(names.index(name)) | {"marker": ""}
                axes.plot(
                    1 - np.asarray(row["precision"]),
                    row["recall"],
                    label=f"{name}, {areas[subset, name]:.3f}",
                    lw=1.3,
                    **style,
                )
            factor = f" ({_FACTORS[subset]})" if subset in _FACTORS else ""
            axes.set_title(subset if subset == TOTAL else f"{subset}{factor}", fontsize=10)
            axes.set_xlim(0, 1)
            axes.set_ylim(bottom=0)
            axes.grid(color="#EEEEEE")
            axes.set_xlabel("1 - precision")
            axes.set_ylabel("recall")
            # Under the panel: the curves may run anywhere inside it.
            axes.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.22),
                title="mean AUC",
                frameon=False,
                fontsize=8,
                title_fontsize=8,
            )
