"""Training studies: our cells next to the paper's, the claims, every run; and their figures."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.report.style import Figures, canvas, line_style, name_rows
from hardnet.bench.report.table import (
    Best,
    Column,
    Ends,
    Results,
    Row,
    Table,
    Value,
    column,
    distinct,
    interval,
)
from hardnet.errors import HardnetError


class Measure(NamedTuple):
    """How a measure of a cell is shown."""

    title: str
    style: str
    factor: int
    best: Best


MEASURES = {
    "matching": Measure("matching mAP", "{:.3f}", 1, "largest"),
    "fpr95": Measure("FPR95 [%]", "{:.2f}", 100, "smallest"),
}


def tables(results: Results) -> list[Table]:
    measures = _taken(results)
    shown = [_list(results)]
    if _is_grid(results):
        shown = [_matrix(results, measure) for measure in measures]
    claims, note = results["claims"], _CLEARLY
    if all(len(cell["runs"]) <= 1 for cell in results["cells"]):
        note += " Each cell was trained once: variation between runs is not included."
    return [
        *shown,
        Table(
            f"{results['title']}: does the paper's ordering hold here?",
            [
                column("claim", claims, "claim"),
                column("by", claims, lambda claim: MEASURES[claim["measure"]].title),
                column("holds", claims, "answer"),
                column("pairs that hold", claims, "{hold} of {pairs}".format_map),
                column("clearly", claims, "clear", "{}"),
                column("pairs that contradict", claims, lambda c: "; ".join(c["against"]) or None),
            ],
            note,
        ),
    ]


_CLEARLY = (
    "Clearly: the interval of the difference excludes zero (matching: sequences resampled; FPR95: "
    "the two intervals do not overlap) and all seeds agree. Open: no pair contradicts, but some "
    "were not run."
)


def figures(results: Results) -> Figures:
    """A grid of cells as rows of dots next to the paper's, a list of cells as a curve."""
    return {"cells": _draw_dots if _is_grid(results) else _draw_curve}


def claim_lines(results: Results) -> list[str]:
    """The claims as lines for a terminal, which is too narrow for their table."""
    lines = []
    for claim in results["claims"]:
        counted = f"{claim['hold']} of {claim['pairs']} pairs, {claim['clear']} clearly"
        by = MEASURES[claim["measure"]].title
        lines.append(f"{claim['answer']:4} {claim['claim']} ({by}: {counted})")
        lines += [f"     against: {pair}" for pair in claim["against"]]
    return lines


def _is_grid(results: Results) -> bool:
    return any(cell["column"] for cell in results["cells"])


def _taken(results: Results) -> list[str]:
    present = [m for m in MEASURES if any(m in cell for cell in results["cells"])]
    return sorted(present, key=lambda measure: measure != results["measure"])


def _number(cell: Row, measure: str, key: str = "value") -> float | None:
    found = (cell.get(measure) or {}).get(key)
    return None if found is None else MEASURES[measure].factor * float(found)


def _ends(cell: Row, measure: str) -> Ends:
    return _number(cell, measure, "low"), _number(cell, measure, "high")


def _matrix(results: Results, measure: str) -> Table:
    cells = {(cell["row"], cell["column"]): cell for cell in results["cells"]}
    rows, across = (distinct(results["cells"], field) for field in ("row", "column"))
    what, style, _, best = MEASURES[measure]

    def ours(cell: Row) -> Value:
        value = _number(cell, measure)
        return "diverged" if cell.get("failed") and value is None else value

    columns = [Column(results["corner"], rows)]
    for name in across:
        of_column = [cells.get((row, name)) for row in rows]
        columns.append(column(name, of_column, ours, style, best, group=f"here, {what}"))
    for name in across if measure == results["measure"] else ():
        of_column = [cells.get((row, name)) for row in rows]
        paper = column(name, of_column, "paper", style, group=f"paper, {what}")
        if any(value is not None for value in paper.values):
            columns.append(paper)
    note = _note(results) if measure == _taken(results)[0] else ""
    return Table(f"{results['title']}: {what}", columns, note, best_of="table")


