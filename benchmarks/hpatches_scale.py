"""Time and memory of the HPatches tasks against the size of the set, on generated descriptors.

The full size is that of the published set: 116 sequences, about 1300 patches in each of 16 strips,
128 floats; 3 x 1M pairs, 10 000 queries and 20 000 distractors. The plain method of the
benchmark's Python code runs on a part of the same data; its full time is extrapolated.

Example: python benchmarks/hpatches_scale.py --quick
"""

from __future__ import annotations

import importlib
import importlib.util
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer
from measuring import Output, extra_memory_mb, finish, in_fresh_process, run_script, seconds_of
from numpy.typing import NDArray

from hardnet.bench.hpatches import protocol, run
from hardnet.bench.hpatches.lists import (
    DISTRACTORS,
    PAIRS,
    QUERIES,
    Lookup,
    RetrievalLists,
    Strips,
    Tasks,
    draw_pairs,
    draw_retrieval,
    prepare,
)
from hardnet.bench.metrics import average_precision_trapezoid
from hardnet.bench.store import Predictions
from hardnet.descriptors import load
from hardnet.patchsets.hpatches import LEVELS, SIDE, TAGS, TARGETS, choose_split, read_hpatches
from hardnet.provenance import data_digest

SEQUENCES, DIM = 116, 128
NOISE = {"r": 0.0, "e": 2.0, "h": 4.0, "t": 6.0}
"""Length of the noise added to the unit vector of a point, by the first letter of the strip."""
SIZES = (1 / 8, 1 / 4, 1 / 2, 1.0)
QUICK_SIZES = (1 / 58, 1 / 29)
PLAIN_PAIRS, PLAIN_SEQUENCES, PLAIN_QUERIES = 20_000, 3, 20
"""The part of the data for the plain method."""

Descriptors = dict[tuple[str, str], NDArray[np.float32]]


def main(
    quick: Annotated[bool, typer.Option(help="Small sizes only, as a check.")] = False,
    output: Output = Path("results/hpatches_scale.json"),
) -> None:
    """Measure each task at each size in a new process; writes a JSON file."""
    rows = []
    for size in QUICK_SIZES if quick else SIZES:
        for task in run.TASKS:
            row = in_fresh_process(measure, task, size)
            rows.append(row)
            print(row, flush=True)
    patches = in_fresh_process(from_patches, 3 if quick else 8, 60 if quick else 300)
    settings: dict[str, Any] = {"sequences": SEQUENCES, "dim": DIM, "pairs": PAIRS}
    settings |= {"queries": QUERIES, "distractors": DISTRACTORS, "noise": NOISE}
    finish("hpatches_scale", {"rows": rows, "from_patches": patches}, [], output, **settings)


def measure(task: str, size: float) -> dict[str, Any]:
    """One task on ``size`` of the full set: our time and memory, and the plain method's time."""
    tasks, descriptors, drawing = generate(size, with_pairs=task == "verification")

    def lookup(name: str, tag: str) -> NDArray[np.float32]:
        return descriptors[name, tag]

    evaluate = getattr(protocol, task)
    rows: list[dict[str, Any]] = []
    start = time.perf_counter()
    extra = extra_memory_mb(lambda: rows.extend(evaluate(lookup, tasks)[0]))
    seconds = time.perf_counter() - start
    scores = seconds
    if task == "verification":  # the plain method has no intervals
        scores = seconds_of(lambda: evaluate(lookup, tasks, resamples=0))
    plain_seconds, difference = PLAIN[task](lookup, tasks)
    return {
        "task": task,
        "size": size,
        "sequences": len(tasks.names),
        "patches": sum(tasks.counts),
        "pairs": len(tasks.pairs.positive),
        "queries": len(tasks.retrieval.queries),
        "distractors": len(tasks.retrieval.distractors),
        "seconds": seconds,
        "seconds_without_intervals": scores,
        "drawing_seconds": drawing,
        "memory_mb": extra,
        "descriptors_mb": sum(d.nbytes for d in descriptors.values()) / 2**20,
        "plain_seconds_extrapolated": plain_seconds,
        "ratio": plain_seconds / scores,
        "difference_to_plain": difference,
        "ap_trapezoid_tough": rows[-1]["ap_trapezoid"],
    }


