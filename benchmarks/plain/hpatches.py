"""The HPatches tasks the plain way, on a part of the data, as the benchmark's Python code goes.

A loop over pairs; a whole distance matrix per image pair; a sort per query, noise level and pool.
Each function returns the seconds that all of the task would take, extrapolated, and the largest
difference of what it found to what hardnet finds.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches import protocol
from hardnet.bench.hpatches.lists import Lookup, RetrievalLists, Strips, Tasks
from hardnet.bench.metrics import average_precision_trapezoid
from hardnet.patchsets.hpatches import LEVELS, TARGETS

_PAIRS, _SEQUENCES, _QUERIES = 20_000, 3, 20


def verification_seconds(lookup: Lookup, tasks: Tasks) -> tuple[float, float]:
    """Full seconds of a loop over pairs, without the scores; largest difference of a distance."""
    rows = tasks.pairs.inter[:_PAIRS]
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
    chosen = tasks.names[:_SEQUENCES]
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
    queries, distractors = tasks.retrieval.queries[:_QUERIES], tasks.retrieval.distractors
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