def _list(results: Results) -> Table:
    cells: Sequence[Row] = results["cells"]
    steps = [str(cell["runs"][0]["steps"]) if cell["runs"] else None for cell in cells]
    columns = [column(results["corner"], cells, "row"), Column("steps", steps)]
    for measure in _taken(results):
        title, style, _, best = MEASURES[measure]
        columns.append(Column(title, [_number(cell, measure) for cell in cells], style, best))
        texts = [interval(*_ends(cell, measure), style=style) for cell in cells]
        columns.append(Column("95 % interval", texts))
    return Table(results["title"], columns, _note(results))


def _note(results: Results) -> str:
    said = [f"Paper: {results['says']} ({results['source']}). Here: {results['training']}."]
    said += results["notes"]
    if results["missing"]:
        said.append(f"Not run: {', '.join(results['missing'])}.")
    return " ".join(said)


def _draw_dots(results: Results, path: Path) -> None:
    cells: Sequence[Row] = results["cells"]
    rows, columns = distinct(cells, "row"), distinct(cells, "column")
    panels = [(measure, False) for measure in _taken(results)] + [(results["measure"], True)]
    styles = [
        {k: v for k, v in line_style(i).items() if k != "linestyle"} for i in range(len(columns))
    ]
    size = 1.9 + 2.7 * len(panels), 1.5 + (0.16 + 0.13 * len(columns)) * len(rows)
    with canvas(path, *size, 1, len(panels), sharey=True) as (figure, [drawn]):
        for axes, (measure, of_paper) in zip(drawn, panels, strict=True):
            for cell in cells:
                number = columns.index(cell["column"])
                y = rows.index(cell["row"]) + 0.7 * ((number + 0.5) / len(columns) - 0.5)
                value = cell["paper"] if of_paper else _number(cell, measure)
                low, high = (None, None) if of_paper else _ends(cell, measure)
                if isinstance(value, str):
                    text = {"transform": axes.get_yaxis_transform(), "va": "center"}
                    axes.text(0.02, y, value, fontsize=6.5, color="#777777", **text)
                    continue
                if low is not None and high is not None:
                    axes.plot([low, high], [y, y], color=styles[number]["color"], lw=1)
                if value is not None:
                    axes.plot(value, y, lw=0, ms=5, **styles[number])
            name_rows(axes, rows)
            axes.set(xlim=(0, None), xlabel=MEASURES[measure].title)
            axes.grid(axis="x")
            axes.set_title("paper" if of_paper else "here", fontsize=10)
        marks = [
            drawn[0].plot([], [], lw=0, ms=5, label=column, **style)[0]
            for column, style in zip(columns, styles, strict=True)
        ]
        figure.legend(handles=marks, loc="outside lower center", ncols=len(columns), frameon=False)


def _draw_curve(results: Results, path: Path) -> None:
    measures, colour = _taken(results), line_style(0)["color"]
    across = max(len(measures), 1)
    with canvas(path, 3.6 * across, 3.2, 1, across) as (figure, [panels]):
        for axes, measure in zip(panels, measures, strict=False):
            run = [cell for cell in results["cells"] if _number(cell, measure) is not None]
            places = [float(cell["row"]) for cell in run]
            axes.plot(places, [_number(cell, measure) for cell in run], "o-", color=colour)
            for place, cell in zip(places, run, strict=True):
                ends = _ends(cell, measure)
                if None not in ends:
                    axes.plot([place, place], ends, color=colour, lw=1, alpha=0.6)
            axes.set_xscale("log", base=2)
            axes.set_xticks(places, [cell["row"] for cell in run])
            axes.minorticks_off()
            axes.set(ylim=(0, None), xlabel=results["corner"], ylabel=MEASURES[measure].title)
            axes.grid()
        figure.suptitle(f"Paper: {results['says']}", fontsize=9)


