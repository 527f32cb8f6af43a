"""Results files in, reports out; figures of made-up results."""

from __future__ import annotations

import json
import re
import sys

import cv2
import pytest

from hardnet.bench.report import figure, figures, read_results, tables, write_report
from hardnet.bench.report.style import line_style, log_ticks, round_ticks
from hardnet.errors import HardnetError, MissingExtraError

BROUGHT = {"kind": "speed", "tables": [{"title": "T", "columns": ["a"], "rows": [["1"], ["2"]]}]}


def test_pairs_say_where_the_baseline_wins(pairs_results):
    summary, correct = tables(pairs_results)
    assert summary.rows[0] == ["net", "1 / 2", "200", "85", "87", "83", "1.25x"]
    assert correct.rows == [["a", "**80**", "60"], ["b", "5", "**8**"]]
    only = [row for row in pairs_results["rows"] if row["descriptor"] == "net"]
    alone = tables(pairs_results | {"rows": only})[0]
    assert "correct / rootsift" not in alone.headings


def test_a_file_may_bring_its_own_tables(tmp_path):
    path = tmp_path / "speed.json"
    path.write_text(json.dumps(BROUGHT))
    [table] = tables(read_results(path))
    assert (table.title, table.headings, table.rows) == ("T", ["a"], [["1"], ["2"]])
    assert figures(BROUGHT) == []


@pytest.mark.parametrize("text", ["no json", json.dumps({"kind": "speed"}), json.dumps([1])])
def test_other_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(HardnetError, match=r"other\.json"):
        read_results(path)


def test_figures_have_their_words(
    drawn, hpatches_results, brown_results, w1bs_results, pairs_results
):
    brown = drawn(brown_results)
    assert {"liberty", "notredame", "FPR95 [%]", "1.42", "hardnet[photos]"} <= brown
    assert "8.20" not in brown  # tfeat-liberty on liberty, which it was trained on
    assert {"A (appearance)", "mAP, mean AUC", "0.062, 0.062  hardnet"} <= drawn(w1bs_results)
    assert {"correct matches", "net", "a", "b"} <= drawn(pairs_results)
    distractors = drawn(hpatches_results, "distractors")
    assert {"number of distractors", "retrieval mAP", "100", "1k"} <= distractors
    tasks = drawn(hpatches_results)
    assert {"EASY", "DiffSeq", "Viewpt", "Patch verification, mAP [%]", "60.00"} <= tasks


def test_what_was_not_run_has_no_panel_and_needs_no_interval(hpatches_results, drawn):
    hpatches_results["verification"] = hpatches_results["retrieval"] = []
    for row in hpatches_results["means"]:
        row["low"] = row["high"] = None
    assert figures(hpatches_results) == ["tasks"]
    words = drawn(hpatches_results)
    assert "Image matching, mAP [%]" in words
    assert "Patch verification, mAP [%]" not in words


def test_a_rate_of_zero_is_drawn(brown_results, drawn):
    for row in brown_results["rows"]:
        row["fpr95"] = row["low"] = row["high"] = 0.0
    assert "0.00" in drawn(brown_results)


def test_unknown_figures_and_formats_are_one_line(hpatches_results, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    with pytest.raises(HardnetError, match="tasks, distractors"):
        figure(hpatches_results, tmp_path / "a.png", "pie")
    with pytest.raises(HardnetError, match=r"a\.gif"):
        figure(hpatches_results, tmp_path / "a.gif")
    with pytest.raises(HardnetError, match="no figure of the speed"):
        figure(BROUGHT, tmp_path / "a.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"hardnet\[report\]"):
        figure(hpatches_results, tmp_path / "a.png")


def test_lines_differ_in_style_and_not_only_in_colour():
    assert len({tuple(line_style(i).values()) for i in range(24)}) == 24


def test_ticks():
    assert round_ticks(91.0) == [0, 20, 40, 60, 80, 100]
    assert round_ticks(3.2) == [0, 1, 2, 3, 4]
    assert log_ticks(1.4, 90) == [1, 3, 10, 30, 100]
    assert log_ticks(0.03, 0.03) == [0.03, 0.1]
    assert log_ticks(0.02, 40) == [0.01, 0.1, 1, 10, 100]


def test_a_report_has_everything_in_one_folder_and_repeats_to_the_byte(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    made = {"command": "hardnet bench brown liberty", "revision": "abc", "date": "today"}
    made["versions"] = {"hardnet": "7.0"}
    paths = write_report(brown_results | {"provenance": made}, tmp_path / "a", "mine")
    names = ["mine.md", "mine.tex", "mine-rates.png", "mine-rates.svg"]
    assert [path.name for path in paths] == names
    assert cv2.imread(str(paths[2])).std() > 5
    markdown, latex = (path.read_text() for path in paths[:2])
    assert "![rates](mine-rates.png)" in markdown
    assert markdown.endswith("liberty`, hardnet 7.0 at revision abc, today.\n")
    labels = re.findall(r"\\label\{(.+?)\}", latex)
    assert len(labels) == len(set(labels)) == markdown.count("| --- |") == 2
    again = write_report(brown_results, tmp_path / "b", formats=(".svg",))
    assert again[0].name == "brown.md"
    assert again[-1].read_bytes() == paths[-1].read_bytes()


def test_a_folder_that_cannot_be_written_is_one_line(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(HardnetError, match="cannot write the report"):
        write_report(brown_results, tmp_path / "file")
