"""Benchmarks on photos: pairs, reconstructions; pose, light, ratio of patches.

The last three share one form of entry per setup (how keypoints are detected) and descriptor: a
score over the held-out scenes ("report"), one over the tuning scenes ("choose"), and one per scene.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

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
    MISSING,
    Best,
    Column,
    Results,
    Row,
    Table,
    against_baseline,
    by_name,
    column,
    distinct,
    grouped,
)

_COUNTS = {
    "tentative": "matches",
    "correct": "correct",
    "inliers": "inliers",
    "correct_inliers": "correct inliers",
}


def tables_of_pairs(results: Results) -> list[Table]:
    totals = summarise(results["rows"], "sequence")
    counts = [groups["all"] for groups in totals.values()]
    return [
        Table(
            "Matches on real pairs",
            [
                Column("descriptor", list(totals)),
                column("verified pairs", counts, "{verified} / {pairs}".format_map),
                *(column(name, counts, key, "{}") for key, name in _COUNTS.items()),
                *against_baseline("correct", list(totals), [each["correct"] for each in counts]),
            ],
        ),
        by_name("Correct matches per sequence", "sequence", _correct(results), "{:.0f}"),
    ]


def _correct(results: Results) -> dict[str, dict[str, float]]:
    totals = summarise(results["rows"], "sequence")
    return {
        label: {name: float(counts["correct"]) for name, counts in groups.items() if name != "all"}
        for label, groups in totals.items()
    }


def draw_pairs(results: Results, path: Path) -> None:
    values = _correct(results)
    names = list(next(iter(values.values())))
    with canvas(path, 3.0 + 0.9 * len(names), 3.6) as (figure, [[axes]]):
        grouped_bars(axes, {who: [each[n] for n in names] for who, each in values.items()})
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_ylabel("correct matches")
        legend_beside(figure)


def tables_of_sfm(results: Results) -> list[Table]:
    scenes = grouped(results["rows"], "scene")
    known = {n: rows for n, rows in scenes.items() if any(row["errors"] for row in rows)}
    return [
        *(_size(name, rows) for name, rows in scenes.items()),
        *(_errors(name, rows) for name, rows in known.items()),
    ]


def _size(scene: str, rows: list[Row]) -> Table:
    counts = ("registered", "points", "observations")
    return Table(
        f"Reconstruction of {scene}, {rows[0]['photos']} photos",
        [
            column("method", rows, "method"),
            *(column(field, rows, field, "{:.0f}", "largest") for field in counts),
            column("track length", rows, "track_length", "{:.2f}", "largest"),
            column("reprojection (px)", rows, "reprojection_error", "{:.3f}", "smallest"),
            column("keypoints per photo", rows, "keypoints", "{}"),
            column("seconds", rows, "seconds", "{:.0f}"),
        ],
    )


def _errors(scene: str, rows: list[Row]) -> Table:
    errors, calibrated = [row["errors"] for row in rows], rows[0]["calibrated"]
    shown = (
        ("mean", "centre_mean", "{:.5f}", 1),
        ("median", "centre_median", "{:.5f}", 1),
        ("largest", "centre_max", "{:.5f}", 1),
        ("mean / extent (%)", "centre_relative", "{:.4f}", 100),
        ("rotation mean (deg)", "rotation_mean", "{:.4f}", 1),
        *(() if calibrated else [("focal length (%)", "focal", "{:.3f}", 100)]),
    )
    return Table(
        f"Camera errors of {scene}",
        [
            column("method", rows, "method"),
            *(column(head, errors, f, style, "smallest", n) for head, f, style, n in shown),
        ],
        "Centre errors are in units of the ground truth, after alignment by a similarity. Ground "
        f"truth: {rows[0]['truth']}. Calibration: {'known' if calibrated else 'estimated'}.",
    )


def draw_sfm(results: Results, path: Path) -> None:
    """A row of panels per scene: points on the left, errors on the right; a bar per method."""
    scenes = grouped(results["rows"], "scene")
    heights = [len(rows) for rows in scenes.values()]
    size = 9, 0.3 + sum(0.75 + 0.24 * height for height in heights)
    ratios = {"height_ratios": heights}
    with canvas(path, *size, len(scenes), 2, gridspec_kw=ratios) as (_, grid):
        for (left, right), (scene, rows) in zip(grid, scenes.items(), strict=True):
            names = [f"{r['method']} ({r['registered']} of {r['photos']} photos)" for r in rows]
            errors = [r["errors"] and 100 * r["errors"]["centre_relative"] for r in rows]
            for axes, title, values, style in (
                (left, "3D points", [row["points"] for row in rows], "{:.0f}"),
                (right, "centre error (% of extent)", errors, "{:.3g}"),
            ):
                # The first bar, COLMAP's SIFT, has another colour.
                colours = [line_style(0 if i else 1)["color"] for i in range(len(values))]
                lengths = [value or 0.0 for value in values]
                bars = axes.barh(range(len(values)), lengths, 0.7, color=colours)
                texts = [MISSING if value is None else style.format(value) for value in values]
                axes.bar_label(bars, texts, padding=3, fontsize=8)
                axes.set_xlim(0, 1.18 * max(lengths) or 1)
                axes.locator_params(axis="x", nbins=4)
                axes.set_title(f"{scene}: {title}", fontsize=9, loc="left")
            name_rows(left, names)
            name_rows(right, [""] * len(rows))


class Show(NamedTuple):
    """How to show one of the three benchmarks of scenes; ``more``: other numbers per scene."""

    field: str
    score: str
    scenes: str
    title: str
    more: tuple[tuple[str, str, str], ...] = ()


_CORRECT = (f"Correct matches per pair at a precision of {PRECISION:.0%}", "correct", "{:.1f}")
_RATIO = ("Ratio of the ratio test", "ratio", "{:g}")
SHOWS = {
    "pose": Show("maa", "mAA(10)", "scenes", "Relative pose of photo pairs", (_CORRECT, _RATIO)),
    "light": Show("ap", "mean AP", "cameras", "Fixed cameras under changing light", (_CORRECT,)),
    "ratio": Show(
        "ap", "mean AP", "scenes", "Patches at detected frames, by the ratio of distances"
    ),
}


def tables_of_scenes(results: Results) -> list[Table]:
    show = SHOWS[results["kind"]]
    lines = list(chain.from_iterable(grouped(results["entries"], "setup").values()))
    setups, names = ([line[field] for line in lines] for field in ("setup", "descriptor"))
    roles = {name: one["role"] for e in lines for name, one in e[show.scenes].items()}
    report, choose = (
        ", ".join(name for name, role in roles.items() if role == wanted) or "none"
        for wanted in ("report", "choose")
    )

    def table(title: str, columns: list[Column], note: str = "") -> Table:
        who = [Column("keypoints", setups), Column("descriptor", names)]
        return Table(title, [*who, *columns], note, blocks=setups)

    def score(role: str, heading: str) -> Column:
        values = [entry[role][show.field] for entry in lines]
        ends = [tuple(entry[role]["interval"]) for entry in lines]
        return Column(f"{show.score}, {heading}", values, best="largest", intervals=ends)

    held_out = score("report", "held-out scenes")
    ratios = against_baseline("", names, [e["report"][show.field] for e in lines], setups)
    shown = [
        table(
            show.title,
            [held_out, *ratios, score("choose", "tuning scenes")],
            f"Held-out scenes: {report}; tuning scenes: {choose}. 95% intervals over photos.",
        )
    ]
    per_scene = f"{show.title}: {show.score} per {show.scenes.removesuffix('s')}"
    for title, field, style in ((per_scene, show.field, "{:.3f}"), *show.more):
        columns = []
        for scene in roles:
            each = [entry[show.scenes].get(scene) for entry in lines]
            best: Best | None = None if field == "ratio" else "largest"
            columns.append(column(scene, each, field, style, best))
        shown.append(table(title, columns))
    return shown


def figures_of_scenes(results: Results) -> Figures:
    """Curves of pose errors, bars for the other kinds; held-out scenes only."""
    if all(entry["report"]["interval"][0] is None for entry in results["entries"]):
        return {}
    return {"curves": _draw_pose} if results["kind"] == "pose" else {"bars": _draw_bars}


def _draw_pose(results: Results, path: Path) -> None:
    """One panel per setup: the share of pairs below 1 to 20 degrees, held-out scenes."""
    setups = grouped(results["entries"], "setup")
    names = distinct(results["entries"], "descriptor")
    size = 1.5 + 3.1 * len(setups), 3.0
    with canvas(path, *size, 1, len(setups), sharey=True) as (figure, [panels]):
        for axes, (setup, entries) in zip(panels, setups.items(), strict=True):
            for entry in entries:
                curves = [s["curve"] for s in entry["scenes"].values() if s["role"] == "report"]
                if curves:
                    mean = [sum(shares) / len(shares) for shares in zip(*curves, strict=True)]
                    style = line_style(names.index(entry["descriptor"])) | {"markersize": 3}
                    axes.plot(range(1, len(mean) + 1), mean, label=entry["descriptor"], **style)
            axes.set_title(setup, fontsize=9)
            axes.set(xlabel="pose error below (degrees)", ylim=(0, 1))
            axes.grid()
        panels[0].set_ylabel("share of the pairs")
        legend_beside(figure)


def _draw_bars(results: Results, path: Path) -> None:
    """Setups along the axis, a bar per descriptor: the score over the held-out scenes."""
    show, setups = SHOWS[results["kind"]], distinct(results["entries"], "setup")
    found: dict[Any, Row] = {(e["setup"], e["descriptor"]): e["report"] for e in results["entries"]}
    names = distinct(results["entries"], "descriptor")
    values = {n: [found.get((s, n), {}).get(show.field) for s in setups] for n in names}
    with canvas(path, 3.0 + 1.6 * len(setups), 3.0) as (figure, [[axes]]):
        for name, bars in zip(names, grouped_bars(axes, values), strict=True):
            for setup, bar in zip(setups, bars, strict=True):
                low, high = found.get((setup, name), {}).get("interval", (None, None))
                if low is not None:
                    place = bar.get_x() + bar.get_width() / 2
                    axes.plot([place, place], [low, high], color="black", lw=0.8, marker="_", ms=4)
        axes.set_xticks(range(len(setups)), setups)
        axes.set_ylabel(show.score)
        legend_beside(figure)
