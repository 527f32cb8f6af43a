"""All three tasks for one descriptor, and the results of several descriptors as one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardnet import descriptors
from hardnet.bench import metrics
from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import Lookup, Tasks
from hardnet.bench.store import CsvFolder, Progress, Store, write_csv
from hardnet.cache import Cache
from hardnet.errors import HardnetError
from hardnet.patchsets.hpatches import TAGS, HPatches
from hardnet.patchsets.patchset import silent
from hardnet.provenance import data_digest
from hardnet.storage import as_path

TASKS = ("verification", "matching", "retrieval")
PAPER_CONVENTION = {"verification": "hits", "matching": "hits", "retrieval": "trapezoid"}
"""Which average precision the HardNet paper's figure shows, as far as it can be known. The figures
of the HPatches papers come from the benchmark's MATLAB code, the mean precision at hits;
"trapezoid" is its Python code. With thousands of positives the two hardly differ. In retrieval,
with 5, they do, and there the Python code gives HardNet+ the number of the paper (69.66, against
60.64 of the MATLAB code: hpatches-benchmark#32)."""


@dataclass(frozen=True)
class TaskSettings:
    """What can be chosen beside the lists."""

    tasks: Sequence[str] = TASKS
    mean_resamples: int = metrics.MEAN_RESAMPLES
    pooled_resamples: int = metrics.POOLED_RESAMPLES
    seed: int = 0
    """Of the resamples."""


def evaluate(
    descriptor: str,
    lookup: Lookup,
    tasks: Tasks,
    settings: TaskSettings | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Score one descriptor on the tasks that were chosen.

    Retrieval is left out on a set of one sequence, which has no distractors. The rows of a task
    that was not chosen are empty.
    """
    settings = settings or TaskSettings()
    unknown = [task for task in settings.tasks if task not in TASKS]
    if unknown:
        raise ValueError(f"unknown task {unknown[0]}, choose from {', '.join(TASKS)}")
    results: dict[str, Any] = {
        "set": {"split": tasks.split, "sequences": len(tasks.names), "patches": sum(tasks.counts)},
        "lists": tasks.facts(),
        "paper_convention": dict(PAPER_CONVENTION),
    }
    results |= {task: [] for task in TASKS} | {"means": []}
    for task, run, resamples in (
        ("verification", protocol.verification, settings.pooled_resamples),
        ("matching", protocol.matching, settings.mean_resamples),
        ("retrieval", protocol.retrieval, settings.mean_resamples),
    ):
        if task not in settings.tasks or (task == "retrieval" and len(tasks.names) < 2):
            continue
        rows, means = run(lookup, tasks, resamples, settings.seed, progress)
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


def stored_scores(
    folder: Path | str | None,
    source: str,
    tasks: Tasks,
    settings: TaskSettings,
    compute: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """The results of one descriptor, computed if they are not stored yet.

    ``source`` says what made the descriptors, of which patches, under which label.
    """
    lists = hashlib.sha256()
    for rows in (*vars(tasks.pairs).values(), *vars(tasks.retrieval).values()):
        lists.update(np.ascontiguousarray(rows).data)
    about = {
        "source": source,
        "settings": asdict(settings),
        "tasks": [tasks.names, tasks.counts, tasks.facts()],
        "lists": lists.hexdigest(),
    }
    return Cache("scores", folder).json(about, compute)


@dataclass(frozen=True)
class Source:
    """Descriptors of a set by strip, and what tells them from all others."""

    lookup: Lookup
    digest: str


def open_source(spec: str, hpatches: HPatches, store: Store) -> Source:
    """The descriptors that ``spec`` names on a set: a descriptor, or a folder of CSV files.

    A name wins over a folder of that name; ``./name`` is the folder.
    """
    data, sequences = data_digest(hpatches.folder).sha256, hpatches.sequences
    folder = as_path(spec)
    if spec not in descriptors.names() and folder.is_dir():
        files = CsvFolder(folder)
        return Source(
            lambda name, tag: files.get(name, tag, sequences[name].count),
            f"csv {data_digest(folder).sha256} of {data}",
        )
    if spec.endswith("/"):
        raise HardnetError(f"there is no folder {spec} of descriptors, SEQUENCE/ref.csv ...")
    predictions = store.open(descriptors.load(spec), data)
    return Source(
        lambda name, tag: predictions.get(f"{name}/{tag}", lambda: sequences[name].patches(tag)),
        predictions.folder.name,
    )


def describe_all(
    source: Source, names: Sequence[str], progress: Callable[[int, int], None]
) -> None:
    """Ask for every strip of the sequences ``names`` once: what is missing is described."""
    strips = [(name, tag) for name in names for tag in TAGS]
    for done, strip in enumerate(strips, 1):
        source.lookup(*strip)
        progress(done, len(strips))


def write_all(source: Source, names: Sequence[str], folder: Path) -> None:
    """Write the descriptors of the sequences ``names`` as CSV files."""
    for name in names:
        for tag in TAGS:
            write_csv(folder, name, tag, source.lookup(name, tag))
