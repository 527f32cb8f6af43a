"""The HPatches benchmark: verification, matching and retrieval."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.bench.hpatches.protocol import PAPER_CONVENTION
from hardnet.bench.report.style import (
    BAR,
    NOISE_COLOURS,
    Figures,
    canvas,
    line_style,
    name_rows,
    round_ticks,
)
from hardnet.bench.report.table import (
    Column,
    Results,
    Row,
    Table,
    against_baseline,
    by_name,
    distinct,
)

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
_KINDS = ("viewpoint", "illumination")

Where = dict[str, Any]


def tables(results: Results) -> list[Table]:
    descriptors = _descriptors(results)
    found = [_summary(results, descriptors)]

    def add(title: str, columns: list[tuple[str, str, str, Where]], note: str) -> None:
        """``columns``: heading, group, field, and which rows of the task it averages."""
        shown = [Column("descriptor", descriptors)]
        for heading, group, field, where in columns:
            means = mean(results, title.partition(":")[0], field, **where)
            values = [means.get(name) for name in descriptors]
            shown.append(Column(heading, values, best="largest", group=group))
        found.append(Table(f"HPatches {title}", shown, note))

    if results.get("verification"):
        used = distinct(results["verification"], "negatives")
        parts = list(product((kind for kind in _NEGATIVES if kind in used), NOISE))
        for field, what in {
            **{f"ap_{c}": f"AP, imbalanced ({_named('verification', c)})" for c in CONVENTIONS},
            "auc": "ROC AUC, balanced",
        }.items():
            columns: list[tuple[str, str, str, Where]] = [
                (noise, _NEGATIVES[kind], field, {"negatives": kind, "noise": noise})
                for kind, noise in parts
            ]
            note = "Negative pairs are from different sequences or from the same one."
            add(f"verification: {what}", [*columns, ("mean", "", field, {})], note)
    if results.get("matching"):
        used = distinct(results["matching"], "group")
        kinds = [*(k for k in _KINDS if k in used), *(k for k in used if k not in _KINDS)]
        for convention in CONVENTIONS:
            field = f"ap_{convention}"
            add(
                f"matching: mAP ({_named('matching', convention)})",
                [
                    *(
                        (n, kind, field, {"group": kind, "noise": n})
                        for kind in kinds
                        for n in NOISE
                    ),
                    ("mean", "", field, {}),
                    ("correct", "", "success", {}),
                ],
                "The mean is over sequences, not over kinds. Correct: share of patches whose "
                "nearest neighbour is the correct one.",
            )
        found.append(_per_sequence(results, descriptors))
    if results.get("retrieval"):
        counts = _distractors(results)
        named = {c: _named("retrieval", c) for c in CONVENTIONS}
        most: Where = {"distractors": counts[-1]}
        add(
            f"retrieval: mAP among {counts[-1]} distractors",
            [
                (heading, c, f"ap_{c}", most | noise)
                for c in CONVENTIONS
                for heading, noise in [*((n, {"noise": n}) for n in NOISE), ("mean", {})]
            ],
            "; ".join(f"{c}: {text}" for c, text in named.items()) + ".",
        )
    return found


def figures(results: Results) -> Figures:
    curve: Figures = {"distractors": _draw_distractors} if len(_distractors(results)) > 1 else {}
    return {"tasks": _draw_tasks, **curve}


def headline(results: Results, task: str) -> dict[str, Row]:
    """Descriptor -> mean of a task ("value", "low", "high") in the convention of the paper."""
    wanted = (task, "all", "all", PAPER_CONVENTION[task])
    return {
        row["descriptor"]: row
        for row in results["means"]
        if (row["task"], row["noise"], row["group"], row["convention"]) == wanted
    }


def mean(results: Results, task: str, field: str, **where: str | int) -> dict[str, float]:
    """Descriptor -> mean of ``field`` over its rows of a task with the values ``where``."""
    chosen: dict[str, list[float]] = {}
    for row in results.get(task, ()):
        if all(row[key] == value for key, value in where.items()):
            chosen.setdefault(row["descriptor"], []).append(row[field])
    return {name: float(np.mean(values)) for name, values in chosen.items()}


def _descriptors(results: Results) -> list[str]:
    return distinct((row for task in TASKS for row in results.get(task, ())), "descriptor")


def _distractors(results: Results) -> list[int]:
    return sorted({int(row["distractors"]) for row in results.get("retrieval", ())})


def _named(task: str, convention: str) -> str:
    shown = ", as in the paper" if PAPER_CONVENTION[task] == convention else ""
    return _SOURCE[convention] + shown


def _summary(results: Results, names: list[str]) -> Table:
    columns, about = [Column("descriptor", names)], results.get("set", {})
    for task in TASKS:
        means = headline(results, task)
        rows = [means.get(name, {}) for name in names]
        ends = [(row.get("low"), row.get("high")) for row in rows]
        values = [row.get("value") for row in rows]
        columns.append(Column(task, values, best="largest", intervals=ends))
        if task == "matching":
            ratios = against_baseline("matching", names, values)
    parts = [text.format(about[key]) for key, text in _ABOUT.items() if key in about]
    return Table(
        "HPatches" + (": " if parts else "") + ", ".join(parts),
        [*columns, *ratios],
        f"Mean average precision as in the paper: {_SOURCE[PAPER_CONVENTION['matching']]}; for "
        f"retrieval, {_SOURCE[PAPER_CONVENTION['retrieval']]}. Verification is imbalanced (1 true "
        "pair to 5 false ones) and averaged over both kinds of negatives. All scores are means "
        "over easy, hard and tough. The 95 % intervals resample sequences.",
    )


def _per_sequence(results: Results, names: list[str]) -> Table:
    values: dict[str, dict[str, float]] = {name: {} for name in names}
    convention = PAPER_CONVENTION["matching"]
    for sequence in distinct(results["matching"], "sequence"):
        for noise in (None, *NOISE):
            only: Where = {"sequence": sequence} | ({"noise": noise} if noise else {})
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
    "retrieval": ("", {"": ("o", "")}),
}
"""What the shape of a dot says: the field of a row; its values, their marker and their name."""
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
    width = 0.6 + len(tasks) * (2.6 + 0.07 * max(map(len, names)))
    with canvas(path, width, 1.5 + 0.36 * len(names), 1, len(tasks)) as (figure, [panels]):
        for axes, task in zip(panels, tasks, strict=True):
            _panel(axes, results, task)
        figure.legend(
            handles=[_dot("s", colour, noise.upper()) for noise, colour in NOISE_COLOURS.items()],
            loc="outside upper center",
            ncols=len(NOISE_COLOURS),
            frameon=False,
        )


def _ranking(results: Results, task: str) -> dict[str, float]:
    values = {name: 100 * row["value"] for name, row in headline(results, task).items()}
    return dict(sorted(values.items(), key=lambda each: -each[1]))


def _panel(axes: Any, results: Results, task: str) -> None:
    means = _ranking(results, task)
    names = list(means)
    place = {name: i for i, name in enumerate(names)}
    axes.barh(range(len(names)), list(means.values()), 0.8, color=BAR, zorder=1)
    furthest = 0.0
    for name, row in headline(results, task).items():
        if row["low"] is not None:
            low, high = min(100 * row["low"], means[name]), max(100 * row["high"], means[name])
            y = place[name] + _WHISKER
            axes.plot((low, high), [y, y], color="black", lw=1, marker="|", ms=4, zorder=2)
            furthest = max(furthest, high)
    name_rows(axes, names)
    field, shapes = _SHAPES[task]
    for noise, colour in NOISE_COLOURS.items():
        for lane, (kind, (shape, _)) in enumerate(shapes.items()):
            where: Where = {"noise": noise} | ({field: kind} if field else {})
            if task == "retrieval":
                where["distractors"] = _distractors(results)[-1]
            values = mean(results, task, f"ap_{PAPER_CONVENTION[task]}", **where)
            xs = [100 * value for value in values.values()]
            ys = [place[name] + _LANES[lane] for name in values]
            if values:
                style = {"marker": shape, "linewidths": 0.4, "edgecolors": "white", "zorder": 3}
                axes.scatter(xs, ys, s=26, c=colour, **style)
                furthest = max(furthest, *xs)
    for name in names:
        # The numbers are in a column to the right of everything, where no dot can hide them.
        axes.text(furthest * 1.05, place[name], f"{means[name]:.2f}", va="center")
    axes.set(xlim=(0, furthest * 1.22), xlabel=_TITLES[task])
    ticks = round_ticks(furthest)
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.spines["bottom"].set_bounds(0, ticks[-1])  # beyond it there is only text
    used = {row[field] for row in results[task]} if field else set()
    handles = [_dot(s, "#555555", text) for kind, (s, text) in shapes.items() if kind in used]
    if handles:
        where_to = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
        axes.legend(handles=handles, ncols=3, frameon=False, **where_to)


def _dot(shape: str, colour: str, label: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], linestyle="", marker=shape, color=colour, label=label)


def _draw_distractors(results: Results, path: Path) -> None:
    counts, names = _distractors(results), _descriptors(results)
    field = f"ap_{PAPER_CONVENTION['retrieval']}"
    means = {k: mean(results, "retrieval", field, distractors=k) for k in counts}
    with canvas(path, 6.2, 3.6) as (figure, [[axes]]):
        # The style follows the order of the file, so that it does not change with the ranking.
        for name in _ranking(results, "retrieval"):
            known = [k for k in counts if name in means[k]]
            style = line_style(names.index(name))
            axes.plot(known, [means[k][name] for k in known], label=name, ms=4, lw=1.4, **style)
        axes.set(xscale="log", ylim=(0, None))
        axes.set(xlabel="number of distractors", ylabel="retrieval mAP")
        axes.set_xticks(counts, _tick_labels(counts))
        axes.minorticks_off()
        axes.grid()
        figure.legend(loc="outside right upper", frameon=False)


def _tick_labels(counts: list[int]) -> list[str]:
    """The numbers as text; empty if too close to the next one on a logarithmic axis."""
    labels, right = [], float("inf")
    for k in reversed(counts):
        close = k > right / 1.4
        labels.append("" if close else f"{k // 1000}k" if k % 1000 == 0 else str(k))
        right = right if close else k
    return labels[::-1]
