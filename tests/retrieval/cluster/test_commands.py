"""The option --cluster, with the Ray of the other tests."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.retrieval.store.snapshot import open_snapshot

from .conftest import SmallIndex


def said(*words: object, code: int = 0) -> Any:
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)


def test_search(ray: Any, small: SmallIndex) -> None:
    query = [small.photos["coffee.png"], "--box", "20,20,400,300", "--mode", "he+sv"]
    here = said("search", small.folder, *query)
    there = said("search", small.folder, *query, "--cluster", "local")
    assert here.pop("seconds").keys() == there.pop("seconds").keys()
    assert here == there
    assert there["hits"][0]["path"].endswith("coffee.png")
    assert there["missing"] == []


def test_build(ray: Any, small: SmallIndex, tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("coins.png", "page.png"):
        shutil.copy(small.photos[name], photos)
    options = ["--words", 16, "--keypoints", 100]
    here = said("index", "build", tmp_path / "here", photos, *options)
    there = said("index", "build", tmp_path / "there", photos, *options, "--cluster", "local")
    assert here["indexed"] == there["indexed"] == 2
    assert here["features"] == there["features"]
    one, other = (open_snapshot(tmp_path / name).manifest for name in ("here", "there"))
    assert one.segments == other.segments
    assert one.vocabulary.fingerprint == other.vocabulary.fingerprint


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "nowhere"], "nowhere"),
        (["--shards", "2"], "--shards is of use with --cluster only"),
    ],
)
def test_wrong_options(ray: Any, small: SmallIndex, words: list[str], message: str) -> None:
    command = ["search", str(small.folder), str(small.photos["coins.png"]), *words]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert message in str(result.exception)
