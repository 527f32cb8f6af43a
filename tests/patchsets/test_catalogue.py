"""The format of a set is found from its files, and what is no set is told what it lacks."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import Brown
from hardnet.patchsets.brown_writer import BrownWriter
from hardnet.patchsets.catalogue import identify, open_set
from hardnet.patchsets.hpatches import TAGS, HPatches
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
