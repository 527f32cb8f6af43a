"""Tables of the structure-from-motion benchmark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hardnet.bench.report.cells import bold_best
from hardnet.bench.report.table import Table

Row = Mapping[str, Any]


def tables(results: Mapping[str, Any]) -> list[Table]:
    """For each scene the size of the models, then for each the errors of the cameras."""
    scenes: dict[str, list[Row]] = {}
    for row in results["rows"]:
        scenes.setdefault(row["scene"], []).append(row)
    sizes = [_size(name, rows) for name, rows in scenes.items()]
    known = {n: rows for n, rows in scenes.items() if any(row["errors"] for row in rows)}
    return sizes + [_errors(name, rows) for name, rows in known.items()]


def _size(scene: str, rows: list[Row]) -> Table:
    columns = {
        "registered": _column(rows, lambda row: row["registered"], "{:.0f}"),
        "points": _column(rows, lambda row: row["points"], "{:.0f}"),
        "observations": _column(rows, lambda row: row.get("observations"), "{:.0f}"),
        "track length": _column(rows, lambda row: row.get("track_length"), "{:.2f}"),
        "reprojection (px)": _column(
            rows, lambda row: row.get("reprojection_error"), "{:.3f}", smaller=True
        ),
        "keypoints per photo": [f"{row['keypoints']}" for row in rows],
        "seconds": [f"{row['seconds']:.0f}" for row in rows],
    }
    photos = rows[0]["photos"]
    return _table(f"Reconstruction of {scene}, {photos} photos", rows, columns)


def _errors(scene: str, rows: list[Row]) -> Table:
    def of(field: str, factor: float = 1.0) -> Callable[[Row], float | None]:
        return lambda row: row["errors"] and factor * row["errors"][field]

    columns = {
        "mean": _column(rows, of("centre_mean"), "{:.5f}", smaller=True),
        "median": _column(rows, of("centre_median"), "{:.5f}", smaller=True),
        "largest": _column(rows, of("centre_max"), "{:.5f}", smaller=True),
        "mean / extent (%)": _column(rows, of("centre_relative", 100), "{:.4f}", smaller=True),
        "rotation mean (deg)": _column(rows, of("rotation_mean"), "{:.4f}", smaller=True),
    }
    if not rows[0]["calibrated"]:
        columns["focal length (%)"] = _column(rows, of("focal", 100), "{:.3f}", smaller=True)
    note = (
        f"Centre errors in units of the truth, after a similarity; truth: {rows[0]['truth']}; "
        f"calibration {'known' if rows[0]['calibrated'] else 'estimated'}."
    )
    return _table(f"Errors of the cameras of {scene}", rows, columns, note)


def _column(
    rows: list[Row], value: Callable[[Row], float | None], style: str, smaller: bool = False
) -> list[str]:
    return bold_best([value(row) for row in rows], style, smaller)


def _table(title: str, rows: list[Row], columns: Mapping[str, list[str]], note: str = "") -> Table:
    cells = [
        [row["method"], *(column[i] for column in columns.values())] for i, row in enumerate(rows)
    ]
    return Table(title, ["method", *columns], cells, note=note)
