"""Tables in documents: renewed from results files, and those of this repository are up to date."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hardnet.bench.document import refresh
from hardnet.errors import HardnetError

ROOT = Path(__file__).parents[2]

SPEED = {
    "kind": "describe",
    "patches_per_second": {"256": {"kornia": 1000.0, "ours": 2500.0}},
    "ratio_to_kornia": {"256": {"kornia": 1.0, "ours": 2.5}},
}
TEXT = "before\n<!-- summary speed.json -->\nold\n<!-- end -->\nafter\n"


def test_the_slot_is_filled_and_the_rest_stays(tmp_path: Path) -> None:
    (tmp_path / "speed.json").write_text(json.dumps(SPEED))
    text = refresh(TEXT, tmp_path)
    assert text.startswith("before\n<!-- summary speed.json -->\n**Describing")
    assert text.endswith("\n\n<!-- end -->\nafter\n")
    assert "| ours | 2500 (2.50x) |" in text
    assert "old" not in text
    assert refresh(text, tmp_path) == text


def test_a_table_by_its_number(tmp_path: Path) -> None:
    rows = [
        {"descriptor": "sift", "trained": None, "set": "liberty", "pairs": 10, "auc": 0.9}
        | dict.fromkeys(("fpr95", "fpr95_before", "fdr95", "low", "high"), 0.25)
    ]
    (tmp_path / "made_up.json").write_text(json.dumps({"kind": "brown", "rows": rows}))
    slot = "<!-- table {} made_up.json -->\n<!-- end -->\n"
    first = refresh(slot.format(1), tmp_path)
    assert "**FPR95 on Brown sets" in first
    assert first.count("| --- |") == 1
    assert "**Brown sets: all measures**" in refresh(slot.format(2), tmp_path)
    both = refresh("<!-- tables made_up.json -->\n<!-- end -->\n", tmp_path)
    assert both.count("| --- |") == 2
    for number in (0, 3):
        with pytest.raises(HardnetError, match=r"made_up\.json has tables 1 to 2"):
            refresh(slot.format(number), tmp_path)


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
