"""Benchmarks on photos: pairs, copies and scenes, reconstructions; pose, light, ratio of patches.

The last three share one form of entry per setup (how keypoints are detected) and descriptor: a
score over the held-out scenes ("report"), one over the tuning scenes ("choose"), and one per scene.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hardnet.bench.development import PRECISION
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
    MISSING,
    Best,
    Column,
    Results,
    Table,
    against_baseline,
    by_name,
    column,
    distinct,
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


def _values(results: Results, field: str) -> dict[str, dict[str, float]]:
    totals = summarise(results["rows"], "sequence")
    return {
        label: {name: float(counts[field]) for name, counts in groups.items() if name != "all"}
        for label, groups in totals.items()
    }


def draw_pairs(results: Results, path: Path) -> None:
    """Bars of the correct matches."""
    values = _values(results, "correct")
    names = list(next(iter(values.values())))
    with canvas(path, 3.0 + 0.9 * len(names), 3.6) as figure:
        axes = figure.subplots()
        grouped_bars(axes, {who: [each[n] for n in names] for who, each in values.items()})
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel("correct matches")
        legend_beside(figure)


def tables_of_groups(results: Results) -> list[Table]:
    """Recall per edit, wrong groups, sweeps, and the kinds of views of a scene."""
    edits, methods, rules = results["edits"], results["methods"], results["rules"]
    settings, photos = results["provenance"]["settings"], results["photos"]
    hashes = f"hashes: {rules['hash']} ({settings['distance']})"
    recall = Table(
        f"Copies of {photos['sources']} photographs found among {photos['all']} photos",
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
        f"Wrong groups per 1,000 photos, among {photos['all']}",
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
    sweeps, scenes = results.get("sweeps", []), results.get("scenes", [])
    swept = Table(
        "Camera sweeps found as panoramas",
        [
            column("neighbours share (%)", sweeps, "shared", "{}"),
            column("sweeps", sweeps, "sweeps", "{}"),
            column("found", sweeps, "found", "{:.2f}"),
            column("in order", sweeps, "ordered", "{:.2f}"),
        ],
        f"Found: {rules['sweep']}. False panoramas: {methods[0]['false_panoramas_per_1000']:.1f} "
        f"per 1,000 photos ({rules['false panoramas']}).",
    )
    kinds = [", ".join(f"{n} {kind}" for kind, n in row["pairs"].items()) for row in scenes]
    views = Table(
        "Photos of one scene",
        [
            column("scene", scenes, "scene"),
            column("photos", scenes, "photos", "{}"),
            Column("pairs", [each or MISSING for each in kinds]),
            column("in the largest group", scenes, "together", "{:.2f}"),
            column("kind of group", scenes, "group"),
        ],
        f"In the largest group: {rules['together']}.",
    )
    return [recall, wrong, *([swept] if sweeps else []), *([views] if scenes else [])]


def tables_of_sfm(results: Results) -> list[Table]:
    """The size of each scene's models, then the camera errors of each scene."""
    scenes = _grouped(results["rows"], "scene")
    known = {n: rows for n, rows in scenes.items() if any(row["errors"] for row in rows)}
    return [
        *(_size(name, rows) for name, rows in scenes.items()),
        *(_errors(name, rows) for name, rows in known.items()),
    ]


def _grouped(rows: list[Row], field: str) -> dict[str, list[Row]]:
    return {name: [row for row in rows if row[field] == name] for name in distinct(rows, field)}


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
        f"Camera errors of {scene}",
        columns,
        "Centre errors are in units of the ground truth, after alignment by a similarity. Ground "
        f"truth: {rows[0]['truth']}. Calibration: {'known' if calibrated else 'estimated'}.",
    )


_MEASURES: tuple[tuple[str, str, Callable[[Row], float | None]], ...] = (
    ("3D points", "{:.0f}", lambda row: row["points"]),
    (
        "centre error (% of extent)",
        "{:.3g}",
        lambda row: row["errors"] and 100 * row["errors"]["centre_relative"],
    ),
)


def draw_sfm(results: Results, path: Path) -> None:
    """A row of panels per scene: points on the left, errors on the right; a bar per method."""
    scenes = _grouped(results["rows"], "scene")
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
    """The first bar, COLMAP's SIFT, has its own colour."""
    colours = [line_style(0 if i else 1)["color"] for i in range(len(values))]
    lengths = [value or 0.0 for value in values]
    texts = ["-" if value is None else style.format(value) for value in values]
    bars = axes.barh(range(len(values)), lengths, 0.7, color=colours)
    axes.bar_label(bars, texts, padding=3, fontsize=8)
    axes.set_xlim(0, 1.18 * max(lengths) or 1)
    axes.locator_params(axis="x", nbins=4)


@dataclass(frozen=True)
class Show:
    """How to show one of the benchmarks."""

    field: str
    score: str
    scenes: str
    title: str


