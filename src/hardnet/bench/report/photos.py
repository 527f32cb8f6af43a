"""Benchmarks on photos: matches of pairs, copies and scenes in a folder, reconstructions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.pairs import summarise
from hardnet.bench.report.style import (
    Figures,
    canvas,
    grouped_bars,
    legend_beside,
    line_style,
    name_rows,
)
from hardnet.bench.report.table import (
    BASELINE,
    Column,
    Results,
    Table,
    against_baseline,
    by_name,
    column,
    ratio,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_COUNTS = {
    "tentative": "matches",
    "correct": "correct",
    "inliers": "inliers",
    "correct_inliers": "correct inliers",
}


def tables_of_pairs(results: Results) -> list[Table]:
    """Totals, then correct matches and verified pairs per sequence."""
    totals = summarise(results["rows"], "sequence")
    counts = [groups["all"] for groups in totals.values()]
    baseline = totals.get(BASELINE, {}).get("all", {}).get("correct")
    columns = [
        Column("descriptor", list(totals)),
        Column("verified pairs", [f"{each['verified']} / {each['pairs']}" for each in counts]),
        *(column(name, counts, key, "{}") for key, name in _COUNTS.items()),
        *against_baseline("correct", [ratio(each["correct"], baseline) for each in counts]),
    ]
    return [
        Table("Matches on real pairs", columns),
        by_name("Correct matches per sequence", "sequence", _values(results, "correct"), "{:.0f}"),
        by_name("Verified pairs per sequence", "sequence", _values(results, "verified"), "{:.0f}"),
    ]


def figures_of_pairs(results: Results) -> Figures:
    """Bars of the correct matches."""
    return {"bars": partial(_draw_pairs, results)}


def _values(results: Results, field: str) -> dict[str, dict[str, float]]:
    totals = summarise(results["rows"], "sequence")
    return {
        label: {name: float(counts[field]) for name, counts in groups.items() if name != "all"}
        for label, groups in totals.items()
    }


def _draw_pairs(results: Results, path: Path) -> None:
    values = _values(results, "correct")
    names = list(next(iter(values.values())))
    with canvas(path, 3.0 + 0.9 * len(names), 3.6) as figure:
        axes = figure.subplots()
        grouped_bars(axes, {who: [each[n] for n in names] for who, each in values.items()})
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel("correct matches")
        legend_beside(figure)


def tables_of_groups(results: Results) -> list[Table]:
    """Recall per edit, what was joined wrongly, sweeps, then what views of a scene are called."""
    edits, methods, rules = results["edits"], results["methods"], results["rules"]
    settings, photos = results["provenance"]["settings"], results["photos"]
    hashes = f"hashes: {rules['hash']} ({settings['distance']})"
    recall = Table(
        f"Copies of {photos['sources']} photographs that are found, among {photos['all']} photos",
        [
            column("edit", edits, "edit"),
            column("kind", edits, "kind"),
            column("hardnet groups", edits, "hardnet", "{:.3f}"),
            column("of the right kind", edits, "kind_right", "{:.3f}"),
            column("corner error (%)", edits, "map_error", "{:.2f}"),
            column("pHash", edits, "phash", "{:.3f}"),
            column("dHash", edits, "dhash", "{:.3f}"),
        ],
        f"Found: {rules['found']}; {hashes}. Corner error: {rules['map']}.",
    )
    wrong = Table(
        f"What is joined wrongly, per 1,000 of {photos['all']} photos",
        [
            column("method", methods, "method"),
            column("pairs", methods, "pairs", "{}"),
            column("groups", methods, "groups", "{}"),
            column("false copies", methods, "false_copies_per_1000", "{:.1f}"),
            column("false groups", methods, "false_groups_per_1000", "{:.1f}"),
            column("same object", methods, "same_object", "{:.3f}"),
        ],
        f"False copies: {rules['false copies']}. False groups: {rules['false groups']}. "
        f"Same object: {rules['same object']}.",
    )
    found = [recall, wrong]
    if sweeps := results.get("sweeps"):
        found.append(_sweeps(sweeps, results["methods"][0], rules))
    if not (scenes := results.get("scenes")):
        return found
    listed = [
        row | {"kinds": ", ".join(f"{count} {kind}" for kind, count in row["pairs"].items()) or "-"}
        for row in scenes
    ]
    views = Table(
        "Photos of one scene",
        [
            column("scene", listed, "scene"),
            column("photos", listed, "photos", "{}"),
            column("pairs", listed, "kinds"),
            column("together", listed, "together", "{:.2f}"),
            column("as", listed, "group"),
        ],
        f"Together: {rules['together']}.",
    )
    return [*found, views]


def _sweeps(sweeps: list[Row], ours: Row, rules: Mapping[str, str]) -> Table:
    return Table(
        "Sweeps of a camera that are found as a panorama",
        [
            column("neighbours share (%)", sweeps, "shared", "{}"),
            column("sweeps", sweeps, "sweeps", "{}"),
            column("found", sweeps, "found", "{:.2f}"),
            column("in order", sweeps, "ordered", "{:.2f}"),
        ],
        f"Found: {rules['sweep']}. False panoramas: {ours['false_panoramas_per_1000']:.1f} per "
        f"1,000 photos ({rules['false panoramas']}).",
    )


def tables_of_sfm(results: Results) -> list[Table]:
    """For each scene the size of the models, then for each the errors of the cameras."""
    scenes = _scenes(results)
    known = {n: rows for n, rows in scenes.items() if any(row["errors"] for row in rows)}
    return [
        *(_size(name, rows) for name, rows in scenes.items()),
        *(_errors(name, rows) for name, rows in known.items()),
    ]


def figures_of_sfm(results: Results) -> Figures:
    """Points and errors of the cameras per scene."""
    return {"bars": partial(_draw_sfm, results)}


def _scenes(results: Results) -> dict[str, list[Row]]:
    scenes: dict[str, list[Row]] = {}
    for row in results["rows"]:
        scenes.setdefault(row["scene"], []).append(row)
    return scenes


def _size(scene: str, rows: list[Row]) -> Table:
    return Table(
        f"Reconstruction of {scene}, {rows[0]['photos']} photos",
        [
            column("method", rows, "method"),
            *(column(f, rows, f, "{:.0f}", "largest") for f in ("registered", "points")),
            column("observations", rows, "observations", "{:.0f}", "largest"),
            column("track length", rows, "track_length", "{:.2f}", "largest"),
            column("reprojection (px)", rows, "reprojection_error", "{:.3f}", "smallest"),
            column("keypoints per photo", rows, "keypoints", "{}"),
            column("seconds", rows, "seconds", "{:.0f}"),
        ],
    )


def _errors(scene: str, rows: list[Row]) -> Table:
    errors, calibrated = [row["errors"] or {} for row in rows], rows[0]["calibrated"]
    columns = [column("method", rows, "method")]
    for heading, field, style, factor in (
        ("mean", "centre_mean", "{:.5f}", 1),
        ("median", "centre_median", "{:.5f}", 1),
        ("largest", "centre_max", "{:.5f}", 1),
        ("mean / extent (%)", "centre_relative", "{:.4f}", 100),
        ("rotation mean (deg)", "rotation_mean", "{:.4f}", 1),
        *(() if calibrated else [("focal length (%)", "focal", "{:.3f}", 100)]),
    ):
        columns.append(column(heading, errors, field, style, "smallest", factor))
    return Table(
        f"Errors of the cameras of {scene}",
        columns,
        f"Centre errors in units of the truth, after a similarity; truth: {rows[0]['truth']}; "
        f"calibration {'known' if calibrated else 'estimated'}.",
    )


_MEASURES: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("3D points", "{:.0f}", lambda row: row["points"]),
    (
        "centre error (% of extent)",
        "{:.3g}",
        lambda row: row["errors"] and 100 * row["errors"]["centre_relative"],
    ),
)


def _draw_sfm(results: Results, path: Path) -> None:
    """A line of panels per scene: points on the left, errors on the right; a bar per method."""
    scenes = _scenes(results)
    heights = [len(rows) for rows in scenes.values()]
    with canvas(path, 9, 0.3 + sum(0.75 + 0.24 * height for height in heights)) as figure:
        grid = figure.subplots(
            len(scenes), len(_MEASURES), squeeze=False, gridspec_kw={"height_ratios": heights}
        )
        for line, (scene, rows) in zip(grid, scenes.items(), strict=True):
            for axes, (title, style, value) in zip(line, _MEASURES, strict=True):
                _bars(axes, [value(row) for row in rows], style)
                axes.set_title(f"{scene}: {title}", fontsize=9, loc="left")
            name_rows(
                line[0],
                [f"{r['method']} ({r['registered']} of {r['photos']} photos)" for r in rows],
            )
            name_rows(line[1], [""] * len(rows))


def _bars(axes: Axes, values: list[float | None], style: str) -> None:
    """COLMAP's SIFT, the first, in another colour."""
    colours = [line_style(0 if i else 1)["color"] for i in range(len(values))]
    lengths = [value or 0.0 for value in values]
    texts = ["-" if value is None else style.format(value) for value in values]
    bars = axes.barh(range(len(values)), lengths, 0.7, color=colours)
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xlim(0, 1.18 * max(lengths) or 1)
    axes.locator_params(axis="x", nbins=4)
