"""`hardnet data info`, as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.patchsets.brown import BrownWriter
from hardnet.patchsets.hpatches import TAGS

from .conftest import Run


@pytest.fixture
def run(
    command: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Run]:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "user"))
    monkeypatch.setenv("COLUMNS", "80")
    return partial(command, "data", "info")


@pytest.fixture
def brown(tmp_path: Path, camera: np.ndarray) -> Path:
    patches = np.stack([camera[i : i + 64, i : i + 64] for i in range(60)])
    with BrownWriter(tmp_path / "mine") as writer:
        writer.add(patches, np.arange(60) // 3, group=0)
        writer.finish(pairs=10, seed=0, extra_files={})
    return tmp_path / "mine"


@pytest.fixture
def hpatches(tmp_path: Path, camera: np.ndarray) -> Path:
    for name in ("v_[bold]", "i_y"):
        (tmp_path / "hp" / name).mkdir(parents=True)
        for k, tag in enumerate(TAGS):
            cv2.imwrite(str(tmp_path / "hp" / name / f"{tag}.png"), camera[k : k + 130, :65])
    return tmp_path / "hp"


def test_a_table_and_a_picture(run, brown: Path, tmp_path: Path) -> None:
    done = run(brown, "--sheet", tmp_path / "sheet.png", "--points", 5)
    assert done.returncode == 0, done.stderr
    for text in ("mine (brown)", "60 of 20 points", "5 matching, 5 not", "64 pixels", "not yet"):
        assert text in done.stdout
    assert f"picture: {tmp_path / 'sheet.png'}" in done.stdout
    picture = cv2.imread(str(tmp_path / "sheet.png"), cv2.IMREAD_GRAYSCALE)
    assert picture.shape[0] == 2 + 5 * 67
    again = run(brown, "--sheet", tmp_path / "other.png", "--points", 5, "--seed", 1)
    assert again.returncode == 0
    assert (tmp_path / "other.png").read_bytes() != (tmp_path / "sheet.png").read_bytes()


def test_json(run, brown: Path) -> None:
    done = run(brown, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["kind"], found["patches"], found["points"]) == ("brown", 60, 20)
    assert found["per_point"] == [3, 3, 3]
    assert len(found["digest"]) == 64


def test_sequences_and_splits_are_listed_and_names_are_not_markup(run, hpatches: Path) -> None:
    done = run(hpatches)
    assert done.returncode == 0, done.stderr
    for text in ("hp (hpatches)", "v_[bold]", "viewpoint", "illumination", "full", "not on disk"):
        assert text in done.stdout
    assert "matching," not in done.stdout


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda hp: (hp / "i_y" / "t5.png").unlink(), "missing: t5.png"),
        (lambda hp: (hp / "i_y" / "t5.png").write_bytes(b"x"), "t5.png is damaged"),
    ],
)
def test_damage_is_one_line(run, hpatches: Path, damage, message: str) -> None:
    damage(hpatches)
    done = run(hpatches)
    assert done.returncode == 1
    assert done.stderr.startswith("error:")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_no_set_and_a_bad_picture_name(run, brown: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = run(tmp_path / "empty")
    assert done.returncode == 1
    assert "is not a patch set" in done.stderr
    done = run(brown, "--sheet", tmp_path / "sheet.docx")
    assert done.returncode == 1
    assert ".png" in done.stderr
