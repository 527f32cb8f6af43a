"""Figure of the structure-from-motion benchmark: points and errors of the cameras per scene."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.canvas import canvas, line_style, name_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_MEASURES: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("3D points", "{:.0f}", lambda row: row["points"]),
    (
        "centre error (% of extent)",
        "{:.3g}",
        lambda row: row["errors"] and 100 * row["errors"]["centre_relative"],
    ),
)


def draw(results: Mapping[str, Any], path: Path) -> None:
    """A line of panels per scene: points on the left, errors on the right; a bar per method."""
    scenes: dict[str, list[Row]] = {}
    for row in results["rows"]:
        scenes.setdefault(row["scene"], []).append(row)
    heights = [len(rows) for rows in scenes.values()]
    with canvas(path, 9, 0.3 + sum(0.75 + 0.24 * height for height in heights)) as figure:
        grid = figure.subplots(
            len(scenes), len(_MEASURES), squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for line, (scene, rows) in zip(grid, scenes.items(), strict=True):
            for axes, (title, style, value) in zip(line, _MEASURES, strict=True):
                _bars(axes, [value(row) for row in rows], style)
                axes.set_title(f"{scene}: {title}", fontsize=9, loc="left")
            name_rows(line[0], [_name(row) for row in rows])
            name_rows(line[1], [""] * len(rows))


def _name(row: Row) -> str:
    return f"{row['method']} ({row['registered']} of {row['photos']} photos)"


def _bars(axes: Axes, values: list[float | None], style: str) -> None:
    """COLMAP's own SIFT, the first, in another colour."""
    colours = [line_style(0 if i else 1)["color"] for i in range(len(values))]
    lengths = [value or 0.0 for value in values]
    texts = ["-" if value is None else style.format(value) for value in values]
    bars = axes.barh(range(len(values)), lengths, 0.7, color=colours)
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xlim(0, 1.18 * max(lengths) or 1)
    axes.locator_params(axis="x", nbins=4)
