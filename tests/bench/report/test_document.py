"""Tables in documents: renewed from results files, and those of this repository are up to date."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hardnet.bench.report import refresh
from hardnet.cli.app import app
from hardnet.errors import HardnetError

ROOT = Path(__file__).parents[3]

SPEED = {
    "kind": "speed",
    "tables": [
        {"title": "Describing", "columns": ["", "patches/s"], "rows": [["ours", "2500"]]},
        {"title": "Memory", "columns": ["", "MB"], "rows": [["ours", "20"]], "note": "A note."},
    ],
}
TEXT = "before\n<!-- summary speed.json -->\nold\n<!-- end -->\nafter\n"


def test_the_slot_is_filled_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    text = refresh(TEXT, tmp_path)
    assert text.startswith("before\n<!-- summary speed.json -->\n**Describing")
    assert text.endswith("\n\n<!-- end -->\nafter\n")
    assert "| ours | 2500 |" in text
    assert "Memory" not in text
    assert "old" not in text
    assert refresh(text, tmp_path) == text


def test_tables_by_their_numbers_and_all_of_them(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    slot = "<!-- {} speed.json -->\n<!-- end -->\n"
    second = refresh(slot.format("table 2"), tmp_path)
    assert "**Memory**" in second
    assert second.count("| --- |") == 1
    turned = refresh(slot.format("tables 2,1"), tmp_path)
    assert turned.index("**Memory**") < turned.index("**Describing**")
    assert refresh(slot.format("tables"), tmp_path).count("| --- |") == 2
    for number in (0, 3):
        with pytest.raises(HardnetError, match=r"speed\.json has tables 1 to 2"):
            refresh(slot.format(f"table {number}"), tmp_path)


def test_an_overview_takes_columns_of_several_tables(
    tmp_path: Path, brown_results: dict[str, Any]
) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    (tmp_path / "brown.json").write_text(json.dumps(brown_results))
    text = """<!-- overview measured | hardnet | rootsift
FPR95 | brown.json | 1 | notredame
patches/s | speed.json | 1 | patches/s | ours, -
-->
old
<!-- end -->
"""
    shown = refresh(text, tmp_path)
    assert "| measured | hardnet | rootsift |" in shown
    # Made up: 0.24 % / 0.52^3 and / 0.36^3; the best is not bold here.
    assert "| FPR95 | 1.71 | 5.14 |" in shown
    assert "| patches/s | 2500 | - |" in shown
    assert "old" not in shown
    assert refresh(shown, tmp_path) == shown
    with pytest.raises(HardnetError, match=r"brown\.json: .* has no column 'paris'"):
        refresh(text.replace("notredame", "paris"), tmp_path)
    with pytest.raises(HardnetError, match="has 0 rows named 'nobody'"):
        refresh(text.replace("ours, -", "ours, nobody"), tmp_path)


def test_a_comparison_has_a_line_per_name_and_finds_rows_by_several_cells(tmp_path: Path) -> None:
    rows = [["upright", "ours", "0.5"], ["upright", "sift", "0.25"], ["turned", "ours", "0.125"]]
    light = {"title": "Light", "columns": ["frames", "descriptor", "AP"], "rows": rows}
    results = {"kind": "light-study", "tables": [light, SPEED["tables"][0]]}
    (tmp_path / "light.json").write_text(json.dumps(results))
    text = """<!-- comparison descriptor | ours | SIFT = sift
AP, upright | light.json | 1 | AP | upright / ours, sift
patches/s | light.json | 2 | patches/s | ours, -
-->
<!-- end -->
"""
    shown = refresh(text, tmp_path).splitlines()
    assert "| descriptor | AP, upright | patches/s |" in shown
    assert "| ours | 0.5 | 2500 |" in shown
    assert "| SIFT | 0.25 | - |" in shown
    with pytest.raises(HardnetError, match="'Light' has 2 rows named 'ours'"):
        refresh(text.replace("upright / ours", "ours"), tmp_path)


def test_a_missing_results_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"speed\.json"):
        refresh(TEXT, tmp_path)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    (tmp_path / "doc.md").write_text(TEXT)
    assert CliRunner().invoke(app, ["bench", "refresh", "doc.md"]).exit_code == 0
    assert (tmp_path / "doc.md").read_text() == refresh(TEXT, tmp_path)


def test_the_tables_of_this_repository_are_what_its_results_say() -> None:
    documents = [
        ROOT / "README.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("src/hardnet/weights/*.md"),
    ]
    slots = 0
    for path in documents:
        text = path.read_text()
        slots += text.count("<!-- end -->")
        assert refresh(text, ROOT) == text, f"run: hardnet bench refresh {path.relative_to(ROOT)}"
    assert slots >= 3
