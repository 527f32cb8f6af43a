"""Figure of an index that grows: time of a query, memory, and time to write it, log-log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.retrieval_growth import STAGES

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def has_curve(results: Mapping[str, Any], name: str) -> bool:
    """A curve needs two points."""
    return len(results["rows"]) > 1


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Three panels over one axis of images."""
    rows = results["rows"]
    images = [row["images"] for row in rows]
    panels = {
        "query (ms)": {
            name: [row["query_ms"][stage] for row in rows] for stage, name in STAGES.items()
        },
        "MB": {
            "on disk": [row["bytes"] / 1e6 for row in rows],
            "mapped memory": [row["mapped_memory_mb"] for row in rows],
            "own memory": [row["own_memory_mb"] for row in rows],
        },
        "writing (s)": {
            "all images": [row["build_seconds"] for row in rows],
            "one more image": [row["add_one_seconds"] for row in rows],
            "opening it": [row["open_ms"] / 1e3 for row in rows],
        },
    }
    with canvas(path, 10.5, 4.0) as figure:
        grid = figure.subplots(1, len(panels))
        for axes, (label, lines) in zip(grid, panels.items(), strict=True):
            _panel(axes, images, lines)
            axes.set_title(label, fontsize=9, loc="left")
        figure.supxlabel("images", fontsize=9)


def _panel(axes: Axes, images: Sequence[int], lines: Mapping[str, Sequence[float]]) -> None:
    for index, (name, values) in enumerate(lines.items()):
        # A logarithm has no place for what was too little to measure.
        known = [(x, y) for x, y in zip(images, values, strict=True) if y > 0]
        xs, ys = [x for x, _ in known], [y for _, y in known]
        axes.plot(xs, ys, label=name, ms=3.5, lw=1.4, **line_style(index))
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), frameon=False, fontsize=8)
