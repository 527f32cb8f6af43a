"""Figures of the stereo benchmark: pairs and inliers per set, and matching accuracy curves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.stereo_numbers import (
    Entry,
    Results,
    distinct,
    entries,
    set_title,
    sets_with,
)
from hardnet.bench.stereo.curves import THRESHOLDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MEASURES = (("matched", "pairs matched"), ("mean_common", "inliers per pair that all match"))


def draw(results: Results, path: Path) -> None:
    """Above: pairs matched; below: mean inliers where all match. One column per set."""
    names, detectors = distinct(results, "set"), distinct(results, "detector")
    labels, found = distinct(results, "descriptor"), entries(results)
    panel = 0.9 + 0.34 * len(labels) * len(detectors)
    with canvas(path, panel * len(names), 5.4) as figure:
        grid = figure.subplots(len(_MEASURES), len(names), squeeze=False)
        for line, (field, title) in zip(grid, _MEASURES, strict=True):
            for axes, name in zip(line, names, strict=True):
                _bars(axes, {k[1:]: e for k, e in found.items() if k[0] == name}, field, labels)
                axes.set_xticks(range(len(detectors)), detectors)
            line[0].set_ylabel(title)
        for axes, name in zip(grid[0], names, strict=True):
            axes.set_title(set_title(results, name), fontsize=10)
            pairs = max(e["pairs"] for k, e in found.items() if k[0] == name)
            axes.axhline(pairs, color="#999999", lw=0.8, ls=":")
            axes.set_ylim(0, pairs * 1.08)
        handles, texts = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, texts, frameon=False, ncols=len(labels), loc="outside upper left")


def _bars(axes: Axes, found: dict[tuple[str, str], Entry], field: str, labels: list[str]) -> None:
    """Groups of bars, one per descriptor, each with its number."""
    detectors = list(dict.fromkeys(detector for detector, _ in found))
    width = 0.84 / len(labels)
    for i, label in enumerate(labels):
        places = [k + (i - (len(labels) - 1) / 2) * width for k in range(len(detectors))]
        values = [found[detector, label][field] for detector in detectors]
        heights = [0 if value is None else value for value in values]
        texts = ["-" if value is None else f"{value:.0f}" for value in values]
        bars = axes.bar(places, heights, width, label=label, color=line_style(i)["color"])
        axes.bar_label(bars, texts, fontsize=7)
    axes.locator_params(axis="y", integer=True)
    if not any(entry[field] for entry in found.values()):
        axes.set_ylim(0, 1)  # an axis around nothing would show meaningless small numbers
        axes.set_yticks([0])


def draw_accuracy(results: Results, path: Path) -> None:
    """Mean matching accuracy over 1 to 10 px: a column per set, a line of panels per detector."""
    names, detectors = sets_with(results, "accuracy"), distinct(results, "detector")
    labels, found = distinct(results, "descriptor"), entries(results)
    with canvas(path, 3.2 * len(names), 0.4 + 2.6 * len(detectors)) as figure:
        grid = figure.subplots(len(detectors), len(names), squeeze=False, sharex=True, sharey="col")
        for line, detector in zip(grid, detectors, strict=True):
            for axes, name in zip(line, names, strict=True):
                for i, label in enumerate(labels):
                    curve = found[name, detector, label]["accuracy"]
                    axes.plot(THRESHOLDS, curve, label=label, ms=3, lw=1.3, **line_style(i))
                axes.set_title(f"{set_title(results, name)}, {detector}", fontsize=9)
                axes.grid(color="#EEEEEE")
                axes.set_ylim(bottom=0)
            line[0].set_ylabel("share of matches correct")
        for axes in grid[-1]:
            axes.set_xlabel("within pixels")
            axes.set_xticks((1, 2, 4, 6, 8, 10))
        handles, texts = grid[0][0].get_legend_handles_labels()
        figure.legend(handles, texts, frameon=False, ncols=len(labels), loc="outside upper left")


def has_accuracy(results: Results, name: str) -> bool:
    """Accuracy needs homographies."""
    return name != "accuracy" or bool(sets_with(results, "accuracy"))
