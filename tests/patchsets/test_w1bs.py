"""W1BS on disk: column strips in two folders."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.w1bs import read_w1bs


def write(path: Path, photo: np.ndarray, count: int, side: int = 32) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    strip = np.concatenate([photo[i : i + side, 3 * i : 3 * i + side] for i in range(count)])
    assert cv2.imwrite(str(path), strip)


@pytest.fixture
def folder(tmp_path: Path, camera: np.ndarray) -> Path:
    root = tmp_path / "W1BS"
    for side in "12":
        write(root / "map2photo" / side / "town.png", camera, 2, side=65)
        write(root / "A" / side / "b.bmp", camera[::-1], 5)
        write(root / "A" / side / "a.bmp", camera[int(side) :], 3)
        (root / "A" / side / "a.keys").write_text("3; 1 2 3")
    (root / "A" / "h").mkdir()
    (root / "A" / "h" / "a.txt").write_text("1 0 0")
    (root / "docs").mkdir()
    return root


def test_pairs_by_subset_and_name(folder: Path, camera: np.ndarray) -> None:
    found = read_w1bs(folder)
    rows = [(p.subset, p.name, p.count) for p in found.pairs]
    assert rows == [("A", "a", 3), ("A", "b", 5), ("map2photo", "town", 2)]
    assert found.subsets == ("A", "map2photo")
    assert (found.name, len(found)) == ("W1BS", 20)
    pair = found.pairs[0]
    for side in (1, 2):
        patches = pair.patches(side)
        assert patches.shape == (3, 32, 32)
        assert np.array_equal(patches[2], camera[side + 2 : side + 34, 6:38])
    assert found.pairs[2].patches(1).shape == (2, 65, 65)


def test_one_subset_is_a_set(folder: Path) -> None:
    found = read_w1bs(folder / "A")
    assert found.subsets == ("A",)
    assert len(found.pairs) == 2


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: (s / "A/2/a.bmp").unlink(), r"A/2 has no strip a to go with .*A/1/a\.bmp"),
        (lambda s: (s / "A/1/b.bmp").unlink(), r"A/1 has no strip b to go with .*A/2/b\.bmp"),
        (
            lambda s: cv2.imwrite(str(s / "A/1/a.bmp"), np.zeros((64, 32), np.uint8)),
            r"A/1/a\.bmp has 2 patches, but .*A/2/a\.bmp has 3",
        ),
        (
            lambda s: cv2.imwrite(str(s / "A/1/a.bmp"), np.zeros((97, 32), np.uint8)),
            r"a\.bmp is 32 x 97 pixels: the height of a column",
        ),
        (
            lambda s: (s / "A/1/a.bmp").write_bytes((s / "A/1/a.bmp").read_bytes()[:-1]),
            r"A/1/a\.bmp is truncated",
        ),
    ],
)
def test_damage_is_named(folder: Path, damage, message: str) -> None:
    damage(folder)
    with pytest.raises(HardnetError, match=message):
        read_w1bs(folder)


def test_a_whole_side_missing(folder: Path) -> None:
    for path in (folder / "A" / "2").iterdir():
        path.unlink()
    (folder / "A" / "2").rmdir()
    with pytest.raises(HardnetError, match=r"A/2 has no strip a"):
        read_w1bs(folder)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="is not a patch set"):
        read_w1bs(tmp_path)
