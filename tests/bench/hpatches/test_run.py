from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.bench.hpatches.lists import Tasks, draw_pairs, draw_retrieval
from hardnet.bench.hpatches.run import TaskSettings, combine, evaluate, stored_scores
from hardnet.bench.metrics import mean_interval
from hardnet.errors import HardnetError

SETTINGS = TaskSettings(mean_resamples=50, pooled_resamples=20)


@pytest.fixture
def result(lookup, tasks):
    return evaluate("mine", lookup, tasks, SETTINGS)


def mean_of(result, **wanted):
    (row,) = [r for r in result["means"] if wanted.items() <= r.items()]
    return row


def test_result_has_what_the_file_needs(result, tasks):
    assert json.loads(json.dumps(result)) == result
    assert result["set"] == {"split": "small", "sequences": 4, "patches": sum(tasks.counts)}
    assert result["lists"]["pairs"] == 400
    assert result["paper_convention"]["retrieval"] == "trapezoid"
    assert {tuple(r) for r in result["verification"]} == {
        ("descriptor", "noise", "negatives", "auc", "ap_trapezoid", "ap_hits", "low", "high")
    }
    where = ("descriptor", "sequence", "group", "noise")
    assert {tuple(r) for r in result["matching"]} == {
        (*where, "ap_trapezoid", "ap_hits", "success", "ap_ratio")
    }
    assert {tuple(r) for r in result["retrieval"]} == {
        ("descriptor", "noise", "distractors", "ap_trapezoid", "ap_hits", "low", "high")
    }
    assert {tuple(r) for r in result["means"]} == {
        ("descriptor", "task", "noise", "group", "convention", "value", "low", "high")
    }
    keys = [(r["task"], r["noise"], r["group"], r["convention"]) for r in result["means"]]
    assert len(keys) == len(set(keys))


def test_intervals_surround_the_scores(result):
    for row in (*result["verification"], *result["retrieval"]):
        assert row["low"] <= row["ap_hits"] + 0.1
        assert row["high"] >= row["ap_hits"] - 0.1
        assert row["low"] < row["high"]


def test_means_are_the_means_of_the_rows(result):
    rows = result["verification"]
    for group, chosen in (("intra", rows[::2]), ("inter", rows[1::2]), ("all", rows)):
        for task, key, convention in (
            ("verification", "ap_hits", "hits"),
            ("verification", "ap_trapezoid", "trapezoid"),
            ("verification-balanced", "auc", "auc"),
        ):
            row = mean_of(result, task=task, noise="all", group=group, convention=convention)
            assert row["value"] == pytest.approx(np.mean([r[key] for r in chosen]))
    hard = [r for r in result["matching"] if r["noise"] == "hard" and r["group"] == "viewpoint"]
    row = mean_of(result, task="matching", noise="hard", group="viewpoint", convention="hits")
    values = [r["ap_hits"] for r in hard]
    assert len(values) == 2
    assert row["value"] == pytest.approx(np.mean(values))
    names = [r["sequence"] for r in hard]
    assert (row["low"], row["high"]) == mean_interval(values, names, 50)
    whole = [r for r in result["retrieval"] if r["distractors"] == result["lists"]["distractors"]]
    row = mean_of(result, task="retrieval", noise="all", group="all", convention="trapezoid")
    assert len(whole) == 3
    assert row["value"] == pytest.approx(np.mean([r["ap_trapezoid"] for r in whole]))


def test_the_same_seed_gives_the_same_numbers(lookup, tasks, result):
    assert evaluate("mine", lookup, tasks, SETTINGS) == result
    other = evaluate("mine", lookup, tasks, TaskSettings(("matching",), 50, 20, seed=1))
    assert other["matching"] == result["matching"]
    assert other["means"] != [r for r in result["means"] if r["task"] == "matching"]
    assert other["retrieval"] == []


def test_progress_reaches_the_end_of_each_task(perfect, tasks):
    seen = {}

    def progress(what, done, total):
        assert done > seen.get(what, (0, 0))[0]
        seen[what] = (done, total)

    evaluate("mine", perfect, tasks, SETTINGS, progress)
    assert list(seen) == ["verification", "matching", "retrieval"]
    assert all(done == total for done, total in seen.values())


def test_several_descriptors_in_one_file(perfect, blind, tasks):
    a, b = (evaluate(n, d, tasks, SETTINGS) for n, d in (("good", perfect), ("blind", blind)))
    both = combine([a, b])
    for key in ("verification", "matching", "retrieval", "means"):
        assert both[key] == a[key] + b[key]
    assert both["set"] == a["set"]
    assert a["means"] == combine([a])["means"]
    with pytest.raises(ValueError, match="different"):
        combine([a, b | {"lists": {}}])
    with pytest.raises(ValueError, match="unknown task"):
        evaluate("mine", perfect, tasks, TaskSettings(("stereo",)))


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


def test_the_same_question_is_answered_once(tmp_path: Path, small: Tasks) -> None:
    compute = Counter()
    for _ in range(3):
        assert stored_scores(tmp_path, "net", small, TaskSettings(), compute) == {"score": 1 / 3}
    assert compute.calls == 1


def test_other_descriptors_lists_or_settings_are_another_question(
    tmp_path: Path, small: Tasks
) -> None:
    compute = Counter()
    other = small.pairs.inter.copy()
    other[3, 5] += np.int32(1 if other[3, 5] == 0 else -1)
    for identity, lists, settings in [
        ("net", small, TaskSettings()),
        ("other net", small, TaskSettings()),
        ("net", small, TaskSettings(tasks=["matching"])),
        ("net", replace(small, pairs=replace(small.pairs, inter=other)), TaskSettings()),
        ("net", replace(small, names=("v_b", "v_a")), TaskSettings()),
    ]:
        stored_scores(tmp_path, identity, lists, settings, compute)
    assert compute.calls == 5


def test_a_broken_file_is_computed_again(tmp_path: Path, small: Tasks) -> None:
    compute = Counter()
    stored_scores(tmp_path, "net", small, TaskSettings(), compute)
    (path,) = (tmp_path / "scores").iterdir()
    path.write_text('{"score": 0.')
    assert stored_scores(tmp_path, "net", small, TaskSettings(), compute) == {"score": 2 / 3}
    assert stored_scores(tmp_path, "net", small, TaskSettings(), compute) == {"score": 2 / 3}


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, small: Tasks) -> None:
    (tmp_path / "scores").write_text("a file in the way")
    with pytest.raises(HardnetError, match="--store"):
        stored_scores(tmp_path, "net", small, TaskSettings(), Counter())
