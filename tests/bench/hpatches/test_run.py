from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.bench.hpatches.lists import Tasks, draw_pairs, draw_retrieval
from hardnet.bench.hpatches.run import TASKS, combine, evaluate, stored_scores
from hardnet.bench.metrics import mean_interval


@pytest.fixture
def result(lookup, tasks):
    return evaluate("mine", lookup, tasks)


def mean_of(result, **wanted):
    (row,) = [r for r in result["means"] if wanted.items() <= r.items()]
    return row


def test_result_has_what_the_file_needs(result, tasks):
    assert json.loads(json.dumps(result)) == result
    assert result["set"] == {"split": "small", "sequences": 4, "patches": sum(tasks.counts)}
    assert result["lists"]["pairs"] == 400
    assert result["paper_convention"]["retrieval"] == "trapezoid"
    assert {tuple(r) for r in result["verification"]} == {
        ("descriptor", "noise", "negatives", "auc", "ap_trapezoid", "ap_hits")
    }
    where = ("descriptor", "sequence", "group", "noise")
    assert {tuple(r) for r in result["matching"]} == {
        (*where, "ap_trapezoid", "ap_hits", "success")
    }
    assert {tuple(r) for r in result["retrieval"]} == {
        ("descriptor", "noise", "distractors", "ap_trapezoid", "ap_hits")
    }
    assert {tuple(r) for r in result["means"]} == {
        ("descriptor", "task", "noise", "group", "convention", "value", "low", "high")
    }
    assert [r["task"] for r in result["means"]] == list(TASKS)


def test_intervals_surround_the_scores(result):
    for row in result["means"]:
        assert row["low"] < row["value"] < row["high"]


def test_means_are_the_means_of_the_rows(result):
    last = [r for r in result["retrieval"] if r["distractors"] == result["lists"]["distractors"]]
    assert len(last) == 3
    for task, rows, key in (
        ("verification", result["verification"], "ap_hits"),
        ("matching", result["matching"], "ap_hits"),
        ("retrieval", last, "ap_trapezoid"),
    ):
        values = [row[key] for row in rows]
        assert mean_of(result, task=task)["value"] == pytest.approx(np.mean(values))
    names = [row["sequence"] for row in result["matching"]]
    row = mean_of(result, task="matching")
    values = [r["ap_hits"] for r in result["matching"]]
    assert (row["low"], row["high"]) == mean_interval(values, names)


def test_the_same_numbers_again_and_only_the_tasks_that_were_chosen(lookup, tasks, result):
    assert evaluate("mine", lookup, tasks) == result
    other = evaluate("mine", lookup, tasks, ["matching"])
    assert other["matching"] == result["matching"]
    assert other["retrieval"] == []


def test_progress_reaches_the_end_of_each_task(perfect, tasks):
    seen = {}

    def progress(what, done, total):
        assert done > seen.get(what, (0, 0))[0]
        seen[what] = (done, total)

    evaluate("mine", perfect, tasks, TASKS, progress)
    assert list(seen) == ["verification", "matching", "retrieval"]
    assert all(done == total for done, total in seen.values())


def test_several_descriptors_in_one_file(perfect, blind, tasks):
    a, b = (evaluate(n, d, tasks) for n, d in (("good", perfect), ("blind", blind)))
    both = combine([a, b])
    for key in ("verification", "matching", "retrieval", "means"):
        assert both[key] == a[key] + b[key]
    assert both["set"] == a["set"]
    assert a["means"] == combine([a])["means"]


# Scores are used again only for the same descriptors, lists and settings.


@pytest.fixture
def small() -> Tasks:
    counts = (12, 9)
    lists = draw_pairs(counts, 20), draw_retrieval(counts)
    return Tasks("full", ("v_a", "v_b"), counts, *lists, {"pairs": "drawn", "retrieval": "drawn"})


class Counter:
    """Gives other scores at every call, so that a stored answer is recognised."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, Any]:
        self.calls += 1
        return {"score": self.calls / 3}


def test_other_descriptors_lists_or_settings_are_another_question(
    tmp_path: Path, small: Tasks
) -> None:
    compute = Counter()
    other = small.pairs.inter.copy()
    other[3, 5] += np.int32(1 if other[3, 5] == 0 else -1)
    for identity, lists, chosen in [
        ("net", small, TASKS),
        ("net", small, TASKS),
        ("other net", small, TASKS),
        ("net", small, ["matching"]),
        ("net", replace(small, pairs=small.pairs._replace(inter=other)), TASKS),
        ("net", replace(small, names=("v_b", "v_a")), TASKS),
    ]:
        stored_scores(tmp_path, identity, lists, chosen, compute)
    assert compute.calls == 5
