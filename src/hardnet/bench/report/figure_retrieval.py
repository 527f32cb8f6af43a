"""Figure of the retrieval benchmark: mAP against the number of distractors, one panel per mode."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.retrieval import descriptors_of, find, mean_ap, modes_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ACROSS = 4
"""Panels side by side."""


def has_curve(results: Mapping[str, Any], name: str) -> bool:
    """A curve needs two points."""
    return len({row["distractors"] for row in results["rows"]}) > 1


def draw(results: Mapping[str, Any], path: Path) -> None:
    """A panel per mode, a line per descriptor, all panels on one scale."""
    rows = results["rows"]
    modes, names = modes_of(rows), descriptors_of(rows)
    down = math.ceil(len(modes) / ACROSS)
    across = min(len(modes), ACROSS)
    with canvas(path, 2.3 * across, 2.2 * down + 0.4) as figure:
        grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, mode in zip(grid, modes, strict=False):
            _panel(axes, results, mode, names)
        for axes in grid[len(modes) :]:
            axes.set_visible(False)
        for axes in grid[::across]:
            axes.set_ylabel("mAP (%)")
        handles, labels = grid[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=len(names), frameon=False)
        figure.supxlabel("number of distractors", fontsize=9)


def _panel(axes: Axes, results: Mapping[str, Any], mode: str, names: list[str]) -> None:
    counts = sorted({row["distractors"] for row in results["rows"]})
    value = mean_ap(results["collection"]["protocols"][0])
    for index, name in enumerate(names):
        points = []
        for place, count in enumerate(counts):
            at = [row for row in results["rows"] if row["distractors"] == count]
            row = find(at, name, mode)
            score = None if row is None else value(row)
            if score is not None:
                points.append((place, score))
        xs, ys = [x for x, _ in points], [y for _, y in points]
        axes.plot(xs, ys, label=name, ms=3.5, lw=1.4, **line_style(index))
    # Steps of a factor of about three, and none: evenly spaced, as on a logarithmic axis.
    axes.set_xticks(range(len(counts)), [_text(count) for count in counts])
    axes.grid(color="#EEEEEE")
    axes.set_axisbelow(True)
    axes.set_title(mode, fontsize=9, loc="left")


def _text(count: int) -> str:
    return f"{count / 1000:g}k" if count >= 1000 else str(count)
