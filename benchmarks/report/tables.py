"""The tables of the benchmarks that only the scripts in benchmarks/ run.

A results file contains its tables, so that `hardnet bench table` and `hardnet bench refresh` show
it without this code. After changing the wording, rebuild the tables from the stored numbers:

    cd benchmarks && python -m report.tables ../results/*.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from hardnet.bench.report.table import Results, Table
from report import collection, learning, matching


def write(results: Mapping[str, Any], output: Path) -> list[Table]:
    """Write a results file with its tables; return the tables."""
    tables = TABLES[results["kind"]](results)
    shown = [
        {"title": t.title, "columns": t.headings, "rows": t.rows, "note": t.note} for t in tables
    ]
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps({**results, "tables": shown}, indent=1) + "\n")
    return tables


def renew(
    paths: Annotated[
        list[Path], typer.Argument(help="Results files; other kinds stay as they are.")
    ],
) -> None:
    """Rebuild the tables of results files from their numbers."""
    for path in paths:
        results = json.loads(path.read_text())
        if results.get("kind") in TABLES:
            write(results, path)


TABLES: Mapping[str, Callable[[Results], list[Table]]] = {
    each.__name__: each
    for each in (
        matching.describe,
        matching.detect,
        matching.extract_folder,
        matching.large_image,
        matching.match_descriptors,
        matching.match_pair,
        matching.defaults,
        matching.orientation,
        matching.start_up,
        collection.assign_words,
        collection.crops,
        collection.groups,
        collection.groups_growth,
        collection.retrieval_growth,
        collection.retrieval_speed,
        collection.serve_soak,
        learning.axes,
        learning.hpatches_scale,
        learning.train_step,
    )
}

if __name__ == "__main__":
    typer.run(renew)
