"""All three tasks for one descriptor, and the results of several descriptors as one.

A folder of CSV files, the exchange format of HPatches, can take the place of a descriptor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors
from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import Lookup, Tasks
from hardnet.bench.hpatches.protocol import PAPER_CONVENTION
from hardnet.bench.store import Predictions, allow_many_maps
from hardnet.errors import HardnetError, Progress, Steps, silent
from hardnet.image_files import as_path
from hardnet.patchsets.hpatches import TAGS, HPatches
from hardnet.patchsets.patchset import decoded
from hardnet.provenance import Cache, data_digest
from hardnet.storage import replacing

TASKS: Mapping[str, Callable[[Lookup, Tasks, Progress], protocol.Result]] = {
    "verification": protocol.verification,
    "matching": protocol.matching,
    "retrieval": protocol.retrieval,
}


def evaluate(
    descriptor: str,
    lookup: Lookup,
    tasks: Tasks,
    chosen: Collection[str] = tuple(TASKS),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Score one descriptor on the tasks that were chosen.

    Retrieval is left out on a set of one sequence, which has no distractors. The rows of a task
    that was not chosen are empty.
    """
    results: dict[str, Any] = {
        "set": {"split": tasks.split, "sequences": len(tasks.names), "patches": sum(tasks.counts)},
        "lists": tasks.facts(),
        "paper_convention": dict(PAPER_CONVENTION),
    }
    results |= {task: [] for task in TASKS} | {"means": []}
    label = {"descriptor": descriptor}
    for task, run in TASKS.items():
        if task not in chosen or (task == "retrieval" and len(tasks.names) < 2):
            continue
        rows, mean = run(lookup, tasks, progress)
        results[task] = [label | row for row in rows]
        which = {"task": task, "noise": "all", "group": "all", "convention": PAPER_CONVENTION[task]}
        results["means"].append(label | which | mean)
    return results


def combine(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The results of several descriptors on the same set and lists as one."""
    out = dict(results[0])
    for rows in (*TASKS, "means"):
        out[rows] = [row for result in results for row in result[rows]]
    return out


def stored_scores(
    folder: Path | str | None,
    source: str,
    tasks: Tasks,
    chosen: Collection[str],
    compute: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """The results of one descriptor, computed if they are not stored yet.

    ``source`` says what made the descriptors, of which patches, under which label.
    """
    lists = hashlib.sha256()
    for rows in (*tasks.pairs, *tasks.retrieval):
        lists.update(np.ascontiguousarray(rows).data)
    about = {
        "source": source,
        "chosen": list(chosen),
        "tasks": [tasks.names, tasks.counts, tasks.facts()],
        "lists": lists.hexdigest(),
    }
    return Cache("scores", folder).json(about, compute)


class Source(NamedTuple):
    """Descriptors of a set by strip, and a digest that identifies them."""

    lookup: Lookup
    digest: str


def open_source(spec: str, hpatches: HPatches, store: Path | None = None) -> Source:
    """The descriptors that ``spec`` names on a set: a descriptor, or a folder of CSV files.

    A name takes precedence over a folder of that name; ``./name`` is the folder.
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
    predictions = Predictions(descriptors.load(spec), data, store)
    return Source(
        lambda name, tag: predictions.get(f"{name}/{tag}", lambda: sequences[name].patches(tag)),
        predictions.digest,
    )


def describe_all(
    source: Source, names: Sequence[str], progress: Steps, csv: Path | None = None
) -> None:
    """Look up every strip of the sequences ``names`` once, so that missing ones are described.

    They are also written as CSV files into the folder ``csv``, if given.
    """
    strips = [(name, tag) for name in names for tag in TAGS]
    for done, (name, tag) in enumerate(strips, 1):
        found = source.lookup(name, tag)
        if csv is not None:
            write_csv(csv, name, tag, found)
        progress(done, len(strips))


class CsvFolder:
    """A folder of CSV files in the place of a descriptor: ``ROOT/SEQUENCE/STRIP.csv``.

    One row per patch, numbers separated by commas (or semicolons), no header line. Most published
    descriptors exist in this form. Files are parsed once and mapped from the user's cache later.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._first: tuple[Path, int] | None = None
        allow_many_maps()

    def get(self, sequence: str, tag: str, count: int) -> NDArray[np.float32]:
        """(count, D) descriptors of one strip ("ref", "e1", ...), read-only."""
        path = self.folder / sequence / f"{tag}.csv"
        if not path.is_file():
            raise HardnetError(f"there is no {path}; it should have a row per patch of the strip")
        rows = decoded(self.folder, f"{sequence}.{tag}", [path], lambda: read_csv(path))
        if len(rows) != count:
            raise HardnetError(f"{path} has {len(rows)} rows, but the strip has {count} patches")
        first = self._first = self._first or (path, rows.shape[1])
        if rows.shape[1] != first[1]:
            raise HardnetError(
                f"{path} has {rows.shape[1]} numbers per row, but {first[0]} has {first[1]}"
            )
        return rows


def read_csv(path: Path) -> NDArray[np.float32]:
    """(N, D) finite numbers of one file."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            if not first.strip():
                raise HardnetError(f"{path} is empty, or starts with an empty line")
            separator = ";" if ";" in first else ","
            rows = np.loadtxt(file, dtype=np.float32, comments=None, delimiter=separator, ndmin=2)
    except ValueError as error:
        reason = str(error).split(";")[0].rstrip(".")
        raise HardnetError(
            f"{path} is not rows of numbers of one length, separated by commas: {reason}"
        ) from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise HardnetError(f"{path} has NaN or infinity in row {int(np.argmax(bad)) + 1}")
    return rows


def write_csv(folder: Path | str, sequence: str, tag: str, descriptors: NDArray[Any]) -> Path:
    """Write (N, D) float32 descriptors or (N, B) packed bits of one strip; returns the path.

    Float vectors are written with all digits of float32. Bits are written as 0 and 1: their L2
    distance has the order of the Hamming distance.
    """
    path = as_path(folder) / sequence / f"{tag}.csv"
    if descriptors.ndim != 2:
        raise HardnetError(f"{path}: descriptors must be (N, D), got {descriptors.shape}")
    bits = descriptors.dtype == np.uint8
    rows = np.unpackbits(descriptors, axis=1) if bits else descriptors.astype(np.float32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            np.savetxt(part, rows, "%d" if bits else "%.9g", ",")
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror}") from error
    return path
