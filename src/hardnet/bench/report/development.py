"""The benchmarks on photographs: pose, light, and the ratio of patches.

All three have entries of one form, per setup (how keypoints are found) and descriptor: a score over
the scenes that report and over those that choose, and the scores of each scene.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hardnet.bench.light import PRECISION
from hardnet.bench.report.style import Figures, canvas, grouped_bars, legend_beside, line_style
from hardnet.bench.report.table import (
    BASELINE,
    Best,
    Column,
    Results,
    Table,
    against_baseline,
    column,
    distinct,
    ratio,
)

Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Show:
    """How one of the benchmarks is shown; ``more``: another number per scene."""

    field: str
    score: str
    scenes: str
    title: str
    more: tuple[str, str, str] | None = None


SHOWS = {
    "pose": Show(
        "maa",
        "mAA(10)",
        "scenes",
        "Relative pose of photo pairs",
        ("Ratio of the ratio test", "ratio", "{:g}"),
    ),
    "light": Show(
        "ap",
        "mean AP",
        "cameras",
        "Fixed cameras under changing light",
        (f"Correct matches per pair at a precision of {PRECISION:.0%}", "correct", "{:.1f}"),
    ),
    "ratio": Show(
        "ap", "mean AP", "scenes", "Patches at detected frames, by the ratio of distances"
    ),
}


def tables(results: Results) -> list[Table]:
    """Summary, every scene, and what else there is per scene: the ratio chosen, the matches."""
    show = SHOWS[results["kind"]]
    title = f"{show.title}: {show.score} per {show.scenes.removesuffix('s')}"
    found = [_summary(results, show), _by_scene(results, show, title, show.field, "{:.3f}")]
    return [*found, _by_scene(results, show, *show.more)] if show.more else found


def figures(results: Results) -> Figures:
    """Curves of pose errors, bars of the others; of the scenes that report."""
    if all(entry["report"]["interval"][0] is None for entry in results["entries"]):
        return {}
    if results["kind"] == "pose":
        return {"curves": partial(_draw_pose, results)}
    return {"bars": partial(_draw_bars, results, SHOWS[results["kind"]])}


def _setups(results: Results) -> dict[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in results["entries"]:
        found.setdefault(entry["setup"], []).append(entry)
    return found


def _lines(results: Results) -> list[Entry]:
    return [entry for entries in _setups(results).values() for entry in entries]


def _table(results: Results, title: str, columns: list[Column], note: str = "") -> Table:
    """A line per setup and descriptor; the best of each setup in bold."""
    lines = _lines(results)
    setups = [entry["setup"] for entry in lines]
    names = [Column("keypoints", setups), column("descriptor", lines, "descriptor")]
    return Table(title, [*names, *columns], note, blocks=setups)


def _summary(results: Results, show: Show) -> Table:
    lines = _lines(results)

    def score(role: str) -> Column:
        return Column(
            f"{show.score}, scenes that {role}",
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
        results,
        show.title,
        [score("report"), *against_baseline("", ratios), score("choose")],
        f"Report: {report}; choose: {choose}. 95% intervals over photos.",
    )


def _by_scene(results: Results, show: Show, title: str, field: str, style: str) -> Table:
    lines = _lines(results)
    best: Best | None = "largest" if field == show.field else None
    columns = [
        Column(scene, [e[show.scenes].get(scene, {}).get(field) for e in lines], style, best)
        for scene in dict.fromkeys(name for e in lines for name in e[show.scenes])
    ]
    return _table(results, title, columns)


def _draw_pose(results: Results, path: Path) -> None:
    """One panel per setup: the share of pairs below 1 to 20 degrees, reported scenes."""
    setups, names = _setups(results), distinct(results["entries"], "descriptor")
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


def _draw_bars(results: Results, show: Show, path: Path) -> None:
    """Setups along the axis, a bar per descriptor: the score over the scenes that report."""
    setups = _setups(results)
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
        axes.set_xticks(range(len(setups)), list(setups))
        axes.set_ylabel(show.score)
        legend_beside(figure)
