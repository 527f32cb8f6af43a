"""The numbers of an HPatches results file, as its tables and figures ask for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hardnet.bench.hpatches.run import PAPER_CONVENTION

NOISE = ("easy", "hard", "tough")
TASKS = ("verification", "matching", "retrieval")
CONVENTIONS = ("hits", "trapezoid")
PAPER = PAPER_CONVENTION
"""Task -> the convention of the paper, which headlines and figures show."""

Row = Mapping[str, Any]


def descriptors(results: Mapping[str, Any]) -> list[str]:
    """All descriptors of the file, in its order."""
    return list(dict.fromkeys(row["descriptor"] for task in TASKS for row in results.get(task, ())))


def tasks(results: Mapping[str, Any]) -> list[str]:
    """The tasks that were run."""
    return [task for task in TASKS if results.get(task)]


def most_distractors(results: Mapping[str, Any]) -> int:
    """The number of distractors of the retrieval headline: all of them."""
    return max(int(row["distractors"]) for row in results["retrieval"])


def mean(results: Mapping[str, Any], task: str, field: str, **where: str | int) -> dict[str, float]:
    """Descriptor -> mean of ``field`` over its rows of a task with the values ``where``."""
    chosen: dict[str, list[float]] = {}
    for row in results.get(task, ()):
        if all(row[key] == value for key, value in where.items()):
            chosen.setdefault(row["descriptor"], []).append(row[field])
    return {name: float(np.mean(values)) for name, values in chosen.items()}


def headline(results: Mapping[str, Any], task: str) -> dict[str, float]:
    """Descriptor -> mean of a task: over noise levels, and negatives or sequences."""
    convention = PAPER[task]
    stored = {name: row["value"] for name, row in _stored(results, task, convention).items()}
    if stored:
        return stored
    if task == "retrieval" and results.get(task):
        most = most_distractors(results)
        return mean(results, task, f"ap_{convention}", distractors=most)
    return mean(results, task, f"ap_{convention}")


def spread(results: Mapping[str, Any], task: str) -> dict[str, tuple[float, float]]:
    """Descriptor -> 95 % interval of its headline, where the file has one."""
    rows = _stored(results, task, PAPER[task])
    return {
        name: (row["low"], row["high"]) for name, row in rows.items() if row.get("low") is not None
    }


def groups(results: Mapping[str, Any]) -> list[str]:
    """The kinds of sequences: viewpoint, illumination, other."""
    found = dict.fromkeys(row["group"] for row in results.get("matching", ()))
    order = ("viewpoint", "illumination")
    return [*(g for g in order if g in found), *(g for g in found if g not in order)]


def ranking(results: Mapping[str, Any], task: str, names: Sequence[str]) -> list[str]:
    """The descriptors that have a headline for the task, the best first."""
    values = headline(results, task)
    present = [name for name in names if name in values]
    return sorted(present, key=lambda name: -values[name])


def _stored(results: Mapping[str, Any], task: str, convention: str) -> dict[str, Row]:
    """The rows of "means" over everything."""
    return {
        row["descriptor"]: row
        for row in results.get("means", ())
        if (row["task"], row["noise"], row["group"]) == (task, "all", "all")
        and row["convention"] == convention
    }
