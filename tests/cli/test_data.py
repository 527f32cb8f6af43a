"""`hardnet data build photos`, as a user runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from hardnet.patchsets.brown import read_brown

from .conftest import Run


def test_broken_photos_are_named_and_counted(
    command: Callable[..., Run], photos: Path, tmp_path: Path
) -> None:
    album = tmp_path / "album"
    album.mkdir()
    shutil.copy(photos / "coffee.png", album)
    (album / "broken.jpg").write_bytes(b"nothing")
    small = (
        "--points",
        "40",
        "--views",
        "2",
        "--max-size",
        "400",
        "--pairs",
        "100",
        "--workers",
        "1",
    )
    done = command("data", "build", "photos", album, "-o", tmp_path / "set", "--json", *small)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["photos"], counts["skipped"]) == (1, ["broken.jpg"])
    assert counts["patches"] == len(read_brown(tmp_path / "set"))
    assert "skipped broken.jpg" in done.stderr


def test_a_place_that_cannot_be_written_is_one_line(
    command: Callable[..., Run], photos: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = command("data", "build", "photos", photos, "-o", tmp_path / "file" / "set")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "file is not a folder" in done.stderr
