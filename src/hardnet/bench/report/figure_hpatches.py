"""The HPatches figure of the paper: verification, matching and retrieval side by side.

One row per descriptor, the best on top; a bar to the mean with its number and interval; dots for
the noise levels (colour) and the kind of negatives or of sequences (shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report import hpatches_numbers as numbers
from hardnet.bench.report.canvas import (
    BAR,
    NOISE_COLOURS,
    canvas,
    end_axis,
    name_rows,
    round_ticks,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHAPES = {
    "verification": ("negatives", {"inter": ("o", "DiffSeq"), "intra": ("D", "SameSeq")}),
    "matching": (
        "group",
        {"viewpoint": ("<", "Viewpt"), "illumination": ("P", "Illum"), "other": ("o", "other")},
    ),
}
_LANES = (-0.2, 0.0, 0.1)
_WHISKER = 0.28
"""Places within a row, so that dots of one value and the interval do not hide each other."""
_TITLES = {
    "verification": "Patch verification, mAP [%]",
    "matching": "Image matching, mAP [%]",
    "retrieval": "Patch retrieval, mAP [%]",
}


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Draw one panel per task that was run."""
    tasks, names = numbers.tasks(results), numbers.descriptors(results)
    longest = max(len(name) for name in names)
    width = 0.6 + len(tasks) * (2.6 + 0.07 * longest)
    with canvas(path, width, 1.5 + 0.36 * len(names)) as figure:
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        for axes, task in zip(panels, tasks, strict=True):
            _panel(axes, results, task, numbers.ranking(results, task, names))
        figure.legend(
            handles=[_dot("s", colour, noise.upper()) for noise, colour in NOISE_COLOURS.items()],
            loc="outside upper center",
            ncols=len(NOISE_COLOURS),
            frameon=False,
        )


def _panel(axes: Axes, results: Mapping[str, Any], task: str, names: list[str]) -> None:
    means, spreads = numbers.headline(results, task), numbers.spread(results, task)
    place = {name: i for i, name in enumerate(names)}
    axes.barh(range(len(names)), [100 * means[n] for n in names], 0.8, color=BAR, zorder=1)
    for name, (low, high) in spreads.items():
        ends = 100 * min(low, means[name]), 100 * max(high, means[name])
        y = place[name] + _WHISKER
        axes.plot(ends, [y, y], color="black", lw=1, marker="|", ms=4, zorder=2)
    name_rows(axes, names)
    field, shapes = _SHAPES.get(task, ("", {"": ("o", "")}))
    furthest = 0.0
    for noise, colour in NOISE_COLOURS.items():
        for lane, (kind, (shape, _)) in enumerate(shapes.items()):
            where: dict[str, str | int] = {"noise": noise}
            if field:
                where[field] = kind
            if task == "retrieval":
                where["distractors"] = numbers.most_distractors(results)
            values = numbers.mean(results, task, f"ap_{numbers.PAPER[task]}", **where)
            if not values:
                continue
            xs = [100 * value for value in values.values()]
            ys = [place[name] + _LANES[lane] for name in values]
            axes.scatter(
                xs, ys, s=26, c=colour, marker=shape, linewidths=0.4, edgecolors="white", zorder=3
            )
            furthest = max(furthest, *xs)
    furthest = max([furthest, *(100 * high for _, high in spreads.values())])
    for name in names:
        # The numbers stand in a column to the right of everything: no dot can hide them.
        axes.text(furthest * 1.05, place[name], f"{100 * means[name]:.2f}", va="center")
    axes.set_xlim(0, furthest * 1.22)
    end_axis(axes, round_ticks(furthest))
    axes.set_xlabel(_TITLES[task])
    used = {row[field] for row in results[task]} if field else set()
    handles = [_dot(s, "#555555", text) for kind, (s, text) in shapes.items() if kind in used]
    if handles:
        axes.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False
        )


def _dot(shape: str, colour: str, label: str) -> Any:
    """An entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=shape, color=colour, label=label)
