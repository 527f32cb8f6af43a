"""The provenance block is JSON, names no path, and its fingerprint follows the data."""

from __future__ import annotations

import json
from pathlib import Path

from hardnet.provenance import collect, fingerprint


def test_block_is_json_and_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    block = collect("hardnet bench", {"k": 3}, [tmp_path])
    text = json.dumps(block)
    assert str(tmp_path) not in text
    assert block["command"] == "hardnet bench"
    assert block["settings"] == {"k": 3}
    assert block["versions"]["numpy"]
    assert block["machine"]["cores"] >= 1
    assert collect("x", {})["data"] is None


def test_fingerprint_follows_names_and_contents_not_the_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a.bin").write_bytes(b"123")
    same = fingerprint([tmp_path / "one"])
    assert same == fingerprint([tmp_path / "two"])
    assert same["files"] == 1
    (tmp_path / "two" / "sub" / "a.bin").write_bytes(b"124")
    assert fingerprint([tmp_path / "two"]) != same
    (tmp_path / "one" / "sub" / "a.bin").rename(tmp_path / "one" / "sub" / "b.bin")
    assert fingerprint([tmp_path / "one"]) != same
