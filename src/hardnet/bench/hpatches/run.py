"""All three tasks for one descriptor, and the results of several descriptors as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hardnet.bench import bootstrap
from hardnet.bench.hpatches import matching, retrieval, verification
from hardnet.bench.hpatches.strips import Lookup, Progress
from hardnet.bench.hpatches.tasks import Tasks

TASKS = ("verification", "matching", "retrieval")
PAPER_CONVENTION = {"verification": "hits", "matching": "hits", "retrieval": "trapezoid"}
"""Which average precision the HardNet paper's figure shows, as far as it can be known. The figures
of the HPatches papers come from the benchmark's MATLAB code, the mean precision at hits;
"trapezoid" is its Python code. With thousands of positives the two hardly differ. In retrieval,
with 5, they do, and there the Python code gives HardNet+ the number of the paper (69.66, against
60.64 of the MATLAB code: hpatches-benchmark#32)."""


@dataclass(frozen=True)
class Settings:
    """What can be chosen beside the lists."""

    tasks: Sequence[str] = TASKS
    mean_resamples: int = bootstrap.MEAN_RESAMPLES
    pooled_resamples: int = bootstrap.POOLED_RESAMPLES
    seed: int = 0
    """Of the resamples."""


def evaluate(
    descriptor: str,
    lookup: Lookup,
    tasks: Tasks,
    settings: Settings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Score one descriptor on the tasks that were chosen.

    Retrieval is left out on a set of one sequence, which has no distractors.

    Args:
        descriptor: its label in the rows.
        lookup: gives its descriptors.
        tasks: the lists.
        settings: default: all tasks.
        progress: called with (task, steps done, steps in all).

    Returns:
        The results file without kind, name of the set and provenance: "set", "lists",
        "paper_convention", the rows of each task (empty if it was not chosen) and "means".
    """
    settings = settings or Settings()
    unknown = [task for task in settings.tasks if task not in TASKS]
    if unknown:
        raise ValueError(f"unknown task {unknown[0]}, choose from {', '.join(TASKS)}")
    results: dict[str, Any] = {
        "set": {
            "split": tasks.split,
            "sequences": len(tasks.names),
            "patches": sum(tasks.counts),
        },
        "lists": tasks.facts(),
        "paper_convention": dict(PAPER_CONVENTION),
    }
    results |= {task: [] for task in TASKS} | {"means": []}
    for task, module, resamples in (
        ("verification", verification, settings.pooled_resamples),
        ("matching", matching, settings.mean_resamples),
        ("retrieval", retrieval, settings.mean_resamples),
    ):
        if task not in settings.tasks or (task == "retrieval" and len(tasks.names) < 2):
            continue
        rows, means = module.evaluate(lookup, tasks, resamples, settings.seed, progress)
        label = {"descriptor": descriptor}
        results[task] = [label | row for row in rows]
        results["means"] += [label | row for row in means]
    return results


def combine(results: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of several descriptors on the same lists as one, rows in their order."""
    first, *others = results
    out = dict(first)
    for result in others:
        if (result["set"], result["lists"]) != (first["set"], first["lists"]):
            raise ValueError("these results are of different sets or lists")
        for rows in (*TASKS, "means"):
            out[rows] = [*out[rows], *result[rows]]
    return out
