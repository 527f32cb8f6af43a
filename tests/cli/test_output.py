from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hardnet.images import write_image

from .conftest import run


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.png"
    write_image(path, np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8))
    return path


@pytest.mark.parametrize("link", [None, os.link, os.symlink])
@pytest.mark.parametrize(
    "command",
    [
        "match PHOTO PHOTO -o OUTPUT",
        "search nowhere.index PHOTO -o OUTPUT",
        "extract PHOTO -o OUTPUT --overwrite",
        "data light PHOTO -o OUTPUT",
        "data info FOLDER --sheet OUTPUT",
        "bench table PHOTO --figure OUTPUT",
    ],
)
def test_an_output_that_is_an_input_is_refused(command: str, link, photo: Path) -> None:  # type: ignore[no-untyped-def]
    before, output = photo.read_bytes(), photo
    if link is not None:
        link(photo, output := photo.with_name("output.png"))
    words = {"PHOTO": photo, "FOLDER": photo.parent, "OUTPUT": output}
    done = run(*(words.get(word, word) for word in command.split()))
    assert done.returncode == 1
    assert f"{output} is an input of this command: choose another name" in done.stderr
    assert photo.read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        "match PHOTO PHOTO --model essential --camera PIPE",
        "bench table PIPE",
        "bench report PIPE -o report",
        "bench refresh PIPE",
        "search FOLDER PHOTO",
    ],
)
def test_a_pipe_is_refused(command: str, photo: Path) -> None:
    """A name that another file of the command may have, too: ``search`` reads the manifest."""
    pipe = photo.with_name("manifest.json")
    os.mkfifo(pipe)
    words = {"PHOTO": photo, "FOLDER": photo.parent, "PIPE": pipe}
    done = run(*(words.get(word, word) for word in command.split()))
    assert done.returncode == 1
    assert f"{pipe} is a pipe, device or socket: save it as a file first" in done.stderr


HOSTILE = "a\x1b[2J\nb.png"


def test_a_file_name_cannot_control_the_terminal(photo: Path) -> None:
    other = photo.rename(photo.with_name(HOSTILE))
    done = run("match", other, other, "--descriptor", "rootsift", "--keypoints", 50)
    assert r"a\x1b[2J\nb.png" in done.stdout.replace(" ", "")
    missing = run("match", other.with_name(f"no {HOSTILE}"), other)
    assert missing.returncode == 1
    assert r"no a\x1b[2J\nb.png does not exist" in missing.stderr
    assert not {"\x1b"} & {*done.stdout, *done.stderr, *missing.stderr}
    assert missing.stderr.count("\n") == 1
