"""Figures of made-up results: both formats, the right words, the same bytes again."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import cv2
import pytest

from hardnet.bench.report import figure, figures, write_report
from hardnet.bench.report.canvas import line_style, log_ticks, round_ticks
from hardnet.errors import HardnetError, MissingExtraError

WORDS = {
    ("hpatches", "tasks"): [
        *("EASY", "HARD", "TOUGH", "DiffSeq", "SameSeq", "Viewpt", "Illum"),
        *("Patch verification, mAP [%]", "Image matching, mAP [%]", "Patch retrieval, mAP [%]"),
        *("77.40", "tfeat-liberty.params"),
    ],
    ("hpatches", "distractors"): ["number of distractors", "retrieval mAP", "500", "20k", "vgg"],
    ("brown", "rates"): [
        "liberty",
        "notredame",
        "yosemite",
        "FPR95 [%]",
        "1.42",
        "hardnet[photos]",
    ],
    ("w1bs", "curves"): [
        *("A (appearance)", "map2photo (map to photo)", "Total", "1 - precision", "recall"),
        *("mAP, mean AUC", "0.062, 0.062  hardnet"),
    ],
}


@pytest.fixture
def results(request, hpatches_results, brown_results, w1bs_results):
    kinds = {"hpatches": hpatches_results, "brown": brown_results, "w1bs": w1bs_results}
    return kinds[request.param]


def words(path: Path) -> set[str]:
    """The pieces of text in an SVG."""
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text()))


@pytest.mark.parametrize(("results", "which"), WORDS, indirect=["results"])
def test_both_formats(results, which, tmp_path):
    pytest.importorskip("matplotlib")
    figure(results, tmp_path / "new" / "a.png", which)
    figure(results, tmp_path / "a.svg", which)
    picture = cv2.imread(str(tmp_path / "new" / "a.png"))
    assert picture.std() > 5
    assert set(WORDS[results["kind"], which]) <= words(tmp_path / "a.svg")


def test_the_same_numbers_give_the_same_bytes(hpatches_results, tmp_path):
    pytest.importorskip("matplotlib")
    for name in ("a.svg", "b.svg"):
        figure(hpatches_results, tmp_path / name, "distractors")
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_a_task_that_was_not_run_has_no_panel(hpatches_results, tmp_path):
    pytest.importorskip("matplotlib")
    hpatches_results["verification"] = hpatches_results["retrieval"] = []
    assert figures(hpatches_results) == ["tasks"]
    figure(hpatches_results, tmp_path / "a.svg")
    found = words(tmp_path / "a.svg")
    assert "Image matching, mAP [%]" in found
    assert "Patch verification, mAP [%]" not in found


def test_results_without_intervals_are_drawn(hpatches_results, tmp_path):
    pytest.importorskip("matplotlib")
    for row in hpatches_results["means"]:
        row["low"] = row["high"] = None
    figure(hpatches_results, tmp_path / "a.png")
    assert cv2.imread(str(tmp_path / "a.png")).std() > 5


def test_a_descriptor_is_not_drawn_on_its_training_set(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    figure(brown_results, tmp_path / "a.svg")
    assert "8.20" not in words(tmp_path / "a.svg")  # tfeat-liberty on liberty
    assert "9.84" in words(tmp_path / "a.svg")


def test_a_rate_of_zero_is_drawn(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    for row in brown_results["rows"]:
        row["fpr95"] = row["low"] = row["high"] = 0.0
    figure(brown_results, tmp_path / "a.svg")
    assert "0.00" in words(tmp_path / "a.svg")


def test_unknown_figures_and_formats_are_one_line(hpatches_results, tmp_path):
    pytest.importorskip("matplotlib")
    with pytest.raises(HardnetError, match="tasks, distractors"):
        figure(hpatches_results, tmp_path / "a.png", "pie")
    with pytest.raises(HardnetError, match=r"a\.gif"):
        figure(hpatches_results, tmp_path / "a.gif")
    with pytest.raises(HardnetError, match="no figure of the describe"):
        figure({"kind": "describe"}, tmp_path / "a.png")


def test_without_matplotlib_the_extra_is_named(hpatches_results, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"hardnet\[report\]"):
        figure(hpatches_results, tmp_path / "a.png")


def test_the_first_lines_differ_in_style_and_not_only_in_colour():
    styles = [tuple(line_style(i).values()) for i in range(24)]
    assert len(set(styles)) == 24


def test_ticks():
    assert round_ticks(91.0) == [0, 20, 40, 60, 80, 100]
    assert round_ticks(3.2) == [0, 1, 2, 3, 4]
    assert log_ticks(1.4, 90) == [1, 3, 10, 30, 100]
    assert log_ticks(0.03, 0.03) == [0.03, 0.1]
    assert log_ticks(0.02, 40) == [0.01, 0.1, 1, 10, 100]


def test_a_report_has_everything_in_one_folder(hpatches_results, tmp_path):
    pytest.importorskip("matplotlib")
    paths = write_report(hpatches_results, tmp_path / "report", "mine")
    assert {path.name for path in paths} == {
        *("mine.md", "mine.tex"),
        *("mine-tasks.png", "mine-tasks.svg", "mine-distractors.png", "mine-distractors.svg"),
    }
    assert all(path.stat().st_size > 500 for path in paths)
    markdown, latex = (tmp_path / "report" / f"mine.{s}" for s in ("md", "tex"))
    assert "![tasks](mine-tasks.png)" in markdown.read_text()
    labels = re.findall(r"\\label\{(.+?)\}", latex.read_text())
    assert len(labels) == len(set(labels)) == markdown.read_text().count("| --- |")


def test_a_report_says_how_its_numbers_were_made(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    origin = {"command": "hardnet bench brown liberty", "revision": "abc", "date": "today"}
    origin["versions"] = {"hardnet": "7.0"}
    markdown, *_ = write_report(brown_results | {"provenance": origin}, tmp_path)
    assert markdown.name == "brown.md"
    assert markdown.read_text().endswith("liberty`, hardnet 7.0 at revision abc, today.\n")


def test_a_folder_that_cannot_be_written_is_one_line(brown_results, tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "file").write_text("")
    with pytest.raises(HardnetError, match="cannot write the report"):
        write_report(brown_results, tmp_path / "file")
