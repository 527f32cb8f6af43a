"""`hardnet data build photos` and `data light`, as a user runs them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from hardnet.images import read_image
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.info import CELL, GAP

from .conftest import Run


def test_broken_photos_are_named_and_counted(
    command: Callable[..., Run], photos: Path, tmp_path: Path
) -> None:
    album = tmp_path / "album"
    album.mkdir()
    shutil.copy(photos / "coffee.png", album)
    (album / "broken.jpg").write_bytes(b"nothing")
    small = ("--points", 40, "--views", 2, "--max-size", 400, "--pairs", 100, "--workers", 1)
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


def test_patches_and_what_an_edge_of_light_does_to_them(
    command: Callable[..., Run], photos: Path, tmp_path: Path
) -> None:
    sheet = tmp_path / "shade.png"
    done = command("data", "light", photos / "coffee.png", "--patches", "-o", sheet)
    assert done.returncode == 0, done.stderr
    picture = read_image(sheet)
    step = CELL + GAP
    left = picture.shape[1] - GAP - 10 * step
    rows = [picture[GAP + r * step :][:CELL, left + GAP :] for r in range(4)]
    for shaded in rows[1:]:
        assert (shaded != rows[0]).mean() > 0.3