def generate(size: float, with_pairs: bool) -> tuple[Tasks, Descriptors, float]:
    """Lists and descriptors of a part of the set, and how long the pairs took to draw."""
    rng = np.random.default_rng(0)
    # The largest index per sequence in the published lists: 256 to 1999, a mean of 1350.
    sequences = max(round(SEQUENCES * size), 2)
    counts = np.clip(rng.normal(1400, 650, sequences), 250, 2000).astype(int).tolist()
    names = [f"{'vi'[k % 2]}_{k:03d}" for k in range(sequences)]
    descriptors: Descriptors = {}
    for name, count in zip(names, counts, strict=True):
        point = _unit(rng.standard_normal((count, DIM), np.float32))
        for tag in TAGS:
            noise = _unit(rng.standard_normal((count, DIM), np.float32))
            descriptors[name, tag] = _unit(point + NOISE[tag[0]] * noise)
    start = time.perf_counter()
    pairs = draw_pairs(counts, round(PAIRS * size) if with_pairs else 5)
    drawing = time.perf_counter() - start
    lists = draw_retrieval(counts)
    lists = RetrievalLists(
        lists.queries[: round(QUERIES * size)], lists.distractors[: round(DISTRACTORS * size)]
    )
    return Tasks("part", tuple(names), tuple(counts), pairs, lists, {}), descriptors, drawing


