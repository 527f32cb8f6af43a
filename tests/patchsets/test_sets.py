"""The format of a set is found from its files; several sets are opened as one."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import Brown, BrownWriter
from hardnet.patchsets.hpatches import TAGS, HPatches
from hardnet.patchsets.sets import identify, open_set, open_sets
from hardnet.patchsets.w1bs import W1BS


@pytest.fixture
def sets(tmp_path: Path, camera: np.ndarray) -> Path:
    """A folder with one small set of each format."""
    patches = np.stack([camera[8 * i : 8 * i + 64, :64] for i in range(6)])
    with BrownWriter(tmp_path / "brown") as writer:
        writer.add(patches, np.arange(6) // 2, group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    for tag in TAGS:
        (tmp_path / "hpatches" / "v_x").mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / "hpatches" / "v_x" / f"{tag}.png"), camera[:130, :65])
    for side in "12":
        (tmp_path / "w1bs" / "A" / side).mkdir(parents=True)
        cv2.imwrite(str(tmp_path / "w1bs" / "A" / side / "x.bmp"), camera[:64, :32])
    return tmp_path


@pytest.mark.parametrize(
    ("path", "kind", "opened"),
    [
        ("brown", "brown", Brown),
        ("hpatches", "hpatches", HPatches),
        ("hpatches/v_x", "hpatches", HPatches),
        ("w1bs", "w1bs", W1BS),
        ("w1bs/A", "w1bs", W1BS),
    ],
)
def test_kinds(sets: Path, path: str, kind: str, opened: type) -> None:
    assert identify(sets / path) == kind
    assert isinstance(open_set(str(sets / path)), opened)


def test_what_is_no_set(sets: Path) -> None:
    with pytest.raises(HardnetError, match="absent does not exist"):
        identify(sets / "absent")
    with pytest.raises(HardnetError, match=r"info\.txt is a file"):
        identify(sets / "brown" / "info.txt")
    (sets / "empty").mkdir()
    with pytest.raises(HardnetError, match=r"not a patch set: expected info\.txt.*\(W1BS\)$"):
        identify(sets / "empty")
    (sets / "brown" / "info.txt").unlink()
    with pytest.raises(HardnetError, match=r"sheets but no info\.txt"):
        identify(sets / "brown")


def test_a_folder_of_sets_names_them(sets: Path, tmp_path: Path) -> None:
    (sets / "more").mkdir()
    (sets / "brown").rename(sets / "more" / "liberty")
    with pytest.raises(HardnetError, match="name one of the folders in it: liberty"):
        identify(sets / "more")


@pytest.fixture
def folders(tmp_path: Path, camera: np.ndarray) -> Path:
    """A Brown set of 3 points and an HPatches set of two sequences with 2 and 1 points."""
    patches = np.stack([camera[8 * i : 8 * i + 64, :64] for i in range(6)])
    with BrownWriter(tmp_path / "brown") as writer:
        writer.add(patches, np.arange(6) // 2, group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    for name, count in {"v_x": 2, "i_y": 1}.items():
        (tmp_path / "hp" / name).mkdir(parents=True)
        for k, tag in enumerate(TAGS):
            strip = camera[k : k + 65 * count, :65]
            cv2.imwrite(str(tmp_path / "hp" / name / f"{tag}.png"), strip)
    (tmp_path / "hp" / "splits.json").write_text('{"a": {"test": ["v_x"], "train": ["i_y"]}}')
    return tmp_path


def test_brown_and_hpatches_are_joined(folders: Path) -> None:
    both = open_sets([str(folders / "brown"), str(folders / "hp")], 32)
    assert both.name == "brown+hp"
    assert both.patches.shape == (6 + 16 * 3, 32, 32)
    assert np.bincount(both.points).tolist() == [2, 2, 2, 16, 16, 16]
    assert len(both.pairs) == 4


def test_a_split_means_its_training_sequences(folders: Path, camera: np.ndarray) -> None:
    found = open_sets([f"{folders / 'hp'}:a"], 65)
    assert found.name == "hp:a"
    assert found.points.tolist() == [0] * 16
    assert np.array_equal(found.patches[3], camera[3:68, :65])


def test_a_colon_in_a_folder_name_is_no_split(folders: Path) -> None:
    (folders / "brown").rename(folders / "brown:a")
    assert len(open_sets([str(folders / "brown:a")], 64)) == 6


@pytest.mark.parametrize("second", ["brown", "./brown", "../{}/brown", "hp:a"])
def test_a_folder_is_named_once(folders: Path, second: str) -> None:
    first = f"{folders / 'hp'}" if second == "hp:a" else f"{folders / 'brown'}"
    with pytest.raises(HardnetError, match="is named twice"):
        open_sets([first, f"{folders}/{second.format(folders.name)}"], 32)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hp:b", "split b is not known"),
        ("hp:full", "split full has no training sequences"),
        ("brown:a", "only HPatches sets have splits"),
        ("absent", "does not exist"),
        ("absent:a", "absent does not exist"),
    ],
)
def test_what_cannot_be_trained_on(folders: Path, name: str, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        open_sets([str(folders / name)], 32)


def test_w1bs_is_for_testing(folders: Path, camera: np.ndarray) -> None:
    for side in "12":
        (folders / "w" / "A" / side).mkdir(parents=True)
        cv2.imwrite(str(folders / "w" / "A" / side / "x.bmp"), camera[:64, :32])
    with pytest.raises(HardnetError, match="for testing only"):
        open_sets([str(folders / "w")], 32)
