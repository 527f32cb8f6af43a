"""HPatches matching: find each reference patch among all patches of a target image.

A reference patch is matched to its nearest neighbour in the target, right if it has the same
number. Matches are ranked by distance; every reference patch is a positive, so that one matched
wrongly stays missed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.lists import Lookup, Progress, Strips, Tasks
from hardnet.bench.metrics import (
    MEAN_RESAMPLES,
    average_precision_at_hits,
    average_precision_trapezoid,
    mean_interval,
)
from hardnet.matching.neighbours import two_nearest
from hardnet.patchsets.hpatches import LEVELS, TARGETS, group_of

_CLOSE = 1e-5  # of |a|^2 + |b|^2: squared distances in single precision are surer than this
SCORES = ("ap_trapezoid", "ap_hits", "success", "ap_ratio")


def evaluate(
    lookup: Lookup,
    tasks: Tasks,
    resamples: int = MEAN_RESAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows per sequence and noise level (means of the 5 targets), and means over groups and all."""
    rows = []
    for number, name in enumerate(tasks.names):
        for noise in LEVELS:
            strips = Strips(lookup, tasks, noise)  # one sequence at a time is kept
            reference = strips.get(number, 0)
            each = [match_scores(reference, strips.get(number, k + 1)) for k in range(TARGETS)]
            rows.append(
                {"sequence": name, "group": group_of(name), "noise": noise}
                | dict(zip(SCORES, np.mean(each, 0).tolist(), strict=True))
            )
        if progress:
            progress("matching", number + 1, len(tasks.names))
    return rows, list(_means(rows, resamples, seed))


def match_scores(
    reference: NDArray[Any], target: NDArray[Any]
) -> tuple[float, float, float, float]:
    """One pair of (N, D) descriptors of the same points: the scores in the order of ``SCORES``.

    The last is the average precision at hits with matches ranked by the ratio of the distances to
    the nearest and the second nearest.
    """
    index, distance = two_nearest_exactly(reference, target)
    count = len(reference)
    right = index[:, 0] == np.arange(count)
    ratio = np.ones(count)  # 0 / 0: two patches as near as can be say nothing
    np.divide(distance[:, 0], distance[:, 1], out=ratio, where=distance[:, 1] > 0)
    return (
        average_precision_trapezoid(distance[:, 0], right, count),
        average_precision_at_hits(distance[:, 0], right, count),
        float(right.mean()),
        average_precision_at_hits(ratio, right, count),
    )


def two_nearest_exactly(
    reference: NDArray[Any], target: NDArray[Any]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """:func:`~hardnet.matching.neighbours.two_nearest` in double precision.

    Single precision finds the candidates; where it cannot tell which of them is nearer, all
    distances of that row are computed again.
    """
    index, single = two_nearest(reference, target)
    if reference.dtype == np.uint8:
        return index, single.astype(np.float64)
    a, b = reference.astype(np.float64), target.astype(np.float64)
    squared = np.stack([((a - b[index[:, k]]) ** 2).sum(1) for k in (0, 1)], 1)
    if len(b) == 1:
        return index, np.stack([np.sqrt(squared[:, 0]), np.full(len(a), np.inf)], 1)
    lengths = (a * a).sum(1) + (b * b).sum(1).max()
    for row in np.flatnonzero(squared[:, 1] - squared[:, 0] <= _CLOSE * lengths):
        every = ((b - a[row]) ** 2).sum(1)
        index[row] = np.argsort(every, kind="stable")[:2]
        squared[row] = every[index[row]]
    return index, np.sqrt(squared)


def _means(rows: list[dict[str, Any]], resamples: int, seed: int) -> Iterable[dict[str, Any]]:
    groups = list(dict.fromkeys(row["group"] for row in rows))
    for noise in (*LEVELS, "all"):
        for group in ("all", *sorted(groups, reverse=True)):
            for convention in ("trapezoid", "hits"):
                chosen = [
                    row
                    for row in rows
                    if noise in (row["noise"], "all") and group in (row["group"], "all")
                ]
                values = [row[f"ap_{convention}"] for row in chosen]
                names = [row["sequence"] for row in chosen]
                low, high = mean_interval(values, names, resamples, seed)
                yield {
                    "task": "matching",
                    "noise": noise,
                    "group": group,
                    "convention": convention,
                    "value": float(np.mean(values)),
                    "low": low,
                    "high": high,
                }
