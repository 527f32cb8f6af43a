"""The HPatches benchmark: verification, matching and retrieval."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hardnet.bench.hpatches.protocol import PAPER_CONVENTION
from hardnet.bench.report.style import (
    BAR,
    NOISE_COLOURS,
    Figures,
    canvas,
    end_axis,
    line_style,
    name_rows,
    round_ticks,
)
from hardnet.bench.report.table import (
    BASELINE,
    Column,
    Results,
    Table,
    against_baseline,
    by_name,
    distinct,
    ratio,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NOISE = ("easy", "hard", "tough")
TASKS = ("verification", "matching", "retrieval")
CONVENTIONS = ("hits", "trapezoid")
_SOURCE = {"hits": "mean precision at hits", "trapezoid": "trapezoid from (0, 1)"}
_ABOUT = {
    "name": "{}",
    "split": "split {}",
    "sequences": "{} sequences",
    "patches": "{} reference patches",
}
_NEGATIVES = {"inter": "different sequence", "intra": "same sequence"}


def tables(results: Results) -> list[Table]:
    """The summary, then each task in detail."""
    found, names = [_summary(results)], Column("descriptor", _descriptors(results))

    def add(title: str, columns: Iterable[Column], note: str) -> None:
        found.append(Table(f"HPatches {title}", [names, *columns], note))

    if results.get("verification"):
        column = partial(_column, results, "verification")
        kinds = [k for k in _NEGATIVES if any(r["negatives"] == k for r in results["verification"])]
        for field in ("ap_hits", "ap_trapezoid", "auc"):
            what = "ROC AUC, balanced"
            if field != "auc":
                what = f"AP, imbalanced ({_named('verification', field.removeprefix('ap_'))})"
            columns = [
                column(noise, field, _NEGATIVES[kind], negatives=kind, noise=noise)
                for kind, noise in product(kinds, NOISE)
            ]
            note = "Negative pairs are from different sequences or from the same one."
            add(f"verification: {what}", [*columns, column("mean", field)], note)
    if results.get("matching"):
        column = partial(_column, results, "matching")
        for convention in CONVENTIONS:
            field = f"ap_{convention}"
            columns = [
                column(noise, field, kind, group=kind, noise=noise)
                for kind, noise in product(_groups(results), NOISE)
            ]
            add(
                f"matching: mAP ({_named('matching', convention)})",
                [*columns, column("mean", field), column("correct", "success")],
                "The mean is over sequences, not over kinds. Correct: share of patches whose "
                "nearest neighbour is the correct one.",
            )
        found.append(_per_sequence(results))
    if results.get("retrieval"):
        column, counts = partial(_column, results, "retrieval"), _distractors(results)
        most, named = counts[-1], {c: _named("retrieval", c) for c in CONVENTIONS}
        columns = [
            column(noise, f"ap_{c}", c, distractors=most, **where)
            for c in CONVENTIONS
            for noise, where in [*((n, {"noise": n}) for n in NOISE), ("mean", {})]
        ]
        note = "; ".join(f"{c}: {text}" for c, text in named.items()) + "."
        add(f"retrieval: mAP among {most} distractors", columns, note)
        for c in CONVENTIONS if len(counts) > 1 else ():
            add(
                f"retrieval: mAP against the number of distractors ({named[c]})",
                [column(str(k), f"ap_{c}", distractors=k) for k in counts],
                "As published, a number is the size of the pool, including the 5 correct answers; "
                "the last is the whole list of distractors.",
            )
    return found


def figures(results: Results) -> Figures:
    """The paper's figure of the tasks, and retrieval against the number of distractors."""
    curve: Figures = {"distractors": _draw_distractors} if len(_distractors(results)) > 1 else {}
    return {"tasks": _draw_tasks, **curve}


def headline(results: Results, task: str) -> dict[str, float]:
    """Descriptor -> mean of a task: over noise levels, and negatives or sequences."""
    if stored := _stored(results, task):
        return {name: row["value"] for name, row in stored.items()}
    counts = _distractors(results) if task == "retrieval" else []
    most = {"distractors": counts[-1]} if counts else {}
    return mean(results, task, f"ap_{PAPER_CONVENTION[task]}", **most)


