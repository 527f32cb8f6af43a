"""HPatches verification: do two patches show the same point?

Balanced: ROC AUC of as many true as false pairs. Imbalanced: average precision of all false pairs
and the first fifth of the true pairs, which is the number in the figures of the papers. False pairs
are of one sequence ("intra") or of any two ("inter").
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.lists import KEPT, Lookup, Progress, Rows, Strips, Tasks, each_and_all
from hardnet.bench.metrics import (
    POOLED_RESAMPLES,
    PooledRanking,
    cumulated,
    interval,
    multiplicities,
)
from hardnet.errors import HardnetError
from hardnet.matching.neighbours import pair_distances
from hardnet.patchsets.hpatches import LEVELS, TARGETS

TRUE_SHARE = 0.2
"""Part of the true pairs, from the front of their list, in the imbalanced task."""
NEGATIVES = ("intra", "inter")
SCORES = ("auc", "ap_trapezoid", "ap_hits")
_TASKS = (("verification-balanced", "auc"), ("verification", "trapezoid"), ("verification", "hits"))
"""Task and convention of each score in the means."""
_PORTION = 32_768  # pairs whose descriptors are held at once: 2 x 16 MB of 128 floats
_BLOCK = KEPT // (2 * (TARGETS + 1))  # sequences whose strips can be kept for both sides
_THREADS = 4


def evaluate(
    lookup: Lookup,
    tasks: Tasks,
    resamples: int = POOLED_RESAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows per noise level and negatives, with the interval of ``ap_hits``; and their means."""
    groups = len(tasks.names)
    drawn = multiplicities(groups, resamples, seed) if groups > 1 else np.ones((0, groups))
    weights = np.concatenate([np.ones((1, groups)), drawn])  # the first is the score itself
    scores = np.empty((len(LEVELS), len(NEGATIVES), len(weights), len(SCORES)))

    lists = tasks.pairs.positive, tasks.pairs.intra, tasks.pairs.inter
    steps = count(1)

    def advance() -> None:
        if progress:
            progress("verification", next(steps), len(LEVELS) * (len(lists) + len(NEGATIVES)))

    for k, noise in enumerate(LEVELS):
        strips = Strips(lookup, tasks, noise)
        found = []
        for rows in lists:
            found.append(distances(strips, rows))
            advance()
        for n in range(len(NEGATIVES)):
            scores[k, n] = pooled_scores(found[0], lists[0], found[1 + n], lists[1 + n], weights)
            advance()
    rows_out = [
        {"noise": noise, "negatives": negatives}
        | dict(zip(SCORES, scores[k, n, 0].tolist(), strict=True))
        | _limits(scores[k, n, 1:, SCORES.index("ap_hits")])
        for k, noise in enumerate(LEVELS)
        for n, negatives in enumerate(NEGATIVES)
    ]
    return rows_out, list(_means(scores))


def distances(strips: Strips, rows: Rows) -> NDArray[np.float64]:
    """Distances of pairs, (P, 6) -> (P,), a portion of descriptors at a time.

    In double precision: among millions of pairs many are closer than single precision can tell.
    """
    out = np.empty(len(rows))
    # Pairs of the same two blocks of sequences together: few strips serve many pairs.
    block = rows[:, [0, 3]] // _BLOCK
    order = np.lexsort((block[:, 1], block[:, 0]))
    for start in range(0, len(rows), _PORTION):
        part = order[start : start + _PORTION]
        first, second = strips.gather(rows[part, :3]), strips.gather(rows[part, 3:])
        if first.dtype == np.uint8 or first.shape != second.shape:
            out[part] = pair_distances(first, second)
            continue
        difference = first.astype(np.float64) - second
        out[part] = np.sqrt(np.einsum("nd,nd->n", difference, difference))
    if not np.isfinite(out).all():
        raise HardnetError("descriptors contain NaN or infinity")
    return out


def pooled_scores(
    true: NDArray[np.float64],
    true_rows: Rows,
    false: NDArray[np.float64],
    false_rows: Rows,
    weights: NDArray[np.floating],
) -> NDArray[np.float64]:
    """(R, 3) scores in the order of ``SCORES`` under (R, sequences) weightings of the sequences.

    A pair counts as often as it would be drawn if the protocol drew from the weighted list of
    sequences: the weight of its sequence, or of two independently drawn ones their product.
    """
    first = int(len(true) * TRUE_SHARE)
    balanced = PooledRanking(true, false)
    imbalanced = PooledRanking(true[:first], false)
    inter = bool((false_rows[:, 0] != false_rows[:, 3]).any())

    sequence, order = true_rows[:, 0].astype(np.intp), balanced.false_order
    all_true, few_true = sequence[balanced.true_order], sequence[imbalanced.true_order]
    some_false, other_false = (false_rows[order, column].astype(np.intp) for column in (0, 3))

    def score(weight: NDArray[np.float64]) -> tuple[float, float, float]:
        false_weights = np.take(weight, some_false)
        if inter:
            false_weights *= np.take(weight, other_false)
        false_sums = cumulated(false_weights)
        return (
            balanced.auc(np.take(weight, all_true), false_sums),
            *imbalanced.average_precision(np.take(weight, few_true), false_sums),
        )

    with ThreadPoolExecutor(_THREADS) as pool:  # numpy lets go of the lock in all that is long
        return np.array(list(pool.map(score, np.asarray(weights, np.float64))))


def _means(scores: NDArray[np.float64]) -> Iterable[dict[str, Any]]:
    for k, noise in each_and_all(LEVELS):
        for n, group in each_and_all(NEGATIVES):
            mean = scores[k, n].reshape(-1, *scores.shape[2:]).mean(0)
            for c, (task, convention) in enumerate(_TASKS):
                yield {
                    "task": task,
                    "noise": noise,
                    "group": group,
                    "convention": convention,
                    "value": float(mean[0, c]),
                } | _limits(mean[1:, c])


def _limits(samples: NDArray[np.float64]) -> dict[str, float | None]:
    low, high = interval(samples)
    return {"low": low, "high": high}
