"""The W1BS benchmark: match the patches of two images that differ in one extreme way.

Every patch of the first image is matched to its nearest of the second; row i is right for row i.
The answers are ranked by one of three scores, a precision-recall curve is taken at 100 thresholds,
and its area is averaged over the pairs of a subset (one nuisance factor); the total is the mean of
the subsets, however many pairs each has.

The area is that of recall over (1 - precision), in the order of the thresholds, as the benchmark's
own code takes it: where the precision rises again the area shrinks, and where the curve ends the
area ends. A descriptor without any wrong answer therefore scores 0, not 1, and a curve that lies
above another but ends earlier can have the smaller area. It is meant for extreme pairs; for others
read the average precision of the HPatches matching task, which is given too (the paper says that
its W1BS protocol is that of the HPatches task).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench.metrics import (
    MEAN_RESAMPLES,
    Floats,
    Interval,
    average_precision_at_hits,
    average_precision_trapezoid,
    interval,
    multiplicities,
)
from hardnet.bench.store import Describe
from hardnet.errors import HardnetError, Steps, silent
from hardnet.matching.neighbours import two_nearest

if TYPE_CHECKING:
    from hardnet.patchsets.w1bs import W1BS

Score = Literal["ratio", "distance", "difference"]
SCORES: tuple[Score, ...] = ("ratio", "distance", "difference")
PLOTTED: Score = "ratio"
"""The score of the benchmark's figures: nearest distance / second nearest distance."""
MEASURES = (*SCORES, "ap_trapezoid", "ap_hits")
"""What is measured on a pair: the area for each score, then the HPatches matching task."""
THRESHOLDS = 100
TOTAL = "Total"

Curve = tuple[Floats, Floats]
"""recall (100,), precision (100,)."""


def match_scores(
    first: NDArray[Any], second: NDArray[Any]
) -> tuple[dict[Score, Floats], NDArray[np.bool_]]:
    """Match every row of (N, D) to its nearest row of (M, D).

    Returns the scores, (N,) each (ratio and distance are better when smaller, difference when
    larger), and (N,) whether the nearest has the same row number.
    """
    index, distance = two_nearest(_finite(first), _finite(second))
    nearest, next_nearest = distance.astype(np.float64).T
    scores: dict[Score, Floats] = {
        "ratio": nearest / (next_nearest + 1e-12),
        "distance": nearest,
        "difference": next_nearest - nearest,
    }
    return scores, index[:, 0] == np.arange(len(index))


def curve(score: ArrayLike, correct: ArrayLike, larger: bool = False) -> Curve:
    """Recall and precision, (100,) each, at thresholds from the strictest to the loosest.

    They go from 0 to the largest score, or back; strictly better (``larger``: larger) scores are
    accepted. Recall is of all N patches; precision is 1 where nothing is accepted.
    """
    value, right = np.asarray(score, np.float64), np.asarray(correct, bool)
    loosest = float(value.max())
    ends = (loosest, 0.0) if larger else (0.0, loosest)
    threshold = np.linspace(ends[0], ends[1], THRESHOLDS)[:, None]
    accepted = value > threshold if larger else value < threshold
    hits, answers = (accepted & right).sum(1), accepted.sum(1)
    precision = np.divide(hits, answers, out=np.ones(THRESHOLDS), where=answers > 0)
    return hits / len(value), precision


def area(recall: ArrayLike, precision: ArrayLike) -> float:
    """Area of recall over (1 - precision) by trapezoids, signed as the curve goes."""
    height, place = np.asarray(recall, np.float64), 1 - np.asarray(precision, np.float64)
    return float(np.sum(np.diff(place) * (height[1:] + height[:-1]) / 2))


def score_pair(first: NDArray[Any], second: NDArray[Any]) -> tuple[dict[str, float], Curve]:
    scores, correct = match_scores(first, second)
    curves = {name: curve(scores[name], correct, name == "difference") for name in SCORES}
    measures: dict[str, float] = {name: area(*curves[name]) for name in SCORES}
    ranked = scores["distance"], correct, len(correct)
    measures["ap_trapezoid"] = average_precision_trapezoid(*ranked)
    measures["ap_hits"] = average_precision_at_hits(*ranked)
    return measures, curves[PLOTTED]