def draw_training(runs: Sequence[Path], path: Path) -> None:
    """Training curves: loss on the left, held-out FPR95 on the right; one line per run."""
    curves = {run.name: [read_log(run, c) for c in ("loss", "fpr95")] for run in runs}
    with canvas(path, 8.5, 3.2, 1, 2) as (_, [[left, right]]):
        for number, (name, (loss, fpr95)) in enumerate(curves.items()):
            style = line_style(number)
            left.plot(thin(loss[0]) / 1e6, thin(loss[1]), label=name, **style | {"marker": ""})
            right.plot(fpr95[0] / 1e6, 100 * fpr95[1], ms=3, label=name, **style)
        left.set(xlabel="million pairs", ylabel="loss")
        right.set(xlabel="million pairs", ylabel="FPR95 on held-out pairs, %", yscale="log")
        left.grid()
        right.grid()
        left.legend(frameon=False)


def read_log(run: Path, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n,) pairs seen and (n,) values of a column of a run's log, where it is filled."""
    path = run / "log.csv"
    if not path.is_file():
        raise HardnetError(f"{run} is not a training run: it has no log.csv")
    with path.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    seen, values = ([float(row[key]) for row in rows] for key in ("pairs", column))
    return np.array(seen), np.array(values)


def thin(values: NDArray[np.float64], count: int = 120) -> NDArray[np.float64]:
    parts = np.array_split(values, min(count, len(values))) if len(values) else []
    return np.array([part.mean() for part in parts])


_LOSSES = {
    ("triplet", 1.0): "triplet margin, m = 1",
    ("softmin", 1.0): "softmin",
    ("contrastive", 1.0): "contrastive, m = 1",
    ("contrastive", 2.0): "contrastive, m = 2",
}
_PULLS = (
    r"pull of the positive  $|\partial L / \partial p|$",
    r"push of the negative  $|\partial L / \partial n|$",
)
_SAMPLES = 201  # of a distance; an odd number, so that none lies on the edge d(a, n) = 1 + d(a, p)


def draw_gradients(path: Path) -> None:
    """The paper's figure of gradient magnitudes, drawn from the losses that train.

    One column per loss: what pulls the positive above, what pushes the negative below. The paper
    overlays the two; side by side, "half of both" does not look like "all of one".
    """
    from hardnet.learn.losses import gradient_magnitudes

    furthest = 2.0
    distances = (np.arange(_SAMPLES) + 0.5) * furthest / _SAMPLES
    both_ways = {"sharex": True, "sharey": True}
    with canvas(path, 10.2, 4.9, 2, len(_LOSSES), **both_ways) as (figure, grid):
        from matplotlib.colors import LinearSegmentedColormap  # canvas fails first if it is missing

        colours = LinearSegmentedColormap.from_list("magnitude", ("#F7F7F7", "#0072B2"))
        for column, ((loss, margin), title) in enumerate(_LOSSES.items()):
            both = gradient_magnitudes(loss, margin, distances, distances)
            extent = (0, furthest, 0, furthest)
            for axes, values in zip(grid[:, column], both, strict=True):
                image = axes.imshow(
                    values, origin="lower", extent=extent, cmap=colours, vmin=0, vmax=1
                )
                axes.plot([0, furthest], [0, furthest], color="black", lw=1, ls=":")
                whole, ticks = (0, furthest), (0, 1, 2)
                axes.set(xlim=whole, ylim=whole, xticks=ticks, yticks=ticks)
            grid[0, column].set_title(title, fontsize=10)
            grid[1, column].set_xlabel("d(a, n)")
        for x, y, text in ((0.1, 1.75, "negative closer"), (1.05, 0.2, "match closer")):
            grid[0, -1].text(x, y, text, color="white")
        for axes in grid[:, 0]:
            axes.set_ylabel("d(a, p)")
        for line, label in zip(grid, _PULLS, strict=True):
            bar = figure.colorbar(image, ax=list(line), ticks=(0, 0.5, 1), aspect=12, pad=0.01)
            bar.outline.set_visible(False)
            bar.set_label(label)
