"""Tables and figures of the benchmarks on photographs: pose, light, and the ratio of patches.

All three have entries of one form, per setup (how keypoints are found) and descriptor: a score over
the scenes that report and over those that choose, and the scores of each scene.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hardnet.bench.light import PRECISION
from hardnet.bench.report.canvas import canvas, line_style
from hardnet.bench.report.cells import BASELINE, bold_best, number, ratio, with_interval
from hardnet.bench.report.table import Table

Results = Mapping[str, Any]
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Show:
    """How one of the benchmarks is called.

    Attributes:
        field: of the score.
        score: its name in headings.
        scenes: the field with the scores per scene.
        title: of its tables.
    """

    field: str
    score: str
    scenes: str
    title: str


POSE = Show("maa", "mAA(10)", "scenes", "Relative pose of photo pairs")
LIGHT = Show("ap", "mean AP", "cameras", "Fixed cameras under changing light")
RATIO = Show("ap", "mean AP", "scenes", "Patches at detected frames, by the ratio of distances")


def pose_tables(results: Results) -> list[Table]:
    """Summary, every scene, and the ratio that was chosen for it."""
    chosen = _by_scene(results, POSE, "Ratio of the ratio test", lambda one: one["ratio"], "{:g}")
    return [_summary(results, POSE), _scores(results, POSE), chosen]


def light_tables(results: Results) -> list[Table]:
    """Summary, every camera, and the correct matches."""
    title = f"Correct matches per pair at a precision of {PRECISION:.0%}"
    correct = _by_scene(results, LIGHT, title, lambda one: one["correct"], "{:.1f}")
    return [_summary(results, LIGHT), _scores(results, LIGHT), correct]


def ratio_tables(results: Results) -> list[Table]:
    """Summary and every scene."""
    return [_summary(results, RATIO), _scores(results, RATIO)]


def has_report(results: Results, name: str) -> bool:
    """Figures show the scenes that report."""
    return any(one["interval"][0] is not None for one in (e["report"] for e in results["entries"]))


def draw_pose(results: Results, path: Path) -> None:
    """One panel per setup: the share of pairs below 1 to 20 degrees, reported scenes."""
    setups = _setups(results)
    with canvas(path, 3.1 * len(setups), 3.0) as figure:
        panels = figure.subplots(1, len(setups), sharey=True, squeeze=False)[0]
        for axes, (setup, entries) in zip(panels, setups.items(), strict=True):
            for index, entry in enumerate(entries):
                curves = [s["curve"] for s in entry["scenes"].values() if s["role"] == "report"]
                if curves:
                    mean = [sum(shares) / len(shares) for shares in zip(*curves, strict=True)]
                    style = line_style(index) | {"markersize": 3}
                    axes.plot(range(1, len(mean) + 1), mean, label=entry["descriptor"], **style)
            axes.set_title(setup, fontsize=9)
            axes.set_xlabel("pose error below (degrees)")
            axes.set_ylim(0, 1)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel("share of the pairs")
        panels[-1].legend(fontsize=7)


def draw_light(results: Results, path: Path) -> None:
    """Bars with intervals, see :func:`_bars`."""
    _bars(results, LIGHT, path)


def draw_ratio(results: Results, path: Path) -> None:
    """Bars with intervals, see :func:`_bars`."""
    _bars(results, RATIO, path)


def _bars(results: Results, show: Show, path: Path) -> None:
    """Setups along the axis, a bar per descriptor: the score over the scenes that report."""
    setups = _setups(results)
    names = list(dict.fromkeys(entry["descriptor"] for entry in results["entries"]))
    width = 0.8 / len(names)
    with canvas(path, 1.5 + 1.6 * len(setups), 3.0) as figure:
        axes = figure.subplots()
        for index, name in enumerate(names):
            for place, entries in enumerate(setups.values()):
                entry = next((e for e in entries if e["descriptor"] == name), None)
                score = None if entry is None else entry["report"][show.field]
                if entry is None or score is None:
                    continue
                low, high = entry["report"]["interval"]
                reach = None if low is None else [[score - low], [high - score]]
                axes.bar(
                    place + (index - (len(names) - 1) / 2) * width,
                    score,
                    width,
                    yerr=reach,
                    color=line_style(index)["color"],
                    label=name if place == 0 else None,
                    error_kw={"linewidth": 0.8, "capsize": 2},
                )
        axes.set_xticks(range(len(setups)), list(setups))
        axes.set_ylabel(show.score)
        axes.legend(fontsize=7)


def _setups(results: Results) -> dict[str, list[Entry]]:
    """Setup -> its entries, in the order of the file."""
    found: dict[str, list[Entry]] = {}
    for entry in results["entries"]:
        found.setdefault(entry["setup"], []).append(entry)
    return found


def _summary(results: Results, show: Show) -> Table:
    """A row per setup and descriptor; the best of each setup in bold."""
    rows = []
    for setup, entries in _setups(results).items():
        columns = [
            bold_best([entry[role][show.field] for entry in entries])
            for role in ("report", "choose")
        ]
        base = next((e["report"][show.field] for e in entries if e["descriptor"] == BASELINE), None)
        for place, entry in enumerate(entries):
            cells = [
                with_interval(column[place], *entry[role]["interval"])
                for role, column in zip(("report", "choose"), columns, strict=True)
            ]
            times = ratio(entry["report"][show.field], base)
            rows.append([setup, entry["descriptor"], cells[0], times, cells[1]])
    headings = [
        "keypoints",
        "descriptor",
        f"{show.score}, scenes that report",
        f"/ {BASELINE}",
        f"{show.score}, scenes that choose",
    ]
    return Table(show.title, headings, rows, note=_split(results, show))


def _scores(results: Results, show: Show) -> Table:
    title = f"{show.title}: {show.score} per {show.scenes.removesuffix('s')}"
    return _by_scene(results, show, title, lambda one: one[show.field], "{:.3f}", best=True)


def _by_scene(
    results: Results,
    show: Show,
    title: str,
    value: Callable[[Mapping[str, Any]], float],
    style: str,
    best: bool = False,
) -> Table:
    """A row per setup and descriptor, a column per scene."""
    scenes = list(dict.fromkeys(n for e in results["entries"] for n in e[show.scenes]))
    rows = []
    for setup, entries in _setups(results).items():
        columns = []
        for scene in scenes:
            values = [
                value(e[show.scenes][scene]) if scene in e[show.scenes] else None for e in entries
            ]
            columns.append(
                bold_best(values, style) if best else [number(one, style) for one in values]
            )
        for place, entry in enumerate(entries):
            rows.append([setup, entry["descriptor"], *(column[place] for column in columns)])
    return Table(title, ["keypoints", "descriptor", *scenes], rows)


def _split(results: Results, show: Show) -> str:
    roles = {n: one["role"] for e in results["entries"] for n, one in e[show.scenes].items()}
    report, choose = (
        ", ".join(name for name, role in roles.items() if role == wanted)
        for wanted in ("report", "choose")
    )
    return f"Report: {report or 'none'}; choose: {choose or 'none'}. 95% intervals over photos."
