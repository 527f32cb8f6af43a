"""The provenance block is JSON, names no path, and its digest follows the data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hardnet.provenance import collect, without_folders


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


def test_digest_follows_names_and_contents_not_the_place(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder / "sub").mkdir(parents=True)
        (tmp_path / folder / "sub" / "a.bin").write_bytes(b"123")

    def digest(folder: str) -> dict[str, object]:
        return collect("x", {}, [tmp_path / folder])["data"]

    same = digest("one")
    assert same == digest("two")
    assert same["files"] == 1
    (tmp_path / "two" / "sub" / "a.bin").write_bytes(b"124")
    assert digest("two") != same
    (tmp_path / "one" / "sub" / "a.bin").rename(tmp_path / "one" / "sub" / "b.bin")
    assert digest("one") != same


@pytest.mark.parametrize(
    ("word", "clean"),
    [
        ("/data/me/set", "set"),
        ("--output=/data/me/set/", "--output=set"),
        ("data=[/data/me/a,/b/c,sets/d]", "data=[a,c,sets/d]"),
        ("sift,/data/me/x.onnx", "sift,x.onnx"),
        ("sets/a/b", "sets/a/b"),
        ("../../data/set", "set"),
        ("A=../x/a.pth,B=y/../b.pth", "A=a.pth,B=y/../b.pth"),
        ("data=[/sets/hpatches:a]", "data=[hpatches:a]"),
    ],
)
def test_folders_of_the_machine_are_left_out(word: str, clean: str) -> None:
    assert without_folders(word) == clean