def mean(results: Results, task: str, field: str, **where: str | int) -> dict[str, float]:
    """Descriptor -> mean of ``field`` over its rows of a task with the values ``where``."""
    chosen: dict[str, list[float]] = {}
    for row in results.get(task, ()):
        if all(row[key] == value for key, value in where.items()):
            chosen.setdefault(row["descriptor"], []).append(row[field])
    return {name: float(np.mean(values)) for name, values in chosen.items()}


def _stored(results: Results, task: str) -> dict[str, Mapping[str, Any]]:
    wanted = (task, "all", "all", PAPER_CONVENTION[task])
    return {
        row["descriptor"]: row
        for row in results.get("means", ())
        if (row["task"], row["noise"], row["group"], row["convention"]) == wanted
    }


def _descriptors(results: Results) -> list[str]:
    return distinct((row for task in TASKS for row in results.get(task, ())), "descriptor")


def _distractors(results: Results) -> list[int]:
    return sorted({int(row["distractors"]) for row in results.get("retrieval", ())})


def _groups(results: Results) -> list[str]:
    found = distinct(results.get("matching", ()), "group")
    order = ("viewpoint", "illumination")
    return [*(g for g in order if g in found), *(g for g in found if g not in order)]


def _named(task: str, convention: str) -> str:
    """A convention in words, and whether the paper shows this one."""
    shown = ", as in the paper" if PAPER_CONVENTION[task] == convention else ""
    return _SOURCE[convention] + shown


def _column(
    results: Results, task: str, heading: str, field: str, over: str = "", **where: str | int
) -> Column:
    found = mean(results, task, field, **where)
    values = [found.get(name) for name in _descriptors(results)]
    return Column(heading, values, best="largest", group=over)


def _summary(results: Results) -> Table:
    names, about = _descriptors(results), results.get("set", {})
    columns = [Column("descriptor", names)]
    for task in TASKS:
        means, stored = headline(results, task), _stored(results, task)
        rows = [stored.get(name, {}) for name in names]
        ends = [(row.get("low"), row.get("high")) for row in rows]
        columns.append(Column(task, [means.get(n) for n in names], best="largest", intervals=ends))
    matching = headline(results, "matching")
    ratios = [ratio(matching.get(name), matching.get(BASELINE)) for name in names]
    parts = [text.format(about[key]) for key, text in _ABOUT.items() if key in about]
    return Table(
        "HPatches" + (": " if parts else "") + ", ".join(parts),
        [*columns, *against_baseline("matching", ratios)],
        f"Mean average precision as in the paper: {_SOURCE[PAPER_CONVENTION['matching']]}; for "
        f"retrieval, {_SOURCE[PAPER_CONVENTION['retrieval']]}. Verification is imbalanced (1 true "
        "pair to 5 false ones) and averaged over both kinds of negatives. All scores are means "
        "over easy, hard and tough. The 95 % intervals resample sequences.",
    )


def _per_sequence(results: Results) -> Table:
    values: dict[str, dict[str, float]] = {name: {} for name in _descriptors(results)}
    convention = PAPER_CONVENTION["matching"]
    for sequence in distinct(results["matching"], "sequence"):
        for noise in (None, *NOISE):
            only = {"sequence": sequence} | ({"noise": noise} if noise else {})
            for name, value in mean(results, "matching", f"ap_{convention}", **only).items():
                values[name][f"{sequence}, {noise}" if noise else sequence] = value
    title = f"HPatches matching per sequence: mAP ({_named('matching', convention)})"
    return by_name(title, "sequence", values)


_SHAPES = {
    "verification": ("negatives", {"inter": ("o", "DiffSeq"), "intra": ("D", "SameSeq")}),
    "matching": (
        "group",
        {"viewpoint": ("<", "Viewpt"), "illumination": ("P", "Illum"), "other": ("o", "other")},
    ),
}
_LANES = (-0.2, 0.0, 0.1)
_WHISKER = 0.28
"""Offsets within a row, so that equal dots and the interval do not hide each other."""
_TITLES = {
    "verification": "Patch verification, mAP [%]",
    "matching": "Image matching, mAP [%]",
    "retrieval": "Patch retrieval, mAP [%]",
}


