"""Tables in documents: renewed from results files, and those of this repository are up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hardnet.bench.report.document import refresh
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


def test_a_table_by_its_number_all_of_them_and_the_rest_folded(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    slot = "<!-- {} speed.json -->\n<!-- end -->\n"
    second = refresh(slot.format("table 2"), tmp_path)
    assert "**Memory**" in second
    assert second.count("| --- |") == 1
    assert refresh(slot.format("tables"), tmp_path).count("| --- |") == 2
    assert refresh(slot.format("details"), tmp_path).splitlines() == [
        "<!-- details speed.json -->",
        "<details><summary>Memory</summary>",
        "",
        *second.splitlines()[1:-1],
        "</details>",
        "",
        "<!-- end -->",
    ]
    for number in (0, 3):
        with pytest.raises(HardnetError, match=r"speed\.json has tables 1 to 2"):
            refresh(slot.format(f"table {number}"), tmp_path)


def test_a_missing_results_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"speed\.json"):
        refresh(TEXT, tmp_path)


def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    (tmp_path / "doc.md").write_text(TEXT)
    command = [sys.executable, "-m", "hardnet.cli.app", "bench", "refresh", "doc.md"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert (tmp_path / "doc.md").read_text() == refresh(TEXT, tmp_path)


def test_the_tables_of_this_repository_are_what_its_results_say() -> None:
    documents = [
        ROOT / "README.md",
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("src/hardnet/weights/*.md"),
    ]
    slots = 0
    for path in documents:
        text = path.read_text()
        slots += text.count("<!-- end -->")
        assert refresh(text, ROOT) == text, f"run: hardnet bench refresh {path.relative_to(ROOT)}"
    assert slots >= 3
