import json

import cv2
import pytest

from hardnet.bench.report import figure, read_results, tables
from hardnet.errors import HardnetError


def pair_results():
    correct = {("net", "a"): 80, ("net", "b"): 5, ("rootsift", "a"): 60, ("rootsift", "b"): 8}
    return {
        "kind": "pairs",
        "rows": [
            {
                "descriptor": d,
                "sequence": s,
                "tentative": 100,
                "correct": n,
                "inliers": n + 1,
                "correct_inliers": n - 1,
                "verified": n > 15,
            }
            for (d, s), n in correct.items()
        ],
    }


def test_pair_tables_say_where_the_baseline_wins():
    summary, correct, verified = tables(pair_results())
    assert summary.rows[0] == ["net", "1 / 2", "200", "85", "87", "83", "1.25x"]
    assert correct.rows == [["a", "**80**", "60"], ["b", "5", "**8**"]]
    assert verified.rows[0] == ["a", "**1**", "**1**"]


def test_sizes_are_sorted_by_task_and_size():
    row = {"seconds": 1.26, "memory_mb": 99.6, "descriptors_mb": 10, "ratio": 7}
    lists = {"pairs": 1000, "sequences": 3, "queries": 20, "distractors": 4000}
    sizes = [("retrieval", 1.0), ("verification", 1.0), ("verification", 0.5)]
    rows = [row | lists | {"task": task, "size": size} for task, size in sizes]
    rows[2]["pairs"] = 500
    patches = {"patches_per_second": 3000.4, "full_set_minutes": 14}
    (table,) = tables({"kind": "hpatches_scale", "rows": rows, "from_patches": patches})
    assert [line[:2] for line in table.rows] == [
        ["verification", "3 x 500 pairs"],
        ["verification", "3 x 1,000 pairs"],
        ["retrieval", "20 queries, 4,000 distractors"],
    ]
    assert table.rows[0][2:] == ["1.3 s", "100 MB", "10 MB", "7.0x"]
    assert "3000 patches/s" in table.note


def test_without_the_baseline_there_is_no_ratio():
    results = pair_results()
    results["rows"] = [row for row in results["rows"] if row["descriptor"] == "net"]
    assert tables(results)[0].rows[0][-1] == "-"


def test_markdown_has_one_rule_and_as_many_cells_in_every_line():
    lines = tables(pair_results())[0].markdown().splitlines()
    assert lines[0] == "**Matches on real pairs**"
    assert lines[3] == "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    assert {line.count("|") for line in lines[2:]} == {8}


def test_the_figure_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    figure(pair_results(), tmp_path / "docs" / "bars.png")
    assert cv2.imread(str(tmp_path / "docs" / "bars.png")).std() > 5


@pytest.mark.parametrize("text", ["no json", json.dumps({"kind": "speed"}), json.dumps([1])])
def test_other_files_are_refused_by_name(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(HardnetError, match=r"other\.json"):
        read_results(path)
