"""Tables of HPatches and W1BS, from made-up numbers."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from hardnet.bench.hpatches import run
from hardnet.bench.hpatches.lists import Tasks, draw_pairs, draw_retrieval
from hardnet.bench.hpatches.protocol import PAPER_CONVENTION
from hardnet.bench.report import tables
from hardnet.bench.report.hpatches import TASKS, headline, mean


def titled(results, start):
    return [table for table in tables(results) if table.title.startswith(start)]


def test_summary(hpatches_results):
    results = hpatches_results
    results["means"] = [row for row in results["means"] if row["task"] != "retrieval"]
    summary = tables(results)[0]
    assert summary.rows == [
        ["net", *["**0.600** [0.400, 0.700]"] * 2, "-", "1.50x"],
        ["rootsift", *["0.400 [0.400, 0.700]"] * 2, "-", "1.00x"],
    ]
    assert "as in the paper" in summary.note
    assert summary.title == "HPatches: made-up, split full, 3 sequences, 400 reference patches"


def test_what_the_benchmark_returns_is_understood():
    """Random descriptors of tiny sequences through the real tasks."""
    counts = {"v_wall": 23, "i_night": 14, "i_dawn": 31}
    rng = np.random.default_rng(0)
    points = {name: rng.normal(size=(n, 8)) for name, n in counts.items()}

    def lookup(sequence, tag):
        noise = np.random.default_rng(zlib.crc32(f"{sequence}{tag}".encode()))
        return (points[sequence] + noise.normal(size=points[sequence].shape)).astype(np.float32)

    tasks = Tasks(
        split="small",
        names=tuple(counts),
        counts=tuple(counts.values()),
        pairs=draw_pairs(tuple(counts.values()), 200),
        retrieval=draw_retrieval(tuple(counts.values())),
        origin={"pairs": "drawn", "retrieval": "drawn"},
    )
    both = [run.evaluate(name, lookup, tasks) for name in ("net", "rootsift")]
    results = {"kind": "hpatches"} | run.combine(both)
    found = tables(results)
    assert [len(titled(results, f"HPatches {t}")) for t in TASKS][:2] == [3, 3]
    assert all(cell != "-" for row in found[0].rows for cell in row)
    most = {"distractors": max(row["distractors"] for row in results["retrieval"])}
    for task, convention in PAPER_CONVENTION.items():
        where = most if task == "retrieval" else {}
        of_rows = mean(results, task, f"ap_{convention}", **where)
        assert headline(results, task)["net"]["value"] == pytest.approx(of_rows["net"])


def test_verification_in_both_conventions_and_balanced(hpatches_results, values):
    hits, trapezoid, balanced = titled(hpatches_results, "HPatches verification")
    assert "as in the paper" in hits.title
    assert "as in the paper" not in trapezoid.title
    for kind, easy in (("different sequence", 0.8), ("same sequence", 0.6)):
        found = [values(hits, noise, kind)["net"] for noise in ("easy", "hard", "tough")]
        assert found == pytest.approx([easy, easy - 0.1, easy - 0.2])
    assert values(hits, "mean") == pytest.approx({"net": 0.6, "rootsift": 0.4})
    assert values(trapezoid, "easy", "different sequence")["rootsift"] == pytest.approx(0.7)
    assert values(balanced, "easy", "different sequence")["rootsift"] == pytest.approx(0.75)


def test_matching_by_kind_per_sequence_and_the_share_of_right_answers(hpatches_results, values):
    hits, trapezoid, per_sequence = titled(hpatches_results, "HPatches matching")
    # Viewpoint, easy: (0.8 + 0.7) / 2 - 0.1; the same on i_one, so both are bold there.
    assert values(hits, "easy", "viewpoint")["net"] == pytest.approx(0.65)
    assert hits.rows[0][4] == hits.rows[1][4] == "**0.400**"
    assert values(hits, "mean")["rootsift"] == pytest.approx(0.3667, abs=1e-4)
    assert values(hits, "correct")["rootsift"] == pytest.approx(0.7)
    assert values(trapezoid, "easy", "viewpoint")["net"] == pytest.approx(0.75)
    net = values(per_sequence, "net")
    assert list(net)[:4] == ["v_one", "v_one, easy", "v_one, hard", "v_one, tough"]
    assert [net[n] for n in ("v_one", "v_two", "i_one", "v_one, easy")] == pytest.approx(
        [0.6, 0.5, 0.4, 0.7]
    )
    assert per_sequence.rows[0] == ["v_one", "**0.600**", "0.400"]


def test_retrieval_among_all_distractors(hpatches_results):
    (retrieval,) = titled(hpatches_results, "HPatches retrieval")
    assert "1000 distractors" in retrieval.title
    rootsift = [column.values[1] for column in retrieval.columns[1:]]
    assert rootsift == pytest.approx([0.3, 0.2, 0.1, 0.2, 0.4, 0.3, 0.2, 0.3])


def test_a_task_that_was_not_run_is_a_dash_and_has_no_table(hpatches_results):
    results = hpatches_results
    results["retrieval"] = [r for r in results["retrieval"] if r["descriptor"] == "net"]
    assert titled(results, "HPatches retrieval")[0].rows[1][1:] == ["-"] * 8
    results["retrieval"], results["verification"] = [], []
    _, *rest = tables(results)
    assert all(table.title.startswith("HPatches matching") for table in rest)


def test_w1bs_tables(w1bs_results, values):
    summary, *found = tables(w1bs_results)
    assert summary.title == "W1BS: made-up, 2 pairs"
    # Made up: 0.52 times 0.12 in A, times 0.09 in total, +- 0.005.
    assert summary.rows[0] == [
        "hardnet",
        *["**0.047** [0.042, 0.052]", "0.047 [0.042, 0.052]"],
        "1.44x",
    ]
    assert len(found) == 6
    assert found[0].title.endswith("(HPatches matching task, hits)")
    assert found[0].headings[1:-1] == ["A", "map2photo", "Total"]
    assert values(found[0], "A")["hardnet"] == pytest.approx(0.0624)
    # The largest area is not the best.
    assert found[1].title.endswith("ranked by distance ratio")
    assert not any("**" in cell for row in found[1].rows for cell in row)
    assert values(found[-1], "hardnet")["map2photo/one"] == pytest.approx(0.0546)