def compare(
    contestants: Mapping[str, Describe], w1bs: W1BS, progress: Steps = silent
) -> dict[str, Any]:
    """The body of a results file; descriptors get keys like ``SUBSET/1/NAME``.

    "rows" per pair, "means" per subset and in total with 95 % intervals, "curves" of the plotted
    score, averaged like the areas.
    """
    body: dict[str, list[dict[str, Any]]] = {"rows": [], "means": [], "curves": []}
    steps, total = count(1), len(contestants) * len(w1bs.pairs)
    for label, describe in contestants.items():
        rows: list[dict[str, Any]] = []
        curves: dict[str, list[Curve]] = {}
        for pair in w1bs.pairs:
            if pair.count < 2:
                raise HardnetError(
                    f"{pair.first}: matching needs at least 2 patches, found {pair.count}"
                )
            first = describe(f"{pair.subset}/1/{pair.name}", partial(pair.patches, 1))
            second = describe(f"{pair.subset}/2/{pair.name}", partial(pair.patches, 2))
            measures, plotted = score_pair(first, second)
            where = {"descriptor": label, "subset": pair.subset, "pair": pair.name}
            rows.append(where | {"patches": pair.count} | measures)
            curves.setdefault(pair.subset, []).append(plotted)
            progress(next(steps), total)
        body["rows"] += rows
        body["means"] += _means(rows, label)
        body["curves"] += _curves(curves, label)
    counts = {"pairs": len(w1bs.pairs), "patches": len(w1bs)}
    return {"kind": "w1bs", "set": {"name": w1bs.name} | counts} | body


def _finite(descriptors: NDArray[Any]) -> NDArray[Any]:
    """A constant patch may be described by NaN (0 / 0); it matches as the zero vector."""
    if descriptors.dtype == np.uint8:
        return descriptors
    return np.where(np.isfinite(descriptors), descriptors, np.zeros_like(descriptors))


def mean_of_subsets(subsets: Sequence[ArrayLike]) -> tuple[float, Interval]:
    """Mean over subsets of the mean over the (P,) scores of each, and its 95 % interval.

    The bootstrap draws pairs within their subset; (None, None) if no subset has two.
    """
    scores = [np.asarray(subset, np.float64) for subset in subsets]
    value = float(np.mean([each.mean() for each in scores]))
    if max(len(each) for each in scores) < 2:
        return value, (None, None)
    drawn = [
        multiplicities(len(each), MEAN_RESAMPLES, seed) @ each / len(each)
        for seed, each in enumerate(scores)
    ]
    return value, interval(np.mean(drawn, axis=0))


def _means(rows: list[dict[str, Any]], label: str) -> list[dict[str, Any]]:
    means = []
    for measure in MEASURES:
        values: dict[str, list[float]] = {}
        for row in rows:
            values.setdefault(row["subset"], []).append(row[measure])
        parts = {subset: [each] for subset, each in values.items()} | {TOTAL: [*values.values()]}
        for subset, part in parts.items():
            value, (low, high) = mean_of_subsets(part)
            where = {"descriptor": label, "subset": subset, "score": measure}
            means.append(where | {"value": value, "low": low, "high": high})
    return means


def _curves(curves: Mapping[str, list[Curve]], label: str) -> list[dict[str, Any]]:
    means = {subset: np.mean(each, axis=0) for subset, each in curves.items()}  # (2, 100) each
    means[TOTAL] = np.mean([*means.values()], axis=0)
    return [
        {
            "descriptor": label,
            "subset": subset,
            "score": PLOTTED,
            "recall": np.round(recall, 6).tolist(),
            "precision": np.round(precision, 6).tolist(),
        }
        for subset, (recall, precision) in means.items()
    ]
