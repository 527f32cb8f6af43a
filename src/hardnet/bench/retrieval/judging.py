"""From rankings to numbers: mean average precision per protocol and N-S, each with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hardnet.bench.bootstrap import mean_interval
from hardnet.bench.retrieval.average_precision import average_precision, mean_ap, ns_score
from hardnet.bench.retrieval.collection import Question

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
