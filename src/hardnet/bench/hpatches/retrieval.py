"""HPatches retrieval: find the 5 views of a patch in a growing pool of other patches.

The pool of a query is its 5 patches in the target images, then the distractors in the order of
their list without those of the query's own sequence, cut after k entries. Queries and distractors
are reference patches, so their distances serve all noise levels. Nothing is ranked: all a precision
needs is how many distractors are nearer than each of the 5, which one sorted row per query tells.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.lists import Lookup, Progress, Strips, Tasks, each_and_all
from hardnet.bench.metrics import MEAN_RESAMPLES, mean_interval, precisions
from hardnet.errors import HardnetError
from hardnet.matching.neighbours import distance_matrix, pair_distances
from hardnet.patchsets.hpatches import LEVELS, TARGETS

POOLS = (100, 500, 1_000, 5_000, 10_000, 15_000, 20_000)
"""Sizes k of the official pools; the 5 right answers count."""
_BLOCK = 2_000_000  # distances held at once
_STEP = 1e-10  # of |a|^2 + |b|^2: far above the noise of double precision, far below any meaning

Distances = NDArray[np.float64]


def evaluate(
    lookup: Lookup,
    tasks: Tasks,
    resamples: int = MEAN_RESAMPLES,
    seed: int = 0,
    progress: Progress | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows per noise level and pool, the last with all distractors; and the means of the last."""
    if len(tasks.names) < 2:
        raise HardnetError("retrieval needs distractors of another sequence than the query's")
    pools = pool_sizes(len(tasks.retrieval.distractors))
    trapezoid, hits = average_precisions(lookup, tasks, pools, progress)
    sequence = tasks.retrieval.queries[:, 0]

    def limits(values: NDArray[np.float64]) -> dict[str, float | None]:
        low, high = mean_interval(values, sequence, resamples, seed)
        return {"low": low, "high": high}

    rows = [
        {
            "noise": noise,
            "distractors": pool,
            "ap_trapezoid": float(trapezoid[:, n, k].mean()),
            "ap_hits": float(hits[:, n, k].mean()),
        }
        | limits(trapezoid[:, n, k])
        for n, noise in enumerate(LEVELS)
        for k, pool in enumerate(pools)
    ]
    means = [
        {
            "task": "retrieval",
            "noise": noise,
            "group": "all",
            "convention": convention,
            "value": float(values[:, n, -1].mean()),
        }
        | limits(values[:, n, -1].reshape(len(sequence), -1).mean(1))
        for n, noise in each_and_all(LEVELS)
        for convention, values in (("trapezoid", trapezoid), ("hits", hits))
    ]
    return rows, means


def pool_sizes(distractors: int) -> tuple[int, ...]:
    """The official pools that a list is long enough for; the last stands for the whole list.

    A list as long as the largest pool never fills it, because distractors of the query's own
    sequence go: that pool and the whole list are the same.
    """
    return (*(k for k in POOLS if k < distractors), distractors)


