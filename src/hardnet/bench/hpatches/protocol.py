"""The three tasks of HPatches.

Verification: do two patches show the same point? Balanced: ROC AUC of as many true as false pairs.
Imbalanced: average precision of all false pairs and the first fifth of the true pairs, which is the
number in the figures of the papers. False pairs are of one sequence ("intra") or of any two.

Matching: find each reference patch among all patches of a target image. It is matched to its
nearest neighbour there, right if it has the same number. Matches are ranked by distance; every
reference patch is a positive, so that one matched wrongly stays missed.

Retrieval: find the 5 views of a patch in a growing pool of other patches. The pool of a query is
its 5 patches in the target images, then the distractors in the order of their list without those of
the query's own sequence, cut after k entries. Nothing is ranked: a precision only needs the number
of distractors nearer than each of the 5, which one sorted row per query gives.

Each task gives its rows, and the mean that the papers show with its 95 % interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.lists import KEPT, Lookup, Rows, Strips, Tasks
from hardnet.bench.metrics import (
    MEAN_RESAMPLES,
    POOLED_RESAMPLES,
    Floats,
    PooledRanking,
    average_precision_at_hits,
    average_precision_trapezoid,
    cumulated,
    interval,
    mean_interval,
    multiplicities,
    precisions,
)
from hardnet.errors import HardnetError, Progress, silent
from hardnet.matching.neighbours import distance_matrix, pair_distances, two_nearest
from hardnet.patchsets.hpatches import LEVELS, TARGETS, group_of
from hardnet.patchsets.patchset import Ints

PAPER_CONVENTION = {"verification": "hits", "matching": "hits", "retrieval": "trapezoid"}
"""Which average precision the HardNet paper's figure shows, as far as it can be known. The figures
of the HPatches papers come from the benchmark's MATLAB code, the mean precision at hits;
"trapezoid" is its Python code. With thousands of positives the two hardly differ. In retrieval,
with 5, they do, and there the Python code gives HardNet+ the number of the paper (69.66, against
60.64 of the MATLAB code: hpatches-benchmark#32)."""

Result = tuple[list[dict[str, Any]], dict[str, Any]]
"""The rows of a task, and their mean: value, low and high."""

TRUE_SHARE = 0.2
"""Part of the true pairs, from the front of their list, in the imbalanced task."""
NEGATIVES = ("intra", "inter")
VERIFICATION_SCORES = ("auc", "ap_trapezoid", "ap_hits")
_PORTION = 32_768  # pairs whose descriptors are held at once: 2 x 16 MB of 128 floats
_SEQUENCES = KEPT // (2 * (TARGETS + 1))  # sequences whose strips can be kept for both sides
_THREADS = 4


def verification(
    lookup: Lookup, tasks: Tasks, progress: Progress = silent, resamples: int = POOLED_RESAMPLES
) -> Result:
    """Rows per noise level and kind of negatives."""
    groups = len(tasks.names)
    drawn = multiplicities(groups, resamples) if groups > 1 else np.ones((0, groups))
    weights = np.concatenate([np.ones((1, groups)), drawn])  # the first is the score itself
    rows, scores = [], []
    steps, total = count(1), len(LEVELS) * (1 + 2 * len(NEGATIVES))
    for noise in LEVELS:
        strips = Strips(lookup, tasks, noise)
        true = distances(strips, tasks.pairs.positive)
        progress("verification", next(steps), total)
        for negatives in NEGATIVES:
            pairs = getattr(tasks.pairs, negatives)
            false = distances(strips, pairs)
            progress("verification", next(steps), total)
            scores.append(pooled_scores(true, tasks.pairs.positive, false, pairs, weights))
            named = dict(zip(VERIFICATION_SCORES, scores[-1][0].tolist(), strict=True))
            rows.append({"noise": noise, "negatives": negatives} | named)
            progress("verification", next(steps), total)
    hits = np.mean(scores, axis=0)[:, VERIFICATION_SCORES.index("ap_hits")]
    low, high = interval(hits[1:])
    return rows, {"value": float(hits[0]), "low": low, "high": high}


def distances(strips: Strips, rows: Rows) -> Floats:
    """Distances of pairs, (P, 6) -> (P,), a portion of descriptors at a time.

    In double precision: among millions of pairs many are closer than single precision can tell.
    """
    out = np.empty(len(rows))
    # Pairs of the same two blocks of sequences together: few strips serve many pairs.
    block = rows[:, [0, 3]] // _SEQUENCES
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
    true: Floats, true_rows: Rows, false: Floats, false_rows: Rows, weights: NDArray[np.floating]
) -> Floats:
    """(R, 3) scores as ``VERIFICATION_SCORES`` names them, under (R, sequences) weightings.

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

    def score(weight: Floats) -> tuple[float, float, float]:
        false_weights = np.take(weight, some_false)
        if inter:
            false_weights *= np.take(weight, other_false)
        false_sums = cumulated(false_weights)
        return (
            balanced.auc(np.take(weight, all_true), false_sums),
            *imbalanced.average_precision(np.take(weight, few_true), false_sums),
        )

    with ThreadPoolExecutor(_THREADS) as pool:  # numpy releases the GIL in the slow parts
        return np.array(list(pool.map(score, np.asarray(weights, np.float64))))


_CLOSE = 1e-5  # of |a|^2 + |b|^2: squared distances in single precision are more exact than this
MATCHING_SCORES = ("ap_trapezoid", "ap_hits", "success")


def matching(
    lookup: Lookup, tasks: Tasks, progress: Progress = silent, resamples: int = MEAN_RESAMPLES
) -> Result:
    """Rows per sequence and noise level, means of the 5 targets."""
    rows = []
    for number, name in enumerate(tasks.names):
        for noise in LEVELS:
            strips = Strips(lookup, tasks, noise)  # one sequence at a time is kept
            reference = strips.get(number, 0)
            each = [match_scores(reference, strips.get(number, k + 1)) for k in range(TARGETS)]
            rows.append(
                {"sequence": name, "group": group_of(name), "noise": noise}
                | dict(zip(MATCHING_SCORES, np.mean(each, 0).tolist(), strict=True))
            )
        progress("matching", number + 1, len(tasks.names))
    names, values = ([row[key] for row in rows] for key in ("sequence", "ap_hits"))
    low, high = mean_interval(values, names, resamples)
    return rows, {"value": float(np.mean(values)), "low": low, "high": high}


def match_scores(reference: NDArray[Any], target: NDArray[Any]) -> tuple[float, float, float]:
    """One pair of (N, D) descriptors of the same points: the ``MATCHING_SCORES``."""
    index, distance = nearest_exactly(reference, target)
    count = len(reference)
    right = index == np.arange(count)
    return (
        average_precision_trapezoid(distance, right, count),
        average_precision_at_hits(distance, right, count),
        float(right.mean()),
    )


def nearest_exactly(
    reference: NDArray[Any], target: NDArray[Any]
) -> tuple[NDArray[np.intp], Floats]:
    """(N,) nearest row of ``target`` and (N,) its distance, in double precision.

    Single precision finds two candidates; where it cannot tell which of them is nearer, all
    distances of that row are computed again.
    """
    index, single = two_nearest(reference, target)
    if reference.dtype == np.uint8:
        return index[:, 0], single[:, 0].astype(np.float64)
    a, b = reference.astype(np.float64), target.astype(np.float64)
    squared = np.stack([((a - b[index[:, k]]) ** 2).sum(1) for k in (0, 1)], 1)
    lengths = (a * a).sum(1) + (b * b).sum(1).max()
    close = squared[:, 1] - squared[:, 0] <= _CLOSE * lengths
    for row in np.flatnonzero(close) if len(b) > 1 else ():
        every = ((b - a[row]) ** 2).sum(1)
        index[row, 0] = np.argmin(every)
        squared[row, 0] = every[index[row, 0]]
    return index[:, 0], np.sqrt(squared[:, 0])


POOLS = (100, 500, 1_000, 5_000, 10_000, 15_000, 20_000)
"""Sizes k of the official pools; the 5 right answers count."""
_BLOCK = 2_000_000  # distances held at once
_STEP = 1e-10  # of |a|^2 + |b|^2: far above the noise of double precision, far below any meaning


def retrieval(
    lookup: Lookup, tasks: Tasks, progress: Progress = silent, resamples: int = MEAN_RESAMPLES
) -> Result:
    """Rows per noise level and pool; the mean is of the last pool, with all distractors."""
    if len(tasks.names) < 2:
        raise HardnetError("retrieval needs distractors of another sequence than the query's")
    pools = pool_sizes(len(tasks.retrieval.distractors))
    trapezoid, hits = average_precisions(lookup, tasks, pools, progress)
    rows = [
        {
            "noise": noise,
            "distractors": pool,
            "ap_trapezoid": float(trapezoid[:, n, k].mean()),
            "ap_hits": float(hits[:, n, k].mean()),
        }
        for n, noise in enumerate(LEVELS)
        for k, pool in enumerate(pools)
    ]
    whole = trapezoid[:, :, -1]
    low, high = mean_interval(whole.mean(1), tasks.retrieval.queries[:, 0], resamples)
    return rows, {"value": float(whole.mean()), "low": low, "high": high}


def pool_sizes(distractors: int) -> tuple[int, ...]:
    """The official pools that a list is long enough for; the last stands for the whole list.

    A list as long as the largest pool never fills it, because distractors of the query's own
    sequence are left out: that pool and the whole list are the same.
    """
    return (*(k for k in POOLS if k < distractors), distractors)


def average_precisions(
    lookup: Lookup, tasks: Tasks, pools: Sequence[int], progress: Progress = silent
) -> tuple[Floats, Floats]:
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
        # Pool sizes include the right answers; a pool may be shorter than its size.
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
            trapezoid[part], hits[part] = _average(right, *_count_nearer(right, wrong, cuts))
            done += len(part)
            progress("retrieval", done, len(queries))
    return trapezoid, hits


def comparable_distances(
    queries: NDArray[Any], answers: NDArray[Any], others: NDArray[Any]
) -> tuple[Floats, Floats]:
    """(Q, A) and (Q, M) numbers in the order of the distances; equal distances are equal numbers.

    A matrix product may give two equal descriptors different distances, depending on their place in
    the matrix, and so breaks ties at random. Squared distances are computed in double precision and
    rounded to 10 digits of |a|^2 + |b|^2, for each pair: vectors may differ in length by any
    factor.
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


def _rounded(squared: Floats, lengths: Floats) -> Floats:
    # Powers of two: whole numbers stay whole, so equal distances of different lengths stay equal.
    step = np.exp2(np.floor(np.log2(np.maximum(lengths * _STEP, np.finfo(float).tiny))))
    squared /= step
    np.rint(squared, out=squared)
    squared *= step
    return squared


def _count_nearer(right: Floats, wrong: Floats, cuts: Sequence[int]) -> tuple[Ints, Ints]:
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


def _average(right: Floats, before: Ints, within: Ints) -> tuple[Floats, Floats]:
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
