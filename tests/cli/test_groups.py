"""`hardnet groups`: what it prints and writes, and what it leaves alone."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from copies import crop, resize
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.images import read_image, write_image
from hardnet.retrieval.index import Index

run = CliRunner()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    """A photo, a small copy, a crop, and another photo; and their index."""
    root = tmp_path_factory.mktemp("command")
    folder = root / "photos"
    folder.mkdir()
    pixels = read_image(photos / "coffee.png")
    write_image(folder / "whole.png", pixels)
    write_image(folder / "small <b>.png", resize(pixels, 0.7, 0.7)[0])
    write_image(folder / "part.png", crop(pixels, np.random.default_rng(1), 0.5)[0])
    shutil.copy(photos / "coins.png", folder)
    settings = {"words": 64, "descriptor": "rootsift", "keypoints": 400, "max_size": 600}
    Index.build(root / "index", folder, **settings)
    return root


def ask(*arguments: object) -> str:
    result = run.invoke(app, ["groups", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_json_is_one_object(place: Path) -> None:
    found = json.loads(ask(place / "index", "--json"))
    assert set(found) == {"pairs", "groups"}
    pairs = {tuple(Path(p[x]).name for x in "ab"): p for p in found["pairs"]}
    assert set(pairs) == {
        ("part.png", "small <b>.png"),
        ("part.png", "whole.png"),
        ("small <b>.png", "whole.png"),
    }
    part = pairs["part.png", "whole.png"]
    assert set(part) == {"a", "b", "kind", "inliers", "transform", "overlap"}
    assert part["kind"] == "crop"
    assert part["overlap"] == pytest.approx([1, 0.5], abs=0.02)
    assert np.allclose(np.array(part["transform"])[:, :2], np.eye(2), atol=0.01)
    kinds = {group["kind"]: group for group in found["groups"]}
    assert set(kinds) == {"copy", "crop"}
    assert Path(kinds["copy"]["best"]).name == "whole.png"
    assert len(kinds["crop"]["photos"]) == 3


def test_csv_and_list(place: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(ask(place / "index", "--csv"))))
    assert [row["kind"] for row in rows] == ["copy", "crop", "crop"]
    assert {"a", "b", "inliers", "overlap_a", "overlap_b", "m11", "m23"} <= set(rows[0])
    assert ask(place / "index", "--list") == f"{place / 'photos' / 'small <b>.png'}\n"
    assert (place / "photos" / "small <b>.png").exists()


def test_a_table_for_people(place: Path) -> None:
    text = ask(place / "index")
    assert "copy, 2 photos" in text
    assert re.search(r"best +\S*whole\.png", text)
    assert "4 photos, 2 groups; pairs: copy 1, crop 2" in text
    only = ask(place / "index", "--kind", "crop")
    assert "copy, 2 photos" not in only


def test_the_page_needs_nothing_else(place: Path) -> None:
    ask(place / "index", "-o", place / "report.html")
    page = (place / "report.html").read_text()
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")
    [data] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    content = json.loads(data)
    assert len(content["photos"]) == 3
    assert all(photo["src"].startswith("data:image/jpeg;base64,") for photo in content["photos"])
    assert "small <b>.png" in {Path(photo["path"]).name for photo in content["photos"]}
    assert content["groups"][0]["pairs"][0]["points"]


def test_a_folder_of_photos_leaves_nothing_behind(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(place / "photos", folder)
    before = sorted(os.listdir(folder))
    found = json.loads(ask(folder, "--json", "--no-mirrored", "--descriptor", "rootsift"))
    assert {group["kind"] for group in found["groups"]} == {"copy", "crop"}
    assert sorted(os.listdir(folder)) == before


def test_after_an_addition_only_new_photos_are_compared(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "all")
    index, folder = tmp_path / "all" / "index", tmp_path / "all" / "photos"
    ask(index)
    log = index / "groups" / "compared.jsonl"
    before = log.read_text()
    shutil.copy(folder / "whole.png", folder / "again.png")
    Index(index).add([folder / "again.png"])
    found = json.loads(ask(index, "--json"))
    assert log.read_text().startswith(before)
    lines = [json.loads(line) for line in log.read_text()[len(before) :].split("\n") if line]
    assert [Path(line["photo"]).name for line in lines] == ["again.png"] * 2
    kinds = {
        p["kind"]
        for p in found["pairs"]
        if {Path(p["a"]).name, Path(p["b"]).name} == {"again.png", "whole.png"}
    }
    assert kinds == {"copy"}


def test_a_photo_that_is_gone_is_named(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place, tmp_path / "all")
    shutil.rmtree(tmp_path / "all" / "index" / "groups", ignore_errors=True)
    (tmp_path / "all" / "photos" / "part.png").unlink()
    result = run.invoke(app, ["groups", str(tmp_path / "all" / "index"), "--json"])
    assert result.exit_code == 1
    assert "part.png" in result.stderr
    assert len(json.loads(result.stdout)["pairs"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "neither an index nor a folder"),
        (["index", "--json", "--csv"], "choose one"),
        (["index", "--kind", "twin"], "no kind 'twin'"),
        (["index", "-o", "report.pdf"], "name it report.html"),
        (["index", "-o", "absent/report.html"], "no folder absent"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    result = run.invoke(app, ["groups", *arguments])
    assert result.exit_code == 1
    assert message in str(result.exception)


def test_a_removable_copy_is_one_line_whatever_its_name(place: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    shutil.copytree(place / "photos", folder)
    (folder / "small <b>.png").rename(folder / "small\nwhole.png")
    settings = {"words": 64, "descriptor": "rootsift", "keypoints": 400, "max_size": 600}
    Index.build(tmp_path / "index", folder, **settings)
    assert ask(tmp_path / "index", "--list") == f"{folder}/small\\nwhole.png\n"