SHOWS = {
    "pose": Show("maa", "mAA(10)", "scenes", "Relative pose of photo pairs"),
    "light": Show("ap", "mean AP", "cameras", "Fixed cameras under changing light"),
    "ratio": Show(
        "ap", "mean AP", "scenes", "Patches at detected frames, by the ratio of distances"
    ),
}
_CORRECT = (f"Correct matches per pair at a precision of {PRECISION:.0%}", "correct", "{:.1f}")
_MORE = {"pose": [_CORRECT, ("Ratio of the ratio test", "ratio", "{:g}")], "light": [_CORRECT]}
"""Other numbers per scene: title, field, style."""
_ROLES = {"report": "held-out scenes", "choose": "tuning scenes"}


def tables_of_scenes(results: Results) -> list[Table]:
    """The summary, then the scores of each scene and its chosen ratio and correct matches."""
    show = SHOWS[results["kind"]]
    lines = list(chain.from_iterable(_grouped(results["entries"], "setup").values()))
    title = f"{show.title}: {show.score} per {show.scenes.removesuffix('s')}"
    measured = {field for e in lines for one in e[show.scenes].values() for field in one}
    more = [each for each in _MORE.get(results["kind"], []) if each[1] in measured]
    per_scene = [(title, show.field, "{:.3f}"), *more]
    return [_summary(lines, show), *(_by_scene(lines, show, *each) for each in per_scene)]


def figures_of_scenes(results: Results) -> Figures:
    """Curves of pose errors, bars for the other kinds; held-out scenes only."""
    if all(entry["report"]["interval"][0] is None for entry in results["entries"]):
        return {}
    return {"curves": _draw_pose} if results["kind"] == "pose" else {"bars": _draw_bars}


def _table(title: str, lines: list[Row], columns: list[Column], note: str = "") -> Table:
    setups = [entry["setup"] for entry in lines]
    names = [Column("keypoints", setups), column("descriptor", lines, "descriptor")]
    return Table(title, [*names, *columns], note, blocks=setups)


def _summary(lines: list[Row], show: Show) -> Table:
    def score(role: str) -> Column:
        return Column(
            f"{show.score}, {_ROLES[role]}",
            [entry[role][show.field] for entry in lines],
            best="largest",
            intervals=[tuple(entry[role]["interval"]) for entry in lines],
        )

    baselines = {e["setup"]: e["report"][show.field] for e in lines if e["descriptor"] == BASELINE}
    ratios = [ratio(e["report"][show.field], baselines.get(e["setup"])) for e in lines]
    roles = {name: one["role"] for e in lines for name, one in e[show.scenes].items()}
    report, choose = (
        ", ".join(name for name, role in roles.items() if role == wanted) or "none"
        for wanted in ("report", "choose")
    )
    return _table(
        show.title,
        lines,
        [score("report"), *against_baseline("", ratios), score("choose")],
        f"Held-out scenes: {report}; tuning scenes: {choose}. 95% intervals over photos.",
    )


def _by_scene(lines: list[Row], show: Show, title: str, field: str, style: str) -> Table:
    best: Best | None = None if field == "ratio" else "largest"
    columns = [
        Column(scene, [e[show.scenes].get(scene, {}).get(field) for e in lines], style, best)
        for scene in dict.fromkeys(name for e in lines for name in e[show.scenes])
    ]
    return _table(title, lines, columns)


def _draw_pose(results: Results, path: Path) -> None:
    """One panel per setup: the share of pairs below 1 to 20 degrees, held-out scenes."""
    setups = _grouped(results["entries"], "setup")
    names = distinct(results["entries"], "descriptor")
    with canvas(path, 1.5 + 3.1 * len(setups), 3.0) as figure:
        panels = figure.subplots(1, len(setups), sharey=True, squeeze=False)[0]
        for axes, (setup, entries) in zip(panels, setups.items(), strict=True):
            for entry in entries:
                curves = [s["curve"] for s in entry["scenes"].values() if s["role"] == "report"]
                if curves:
                    mean = [sum(shares) / len(shares) for shares in zip(*curves, strict=True)]
                    style = line_style(names.index(entry["descriptor"])) | {"markersize": 3}
                    axes.plot(range(1, len(mean) + 1), mean, label=entry["descriptor"], **style)
            axes.set_title(setup, fontsize=9)
            axes.set_xlabel("pose error below (degrees)")
            axes.set_ylim(0, 1)
            axes.grid()
        panels[0].set_ylabel("share of the pairs")
        legend_beside(figure)


def _draw_bars(results: Results, path: Path) -> None:
    """Setups along the axis, a bar per descriptor: the score over the held-out scenes."""
    show, setups = SHOWS[results["kind"]], distinct(results["entries"], "setup")
    found = {(e["setup"], e["descriptor"]): e["report"] for e in results["entries"]}
    names = distinct(results["entries"], "descriptor")
    values = {n: [found.get((s, n), {}).get(show.field) for s in setups] for n in names}
    with canvas(path, 3.0 + 1.6 * len(setups), 3.0) as figure:
        axes = figure.subplots()
        for name, bars in zip(names, grouped_bars(axes, values), strict=True):
            for setup, bar in zip(setups, bars, strict=True):
                low, high = found.get((setup, name), {}).get("interval", (None, None))
                if low is not None:
                    place = bar.get_x() + bar.get_width() / 2
                    axes.plot([place, place], [low, high], color="black", lw=0.8, marker="_", ms=4)
        axes.set_xticks(range(len(setups)), setups)
        axes.set_ylabel(show.score)
        legend_beside(figure)
