"""`hardnet data build photos`, as a user runs it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from hardnet.patchsets.brown import read_brown


def build(folder: Path, output: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hardnet.cli.app", "data", "build", "photos", str(folder)]
    return subprocess.run(
        [*command, "-o", str(output), *options], capture_output=True, text=True, check=False
    )


def test_broken_photos_are_named_and_counted(photos: Path, tmp_path: Path) -> None:
    album = tmp_path / "album"
    album.mkdir()
    shutil.copy(photos / "coffee.png", album)
    (album / "broken.jpg").write_bytes(b"nothing")
    small = ("--points", "40", "--views", "2", "--max-size", "400", "--pairs", "100")
    done = build(album, tmp_path / "set", "--json", *small)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert (counts["photos"], counts["skipped"]) == (1, ["broken.jpg"])
    assert counts["patches"] == len(read_brown(tmp_path / "set"))
    assert "skipped broken.jpg" in done.stderr


def test_a_place_that_cannot_be_written_is_one_line(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    done = build(photos, tmp_path / "file" / "set")
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "file is not a folder" in done.stderr
