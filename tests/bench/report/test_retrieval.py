"""Tables and figure of retrieval, from MADE-UP numbers."""

import pytest

from hardnet.bench.report import figures, tables
from hardnet.bench.report.retrieval import BOW, HQE

MODES = {"bow": 0.9, "bow+sv": 0.92, "bow+qe": 0.94, "hqe+sv:sa": 0.95, "hqe+sv": 0.96, "asmk": 0.9}
LEVELS = {"hardnet": 0.0, "rootsift": -0.05}


def made_up(name="UKBench", protocols=("others",), counts=(0, 100), ns=True):
    rows = []
    for descriptor, level in LEVELS.items():
        for count in counts:
            for mode, value in MODES.items():
                score = value + level - count / 10000
                row = {"descriptor": descriptor, "mode": mode, "distractors": count}
                row["map"] = {p: score - 0.1 * i for i, p in enumerate(protocols)}
                row["map_interval"] = {p: [score - 0.01, score + 0.01] for p in protocols}
                row |= {"ns": 4 * score if ns else None, "milliseconds": 1.26, "features": 400.0}
                rows.append(row)
    settings = {
        "extraction": {"detector": "dog"},
        "longer_side": 640,
        "words": 8192,
        "vocabulary_photos": 240,
    }
    return {
        "kind": "retrieval",
        "collection": {"name": name, "images": 300, "protocols": list(protocols)},
        "queries": [str(number) for number in range(300)],
        "rows": rows,
        "provenance": {"settings": settings},
    }


def by_title(results):
    return {table.title: table for table in tables(results)}


def test_scores_by_descriptor_and_mode(values):
    summary, ns, *_ = tables(made_up())
    assert summary.title == "UKBench, 300 photos, 300 queries: mAP (%)"
    assert summary.headings == ["descriptor", *MODES]
    assert values(summary, "bow+qe") == pytest.approx({"hardnet": 94, "rootsift": 89})
    assert summary.rows[0][1] == "**90.00**"
    assert "photos resized to 640 pixels, 8192 words trained on 240 other photos" in summary.note
    assert ns.title.endswith("N-S (of 4)")
    assert values(ns, "bow") == pytest.approx({"hardnet": 3.6, "rootsift": 3.4})


def test_intervals_times_and_distractors(values):
    found = by_title(made_up())
    assert found["95% intervals of mAP (%)"].rows[0][1] == "[89.00, 91.00]"
    assert found["Milliseconds per query"].rows[0][1] == "1.3"
    curve = found["mAP (%) against the number of distractors"]
    assert curve.headings == ["mode: descriptor", "0", "100"]
    assert curve.rows[:2] == [
        ["bow: hardnet", "**90.00**", "**89.00**"],
        ["bow: rootsift", "85.00", "84.00"],
    ]
    assert curve.rows[2][1] == "**92.00**"  # the best of its mode
    assert not any("number of distractors" in title for title in by_title(made_up(counts=(0,))))


def test_protocols_have_tables_of_their_own(values):
    found = by_title(made_up("roxford5k", ("easy", "medium", "hard"), (0,), ns=False))
    titles = [title for title in found if title.startswith("roxford5k")]
    assert [title.split(", ")[-1] for title in titles] == [
        f"mAP, {p} (%)".split(", ")[-1] for p in ("easy", "medium", "hard")
    ]
    assert values(found[titles[2]], "bow")["hardnet"] == pytest.approx(70)


def test_the_paper_stands_beside_ours_and_what_we_lack_is_empty():
    bow, hqe = tables(made_up())[-2:]
    assert bow.rows[5] == ["HardNet++ (paper)", "60.8", "69.6", "84.5", "65.0", "70.3", "79.1"]
    assert bow.rows[6] == ["hardnet (ours)", *"------"]
    assert "our columns for Oxford5k and Paris6k are empty" in bow.note
    assert hqe.rows[3:5] == [
        ["HardNet++-HQE (paper)", "65k", "86.8", "88.3", "82.8", "84.9"],
        ["hardnet-HQE (ours)", "8192", *"----"],
    ]
    bow, hqe = tables(made_up("Paris6k", ("classic",), (0,), ns=False))[-2:]
    assert bow.rows[6] == ["hardnet (ours)", "-", "-", "-", "90.0", "92.0", "94.0"]
    assert hqe.rows[4] == ["hardnet-HQE (ours)", "8192", "-", "-", "95.0", "96.0"]
    assert "our columns for Oxford5k are empty" in bow.note


def test_numbers_of_the_paper_are_those_it_averages():
    # Section 5.3: average mAP 69.5 of HardNet+, 69.1 of L2Net+, 66.0 of RootSIFT.
    for name, mean in (("HardNet+", 69.5), ("L2Net+", 69.1), ("RootSIFT", 66.0)):
        assert sum(BOW[name]) / 6 == pytest.approx(mean, abs=0.051)
    assert HQE["RootSIFT-HQE"] == ("65k", 85.3, 88.0, 81.3, 82.8)


def test_the_curve_and_one_point_is_none(drawn):
    assert {"number of distractors", "mAP (%)", "asmk", "100"} <= drawn(made_up())
    assert figures(made_up(counts=(0,))) == []
