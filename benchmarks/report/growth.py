"""The figure of a growing index.

python benchmarks/report/growth.py results/retrieval_growth.json docs/results/retrieval_growth.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from hardnet.bench.report.style import canvas, line_style


def draw(
    results: Annotated[Path, typer.Argument(help="Written by benchmarks/retrieval_growth.py.")],
    figure: Annotated[Path, typer.Argument(help="PNG or SVG file to write.")],
) -> None:
    """Query time, memory and writing time of a growing index, log-log."""
    content = json.loads(results.read_text())
    rows = content["rows"]
    # The table names the stages of a query in its last columns.
    stages = list(rows[0]["query_ms"])
    names = content["tables"][1]["columns"][-len(stages) :]
    images = [row["images"] for row in rows]
    panels = {
        "query (ms)": {
            name: [row["query_ms"][stage] for row in rows]
            for stage, name in zip(stages, names, strict=True)
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
    with canvas(figure, 10.5, 4.0, 1, len(panels)) as (page, [grid]):
        for axes, (label, lines) in zip(grid, panels.items(), strict=True):
            for index, (name, values) in enumerate(lines.items()):
                # A logarithmic axis cannot show zero, a time too short to measure.
                known = [(x, y) for x, y in zip(images, values, strict=True) if y > 0]
                xs, ys = [x for x, _ in known], [y for _, y in known]
                axes.plot(xs, ys, label=name, ms=3.5, lw=1.4, **line_style(index))
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.grid()
            axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.08), frameon=False, fontsize=8)
            axes.set_title(label, fontsize=9, loc="left")
        page.supxlabel("images", fontsize=9)


if __name__ == "__main__":
    typer.run(draw)
