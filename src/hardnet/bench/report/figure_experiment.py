"""Figures of an experiment: dots beside the paper's, or a curve over the batch size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.report.canvas import canvas, line_style, name_rows
from hardnet.bench.report.experiment import MEASURES, shown_value, taken

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Cell = Mapping[str, Any]


def draw(results: Mapping[str, Any], path: Path) -> None:
    """Cells with columns as rows of dots, cells without as a curve."""
    if any(cell["column"] for cell in results["cells"]):
        _draw_dots(results, path)
    else:
        _draw_curves(results, path)


def _draw_dots(results: Mapping[str, Any], path: Path) -> None:
    """One line per row of the table, a mark per column: our measures, then the paper's."""
    cells: Sequence[Cell] = results["cells"]
    rows = list(dict.fromkeys(cell["row"] for cell in cells))
    columns = list(dict.fromkeys(cell["column"] for cell in cells))
    panels = [(measure, False) for measure in taken(results)] + [(results["measure"], True)]
    height = 1.5 + (0.16 + 0.13 * len(columns)) * len(rows)
    with canvas(path, 1.9 + 2.7 * len(panels), height) as figure:
        drawn = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
        for axes, (measure, of_paper) in zip(drawn, panels, strict=True):
            for cell in cells:
                number = columns.index(cell["column"])
                place = rows.index(cell["row"]) + 0.7 * ((number + 0.5) / len(columns) - 0.5)
                if of_paper:
                    _mark_paper(axes, cell, place, number)
                else:
                    _mark(axes, cell, measure, place, number)
            name_rows(axes, rows)
            axes.set_xlim(left=0)
            axes.grid(axis="x", color="#EEEEEE")
            axes.set_axisbelow(True)
            axes.set_xlabel(MEASURES[measure])
            axes.set_title("paper" if of_paper else "here", fontsize=10)
        marks = [
            drawn[0].plot([], [], lw=0, ms=5, label=column, **_mark_style(i))[0]
            for i, column in enumerate(columns)
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(columns), frameon=False)


def _mark(axes: Axes, cell: Cell, measure: str, place: float, number: int) -> None:
    value = shown_value(cell, measure)
    if value is None:
        return
    low, high = _ends(cell, measure)
    colour = _mark_style(number)["color"]
    if low is not None and high is not None:
        axes.plot([low, high], [place, place], color=colour, lw=1)
    axes.plot(value, place, lw=0, ms=5, **_mark_style(number))


def _mark_paper(axes: Axes, cell: Cell, place: float, number: int) -> None:
    if isinstance(cell["paper"], str):
        style: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "center"}
        axes.text(0.02, place, cell["paper"], fontsize=6.5, color="#777777", **style)
    elif cell["paper"] is not None:
        axes.plot(cell["paper"], place, lw=0, ms=5, **_mark_style(number))


def _draw_curves(results: Mapping[str, Any], path: Path) -> None:
    """One panel per measure over the rows, which are numbers."""
    measures = taken(results)
    with canvas(path, 3.6 * max(len(measures), 1), 3.2) as figure:
        panels = figure.subplots(1, max(len(measures), 1), squeeze=False)[0]
        for axes, measure in zip(panels, measures, strict=False):
            run = [cell for cell in results["cells"] if shown_value(cell, measure) is not None]
            places = [float(cell["row"]) for cell in run]
            axes.plot(places, [shown_value(cell, measure) for cell in run], "o-", color="#0072B2")
            for place, cell in zip(places, run, strict=True):
                low, high = _ends(cell, measure)
                if low is not None and high is not None:
                    axes.plot([place, place], [low, high], color="#0072B2", lw=1, alpha=0.6)
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [cell["row"] for cell in run])
            axes.minorticks_off()
            axes.set_ylim(bottom=0)
            axes.grid(color="#EEEEEE")
            axes.set_axisbelow(True)
            axes.set_xlabel(results["corner"])
            axes.set_ylabel(MEASURES[measure])
        figure.suptitle(f"Paper: {results['says']}", fontsize=9)


def _ends(cell: Cell, measure: str) -> tuple[float | None, float | None]:
    found = cell[measure]
    if found["low"] is None:
        return None, None
    factor = 1 if measure == "matching" else 100
    return factor * found["low"], factor * found["high"]


def _mark_style(number: int) -> dict[str, Any]:
    """Colour and shape of a column, no line."""
    return {key: value for key, value in line_style(number).items() if key != "linestyle"}
