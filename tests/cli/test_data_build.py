"""`hardnet data build colmap|sfm|sequences`, as a user runs them."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from hardnet.cli.app import app
from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import identify

from .conftest import Run


@pytest.fixture
def build(command: Callable[..., Run]) -> Callable[..., Run]:
    return partial(command, "data", "build")


def fails(*arguments: object) -> str:
    """The message of the error, without the cost of a process."""
    done = CliRunner().invoke(app, ["data", "build", *map(str, arguments)])
    assert isinstance(done.exception, HardnetError), done.output
    return str(done.exception)


@pytest.fixture(scope="module")
def sequences(tmp_path_factory: pytest.TempPathFactory, camera: np.ndarray) -> Path:
    """One sequence with five targets, one with a single target."""
    root = tmp_path_factory.mktemp("data")
    shift = np.array([[1.0, 0, 9], [0, 1, 4], [0, 0, 1]])
    for name, targets in (("steady", 5), ("short", 1)):
        (root / name).mkdir()
        cv2.imwrite(str(root / name / "1.png"), camera)
        for k in range(2, targets + 2):
            moved = cv2.warpPerspective(camera, shift, camera.shape[::-1])
            cv2.imwrite(str(root / name / f"{k}.png"), moved)
            np.savetxt(root / name / f"H_1_{k}", shift)
    return root


def test_sequences_in_both_layouts(
    build: Callable[..., Run], sequences: Path, tmp_path: Path
) -> None:
    options = ("--limit", 20, "--workers", 1, "--json")
    done = build("sequences", sequences, "-o", tmp_path / "a", *options)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["patches"] == {"i_steady": 20}
    assert "skipped short" in done.stderr
    assert identify(tmp_path / "a") == "hpatches"
    layout = ("--layout", "w1bs", "--subset", "J=steady")
    done = build("sequences", sequences, "-o", tmp_path / "b", *layout, *options)
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    steady = [f"J/steady-{k}" for k in (2, 3, 4, 5, 6)]
    assert sorted(counts["patches"]) == [*steady, "photometric/short-2"]
    assert identify(tmp_path / "b") == "w1bs"
    assert "exists already" in fails("sequences", sequences, "-o", tmp_path / "a")


def test_mistakes_are_one_line(sequences: Path, tmp_path: Path) -> None:
    out = ("-o", tmp_path / "set")
    assert "no such folder" in fails("sequences", tmp_path / "none", *out)
    w1bs = ("--layout", "w1bs", "--subset", "J")
    assert "NAME=SEQUENCE" in fails("sequences", sequences, *out, *w1bs)
    assert "--layout w1bs" in fails("sequences", sequences, *out, "--subset", "J=steady")
    assert "not a COLMAP model" in fails("colmap", tmp_path, "--images", tmp_path, *out)
    missing = ("--database", tmp_path / "no.db")
    assert "no.db" in fails("colmap", tmp_path, "--images", tmp_path, *out, *missing)
    assert "contains no image" in fails("sfm", tmp_path, *out)
    both = ("--detections", "--noise", 1)
    assert "--detections and --noise exclude" in fails("sfm", tmp_path, *out, *both)
    assert "exclude" in fails("colmap", tmp_path, "--images", tmp_path, *out, *both)
    assert "--windows 24 needs --detections" in fails("sfm", tmp_path, *out, "--windows", "24")
    for wrong in ("12;24", "0+12", ""):
        assert "12+24+48" in fails("detections", tmp_path, *out, "--windows", wrong)
    (tmp_path / "set").mkdir()
    assert "exists already" in fails("sfm", sequences, *out)


@pytest.mark.slow
def test_photos_become_a_set_by_sfm_and_the_kept_model_another(
    build: Callable[..., Run], data: Path, tmp_path: Path
) -> None:
    pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    photos = data / "multiview" / "chair"
    options = ("--pairs", 1000, "--json")
    done = build("sfm", photos, "-o", tmp_path / "set", *options)
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)
    assert first["patches"] > 1000
    assert identify(tmp_path / "set") == "brown"
    about = json.loads((tmp_path / "set" / "set.json").read_text())
    assert about["sfm"]["settings"]["seed"] == 0
    model = tmp_path / "set.sfm" / "chair" / "sparse"
    done = build("colmap", model, "--images", photos, "-o", tmp_path / "again", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["patches"] == first["patches"]  # its database was found
    done = build("colmap", model, "--images", photos, "-o", tmp_path / "c", "--geometry", *options)
    assert json.loads(done.stdout)["models"][0]["frames"] == "geometry"
