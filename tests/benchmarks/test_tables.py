"""The tables of the results that the scripts of benchmarks/ write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from report import growth
from report import tables as shown

ROOT = Path(__file__).parents[2]


def stored(kind: str) -> dict[str, Any]:
    results: dict[str, Any] = json.loads((ROOT / "results" / f"{kind}.json").read_text())
    return results


@pytest.mark.parametrize("kind", shown.TABLES)
def test_the_stored_tables_are_those_of_the_stored_numbers(kind: str, tmp_path: Path) -> None:
    results = stored(kind)
    assert results["kind"] == kind
    shown.write(results | {"tables": []}, tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again == results, "run: cd benchmarks && python -m report.tables ../results/*.json"
    for table in results["tables"]:
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}


def test_cells_of_each_kind_are_the_numbers_they_name() -> None:
    """One number of each file, found by hand."""
    words = stored("assign_words")
    size, found = next(iter(words["sizes"].items()))
    assert words["tables"][0]["rows"][0][0] == f"{int(size):,}"
    assert float(words["tables"][0]["rows"][0][4]) == pytest.approx(
        next(iter(found.values()))["recall"], abs=1e-4
    )
    detect = stored("detect")
    name, mean = next(iter(detect["mean"].items()))
    assert detect["tables"][0]["rows"][0][0] == name
    assert float(detect["tables"][0]["rows"][0][-1]) == pytest.approx(mean["distance"], abs=5e-4)
    large = stored("large_image")
    row = large["rows"][0]
    assert large["tables"][0]["rows"][0][:2] == [
        f"detector {row['name']}",
        f"{row['extra_mb']:.0f}",
    ]
    crops = stored("crops")
    found = [list(row["found"].values()) for row in crops["rows"]]
    cells = [row[1 : len(found[0]) + 1] for row in crops["tables"][0]["rows"]]
    assert [[int(cell.strip("*")) for cell in line] for line in cells] == found
    folder = stored("extract_folder")
    seconds = folder["rows"][0]["seconds"]["decode"] / folder["provenance"]["settings"]["images"]
    assert float(folder["tables"][0]["rows"][0][1]) == pytest.approx(seconds, abs=6e-3)
    growth = stored("retrieval_growth")
    row = growth["rows"][-1]
    assert growth["tables"][1]["rows"][-1][0] == f"{row['images']:,}"
    assert float(growth["tables"][1]["rows"][-1][3]) == pytest.approx(row["query_ms"]["he"], 0.01)


APART = {"loss": 1e-9, "absolute": 2e-8, "largest": 3e-7, "norm": 4e-7}


def test_a_training_step_by_hand() -> None:
    results = {
        "batch": 1024,
        "pairs_per_second": {"plain": 80.2, "chunked": 240.6},
        "ratio": 3.0,
        "memory_mb": [
            {"batch": 2048, "plain": 4500.0, "chunked": 1500.0, "share": 1 / 3},
            {"batch": 8192, "chunked": 5000.0},
        ],
        "equality": [
            {"batch": 8, "dtype": "float64", "chunked_to_plain": APART, "plain_to_float64": None},
            {"batch": 8, "dtype": "float32", "chunked_to_plain": APART, "plain_to_float64": APART},
        ],
        "provenance": {"settings": {"chunk": 512, "threads": 2}},
    }
    cost, equality = shown.TABLES["train_step"](results)
    assert cost.rows == [
        ["pairs/s at batch 1024", "80", "241", "3.00x"],
        ["peak memory at batch 2048", "4500 MB", "1500 MB", "33%"],
        ["peak memory at batch 8192", "", "5000 MB", ""],
    ]
    assert [row[0] for row in equality.rows] == [
        "in chunks - plain, batch 8, float64",
        "in chunks - plain, batch 8, float32",
        "plain - plain in float64, batch 8, float32",
    ]
    assert equality.rows[0][1:] == ["1e-09", "2e-08", "3e-07", "4e-07"]


def test_a_pair_without_ground_truth_has_no_column_of_it() -> None:
    results = stored("match_pair")
    assert shown.TABLES["match_pair"](results)[0].headings[-1] == "correct"
    results["found"] = {name: {"inliers": 5} for name in results["found"]}
    totals, stages = shown.TABLES["match_pair"](results)
    assert totals.headings[-1] == "inliers"
    assert all(text.endswith("%)") for text in stages.columns[1].values)


@pytest.mark.slow
def test_the_figure_of_growth_bears_zeros(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    results = stored("retrieval_growth")
    results["rows"][0]["own_memory_mb"] = 0.0
    (tmp_path / "growth.json").write_text(json.dumps(results))
    growth.draw(tmp_path / "growth.json", tmp_path / "growth.svg")
    assert "mapped memory" in (tmp_path / "growth.svg").read_text()