def _draw_tasks(results: Results, path: Path) -> None:
    """The figure of the paper: one panel per task that was run, one row per descriptor.

    A bar to the mean with its number and interval; dots for the noise levels (colour) and the kind
    of negatives or of sequences (shape).
    """
    tasks, names = [task for task in TASKS if results.get(task)], _descriptors(results)
    longest = max(len(name) for name in names)
    width = 0.6 + len(tasks) * (2.6 + 0.07 * longest)
    with canvas(path, width, 1.5 + 0.36 * len(names)) as figure:
        panels = figure.subplots(1, len(tasks), squeeze=False)[0]
        for axes, task in zip(panels, tasks, strict=True):
            _panel(axes, results, task)
        figure.legend(
            handles=[_dot("s", colour, noise.upper()) for noise, colour in NOISE_COLOURS.items()],
            loc="outside upper center",
            ncols=len(NOISE_COLOURS),
            frameon=False,
        )


def _ranking(results: Results, task: str) -> list[str]:
    values = headline(results, task)
    present = [name for name in _descriptors(results) if name in values]
    return sorted(present, key=lambda name: -values[name])


def _panel(axes: Axes, results: Results, task: str) -> None:
    names, means = _ranking(results, task), headline(results, task)
    spreads = {
        name: (row["low"], row["high"])
        for name, row in _stored(results, task).items()
        if row.get("low") is not None
    }
    place = {name: i for i, name in enumerate(names)}
    axes.barh(range(len(names)), [100 * means[n] for n in names], 0.8, color=BAR, zorder=1)
    for name, (low, high) in spreads.items():
        ends = 100 * min(low, means[name]), 100 * max(high, means[name])
        y = place[name] + _WHISKER
        axes.plot(ends, [y, y], color="black", lw=1, marker="|", ms=4, zorder=2)
    name_rows(axes, names)
    field, shapes = _SHAPES.get(task, ("", {"": ("o", "")}))
    furthest = 0.0
    for noise, colour in NOISE_COLOURS.items():
        for lane, (kind, (shape, _)) in enumerate(shapes.items()):
            where: dict[str, str | int] = {"noise": noise}
            if field:
                where[field] = kind
            if task == "retrieval":
                where["distractors"] = _distractors(results)[-1]
            values = mean(results, task, f"ap_{PAPER_CONVENTION[task]}", **where)
            if not values:
                continue
            xs = [100 * value for value in values.values()]
            ys = [place[name] + _LANES[lane] for name in values]
            axes.scatter(
                xs, ys, s=26, c=colour, marker=shape, linewidths=0.4, edgecolors="white", zorder=3
            )
            furthest = max(furthest, *xs)
    furthest = max([furthest, *(100 * high for _, high in spreads.values())])
    for name in names:
        # The numbers are in a column to the right of everything, where no dot can hide them.
        axes.text(furthest * 1.05, place[name], f"{100 * means[name]:.2f}", va="center")
    axes.set_xlim(0, furthest * 1.22)
    end_axis(axes, round_ticks(furthest))
    axes.set_xlabel(_TITLES[task])
    used = {row[field] for row in results[task]} if field else set()
    handles = [_dot(s, "#555555", text) for kind, (s, text) in shapes.items() if kind in used]
    if handles:
        axes.legend(
            handles=handles, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, frameon=False
        )


def _dot(shape: str, colour: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=shape, color=colour, label=label)


def _draw_distractors(results: Results, path: Path) -> None:
    counts, names = _distractors(results), _descriptors(results)
    field = f"ap_{PAPER_CONVENTION['retrieval']}"
    means = {k: mean(results, "retrieval", field, distractors=k) for k in counts}
    with canvas(path, 6.2, 3.6) as figure:
        axes = figure.subplots()
        # The style follows the order of the file, so that it does not change with the ranking.
        for name in _ranking(results, "retrieval"):
            known = [k for k in counts if name in means[k]]
            style = line_style(names.index(name))
            axes.plot(known, [means[k][name] for k in known], label=name, ms=4, lw=1.4, **style)
        axes.set_xscale("log")
        axes.set_xticks(counts, _tick_labels(counts))
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
        axes.grid()
        axes.set(xlabel="number of distractors", ylabel="retrieval mAP")
        figure.legend(loc="outside right upper", frameon=False)


def _tick_labels(counts: list[int]) -> list[str]:
    """The numbers as text; empty if too close to the next one on a logarithmic axis."""
    labels, right = [], float("inf")
    for k in reversed(counts):
        close = k > right / 1.4
        labels.append("" if close else f"{k // 1000}k" if k % 1000 == 0 else str(k))
        right = right if close else k
    return labels[::-1]
