"""From rankings to numbers: mean average precision per protocol and N-S, each with an interval.

Average precision has several definitions. That of Oxford buildings is the area under the
precision-recall curve by trapezoids. The usual one (scikit-learn's, mean of the precision at each
positive) gives other numbers for the same ranking, so the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hardnet.bench.metrics import mean_interval
from hardnet.bench.retrieval.collections import Question

DIGITS = 4


def judge(questions: Sequence[Question], rankings: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The scores of rankings.

    Args:
        questions: all queries.
        rankings: for each, names of images, best first; those that had nothing in common with the
            query may be left out, and are then not found.

    Returns:
        ``map`` and ``map_interval`` by protocol, ``ns`` and ``ns_interval`` (None where N-S is not
        defined), ``ap`` by protocol and ``ns_each`` per query; queries without positives are None
        there and do not count in the means. Intervals draw whole groups of queries.
    """
    scores: dict[str, Any] = {"map": {}, "map_interval": {}, "ap": {}}
    groups = np.array([question.group for question in questions])
    for protocol in questions[0].judgements:
        ap = np.array(
            [
                average_precision(
                    ranking,
                    question.judgements[protocol].positives,
                    question.judgements[protocol].junk,
                )
                for question, ranking in zip(questions, rankings, strict=True)
            ]
        )
        known = ~np.isnan(ap)
        scores["map"][protocol] = mean_ap(ap)
        scores["map_interval"][protocol] = list(mean_interval(ap[known], groups[known]))
        scores["ap"][protocol] = [
            round(value, DIGITS) if good else None
            for value, good in zip(ap.tolist(), known, strict=True)
        ]
    if not all(question.same for question in questions):
        return scores | {"ns": None, "ns_interval": [None, None], "ns_each": None}
    ns = [
        ns_score(ranking, question.same)
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    return scores | {
        "ns": float(np.mean(ns)),
        "ns_interval": list(mean_interval(ns, groups)),
        "ns_each": ns,
    }


def trapezoid_ap(positions: ArrayLike, positives: int) -> float:
    """Area under the precision-recall curve, by trapezoids.

    Args:
        positions: (F,) places of the positives that were found, from 0, ascending, in a ranking
            without junk.
        positives: how many there are to be found.

    Returns:
        0 to 1; NaN if there is nothing to be found.
    """
    if positives < 1:
        return float("nan")
    rank = np.asarray(positions, np.float64)
    found = np.arange(len(rank))
    # Before the first place of all, precision is 1.
    before = np.where(rank == 0, 1.0, found / np.maximum(rank, 1))
    after = (found + 1) / (rank + 1)
    return float(((before + after) / 2).sum() / positives)


def average_precision(
    ranking: Iterable[Hashable], positives: Collection[Hashable], junk: Collection[Hashable] = ()
) -> float:
    """The average precision of one query.

    Args:
        ranking: the images, best first; it may end early: what is not in it is not found.
        positives: the images to be found.
        junk: images that neither help nor harm: the ranking counts as if they were not there.

    Returns:
        0 to 1; NaN if there are no positives.
    """
    wanted, ignored = set(positives), set(junk)
    counted = (image for image in ranking if image not in ignored)
    positions = [place for place, image in enumerate(counted) if image in wanted]
    return trapezoid_ap(positions, len(wanted))


def mean_ap(values: ArrayLike) -> float | None:
    """Mean over queries; those without positives (NaN) are left out, as by the revisited protocol.

    Returns:
        None if no query has positives.
    """
    ap = np.asarray(values, np.float64)
    known = ap[~np.isnan(ap)]
    return float(known.mean()) if len(known) else None


def ns_score(ranking: Sequence[Hashable], same: Collection[Hashable]) -> int:
    """UKBench: how many of the first four images show the query's object, itself included.

    Args:
        ranking: the images, best first, the query among them.
        same: the images of the object, the query included: four in UKBench.
    """
    return len(set(ranking[:4]) & set(same))