def from_patches(sequences: int, count: int) -> dict[str, Any]:
    """The whole run on a small set: strips on disk, hardnet, stored descriptors, all tasks."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for k in range(sequences):
            (folder / f"v_{k}").mkdir()
            point = cv2.GaussianBlur(rng.normal(size=(count * SIDE, SIDE)), (0, 0), 3) * 600 + 128
            for tag in TAGS:
                noise = rng.normal(0, 8 * (1 + NOISE[tag[0]]), point.shape)
                strip = np.clip(point + noise, 0, 255).astype(np.uint8)
                cv2.imwrite(str(folder / f"v_{k}" / f"{tag}.png"), strip)
        hpatches = read_hpatches(folder)
        names = choose_split(hpatches, "full").test
        seconds = []
        for _ in range(2):
            start = time.perf_counter()
            stored = Predictions(load("hardnet"), data_digest(folder).sha256, folder / "cache")

            def lookup(name: str, tag: str, stored: Predictions = stored) -> NDArray[Any]:
                return stored.get(f"{name}/{tag}", lambda: hpatches.sequences[name].patches(tag))

            for sequence in names:
                for tag in TAGS:
                    lookup(sequence, tag)
            seconds.append(time.perf_counter() - start)
        counts = {name: sequence.count for name, sequence in hpatches.sequences.items()}
        tasks = prepare("full", names, counts, pairs=10_000)
        start = time.perf_counter()
        means = run.evaluate("hardnet", lookup, tasks)["means"]
        evaluation = time.perf_counter() - start
    rate = sequences * count * len(TAGS) / seconds[0]
    return {
        "patches": sequences * count * len(TAGS),
        "patches_per_second": rate,
        "full_set_minutes": SEQUENCES * 1300 * len(TAGS) / rate / 60,
        "second_run_seconds": seconds[1],
        "evaluation_seconds": evaluation,
        "means": means,
    }


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def verification_seconds(lookup: Lookup, tasks: Tasks) -> tuple[float, float]:
    """Full seconds of a loop over pairs, without the scores; largest difference of a distance."""
    rows = tasks.pairs.inter[:PLAIN_PAIRS]
    start = time.perf_counter()
    found = np.empty(len(rows))
    for k, (s1, t1, i1, s2, t2, i2) in enumerate(rows.tolist()):
        a = lookup(tasks.names[s1], f"e{t1}" if t1 else "ref")[i1]
        b = lookup(tasks.names[s2], f"e{t2}" if t2 else "ref")[i2]
        found[k] = np.sqrt(np.sum((a - b) ** 2))
    seconds = time.perf_counter() - start
    ours = protocol.distances(Strips(lookup, tasks, "easy"), rows)
    full = 3 * len(LEVELS) * len(tasks.pairs.inter) / len(rows)
    return seconds * full, float(np.abs(ours - found).max())


def matching_seconds(lookup: Lookup, tasks: Tasks) -> tuple[float, float]:
    """Full seconds with a whole distance matrix per pair; largest difference of an AP."""
    chosen = tasks.names[:PLAIN_SEQUENCES]
    start = time.perf_counter()
    found = []
    for name in chosen:
        reference = lookup(name, "ref")
        matrix = _all_distances(reference, lookup(name, "t1"))
        nearest = matrix.argmin(1)
        here = np.arange(len(reference))
        distance = matrix[here, nearest]
        found.append(average_precision_trapezoid(distance, nearest == here, len(here)))
    seconds = time.perf_counter() - start
    ours = [protocol.match_scores(lookup(n, "ref"), lookup(n, "t1"))[0] for n in chosen]
    squares = np.square(tasks.counts, dtype=np.int64)
    full = len(LEVELS) * TARGETS * squares.sum() / squares[: len(chosen)].sum()
    return float(seconds * full), float(np.abs(np.subtract(ours, found)).max())


def retrieval_seconds(lookup: Lookup, tasks: Tasks) -> tuple[float, float]:
    """Full seconds with a sort per query, noise level and pool; largest difference of an AP."""
    queries, distractors = tasks.retrieval.queries[:PLAIN_QUERIES], tasks.retrieval.distractors
    pools = protocol.pool_sizes(len(distractors))
    few = replace(tasks, retrieval=RetrievalLists(queries, distractors))
    ours, _ = protocol.average_precisions(lookup, few, pools)
    others = Strips(lookup, tasks, "easy").gather(np.insert(distractors, 1, 0, axis=1))
    found = np.empty_like(ours)
    start = time.perf_counter()
    for q, (s, i) in enumerate(queries.tolist()):
        query = lookup(tasks.names[s], "ref")[i][None]
        wrong = _all_distances(query, others)[0][distractors[:, 0] != s]
        for n, level in enumerate(LEVELS.values()):
            right = [lookup(tasks.names[s], f"{level}{k}")[i] for k in range(1, TARGETS + 1)]
            pool = np.append(_all_distances(query, np.stack(right))[0], wrong)
            label = np.arange(len(pool)) < TARGETS
            for k, cut in enumerate([*pools[:-1], len(pool)]):
                found[q, n, k] = average_precision_trapezoid(pool[:cut], label[:cut])
    seconds = time.perf_counter() - start
    full = len(tasks.retrieval.queries) / len(queries)
    return seconds * full, float(np.abs(ours - found).max())


def _all_distances(a: NDArray[np.float32], b: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N, D), (M, D) -> (N, M): by scipy, as in the published code, or row by row."""
    if importlib.util.find_spec("scipy"):
        cdist = importlib.import_module("scipy.spatial.distance").cdist
        return np.asarray(cdist(a, b))
    return np.stack([np.sqrt(np.square(row - b, dtype=np.float64).sum(1)) for row in a])


PLAIN = {
    "verification": verification_seconds,
    "matching": matching_seconds,
    "retrieval": retrieval_seconds,
}
"""The tasks by the plain method of the benchmark's Python code, on a part of the data.

A loop over pairs; a whole distance matrix per image pair; a sort per query, noise level and pool.
Each function returns the extrapolated seconds of the full task, and the largest difference between
its result and hardnet's.
"""

if __name__ == "__main__":
    run_script(main)