def average_precisions(
    lookup: Lookup, tasks: Tasks, pools: Sequence[int], progress: Progress | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Average precision of every query, (Q, noise levels, pools): by trapezoids, at hits.

    The last of ``pools`` is not cut.
    """
    queries, distractors = tasks.retrieval.queries, tasks.retrieval.distractors
    levels = {noise: Strips(lookup, tasks, noise) for noise in LEVELS}
    reference = levels["easy"]
    pool = reference.gather(_of_image(distractors, 0))
    trapezoid = np.empty((len(queries), len(LEVELS), len(pools)))
    hits = np.empty_like(trapezoid)
    done = 0
    for sequence in range(len(tasks.names)):
        members = np.flatnonzero(queries[:, 0] == sequence)
        others = pool[distractors[:, 0] != sequence]
        # Cuts count the right answers, too; a short pool is as long as it is.
        cuts = [*(max(k - TARGETS, 0) for k in pools[:-1]), len(others)]
        cuts = [min(cut, len(others)) for cut in cuts]
        step = max(_BLOCK // max(len(others), 1), 1)
        for start in range(0, len(members), step):
            part = members[start : start + step]
            asked = reference.gather(_of_image(queries[part], 0))
            answers = np.stack(
                [
                    strips.gather(_of_image(queries[part], image))
                    for strips in levels.values()
                    for image in range(1, TARGETS + 1)
                ],
                1,
            )
            right, wrong = comparable_distances(asked, answers, others)
            before, within = _count_nearer(right, wrong, cuts)
            trapezoid[part], hits[part] = _average(right, before, within)
            done += len(part)
            if progress:
                progress("retrieval", done, len(queries))
    return trapezoid, hits


def comparable_distances(
    queries: NDArray[Any], answers: NDArray[Any], others: NDArray[Any]
) -> tuple[Distances, Distances]:
    """(Q, A) and (Q, M) numbers in the order of the distances; equal distances are equal numbers.

    A matrix product gives two equal descriptors two distances, by where they stand in the matrix,
    and so breaks ties at random. Squared distances are computed in double precision and rounded to
    10 digits of |a|^2 + |b|^2, each pair by its own: vectors may differ in length by any factor.
    """
    count, width, dim = answers.shape
    if queries.dtype == np.uint8:
        repeated = np.repeat(queries, width, axis=0)
        near = pair_distances(repeated, answers.reshape(-1, dim)).reshape(count, width)
        return near.astype(np.float64), distance_matrix(queries, others).astype(np.float64)
    a, b = queries.astype(np.float64), others.astype(np.float64)
    a_squares, b_squares = np.einsum("ij,ij->i", a, a), np.einsum("ij,ij->i", b, b)
    c = answers.astype(np.float64)
    c_squares = np.einsum("ijk,ijk->ij", c, c)
    difference = c - a[:, None]
    right = np.einsum("ijk,ijk->ij", difference, difference)
    wrong = a @ (-2 * b.T)
    wrong += b_squares
    wrong += a_squares[:, None]
    if not (np.isfinite(b_squares).all() and np.isfinite(right).all()):
        raise HardnetError("descriptors contain NaN or infinity")
    lengths = a_squares[:, None]
    return _rounded(right, lengths + c_squares), _rounded(wrong, lengths + b_squares)


def _rounded(squared: NDArray[np.float64], lengths: NDArray[np.float64]) -> Distances:
    """``squared`` in steps of about a share of ``lengths``, both (Q, M); it is used up."""
    # Powers of two: whole numbers stay whole, so equal distances of different lengths stay equal.
    step = np.exp2(np.floor(np.log2(np.maximum(lengths * _STEP, np.finfo(float).tiny))))
    squared /= step
    np.rint(squared, out=squared)
    squared *= step
    return squared


def _count_nearer(
    right: Distances, wrong: Distances, cuts: Sequence[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many of the first distractors are nearer than each right answer, and at most as far.

    Both (Q, A, cuts), from (Q, A) and (Q, M) distances; ``wrong`` gets sorted between the cuts.
    """
    before = np.zeros((*right.shape, len(cuts)), np.int64)
    within = np.zeros_like(before)
    for k, (start, stop) in enumerate(zip([0, *cuts], cuts, strict=False)):
        wrong[:, start:stop].sort(axis=1)
        for q in range(len(right)):
            before[q, :, k] = np.searchsorted(wrong[q, start:stop], right[q], "left")
            within[q, :, k] = np.searchsorted(wrong[q, start:stop], right[q], "right")
    return before.cumsum(2), within.cumsum(2)


def _average(
    right: Distances, before: NDArray[np.int64], within: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    shape = (len(right), len(LEVELS), TARGETS)
    each = right.reshape(shape)
    right_before = (each[..., None, :] < each[..., :, None]).sum(-1)
    right_within = (each[..., None, :] <= each[..., :, None]).sum(-1)
    trapezoid, hits = precisions(
        right_before[..., None],
        right_within[..., None],
        before.reshape(*shape, -1),
        within.reshape(*shape, -1),
    )
    return trapezoid.mean(2), hits.mean(2)


def _of_image(patches: NDArray[np.int32], image: int) -> NDArray[np.int32]:
    return np.insert(patches, 1, image, axis=1)
