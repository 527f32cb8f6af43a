"""The Brown format: what is written is what is read, and damage is named."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import PAIR_FILE, read_brown
from hardnet.patchsets.brown_writer import BrownWriter, draw_pairs


def write(folder: Path, count: int = 300) -> np.ndarray:
    patches = np.random.default_rng(0).integers(0, 256, (count, 64, 64), np.uint8)
    points = np.arange(count) // 3
    with BrownWriter(folder) as writer:
        half = count // 2
        writer.add(patches[:half], points[:half], group=0)
        writer.add(patches[half:], points[half:], group=1)
        writer.finish(pairs=100, seed=0, extra_files={"set.json": "{}"})
    return patches


def test_round_trip_over_two_sheets(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    found = read_brown(tmp_path / "set")
    assert np.array_equal(found.patches, patches)
    assert np.array_equal(found.points, np.arange(300) // 3)
    assert len(found.pairs) == 100
    assert found.pair_labels.sum() == 50


def test_layout_is_sixteen_by_sixteen_in_reading_order(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    sheets = sorted((tmp_path / "set").glob("*.bmp"))
    assert [s.name for s in sheets] == ["patches0000.bmp", "patches0001.bmp"]
    first = cv2.imread(str(sheets[0]), cv2.IMREAD_UNCHANGED)
    assert first.shape == (1024, 1024)
    assert np.array_equal(first[64:128, 128:192], patches[16 + 2])
    last = cv2.imread(str(sheets[1]), cv2.IMREAD_UNCHANGED)
    assert (last[3 * 64 :] == 0).all()  # 300 - 256 = 44 patches fill 2 rows and 12 of the third
    rows = (tmp_path / "set" / "info.txt").read_text().splitlines()
    assert rows[7] == "2 0"


def test_small_patches_are_two_by_two_means(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    small = read_brown(tmp_path / "set", size=32).patches
    means = patches.reshape(300, 32, 2, 32, 2).mean((2, 4))
    assert np.abs(small - means).max() <= 0.5


def test_second_opening_reads_only_the_cache(tmp_path: Path) -> None:
    patches = write(tmp_path / "set")
    read_brown(tmp_path / "set")
    for sheet in (tmp_path / "set").glob("*.bmp"):
        sheet.unlink()
    assert np.array_equal(read_brown(tmp_path / "set").patches, patches)


def test_pairs_are_half_matching_and_negatives_share_the_scene() -> None:
    points = np.arange(600) // 3
    groups = np.arange(600) // 300
    pairs = draw_pairs(points, groups, 1000, seed=1)
    same = points[pairs[:, 0]] == points[pairs[:, 1]]
    assert same.sum() == 500
    assert (pairs[:, 0] != pairs[:, 1]).all()
    assert (groups[pairs[:, 0]] == groups[pairs[:, 1]]).all()
    assert np.array_equal(pairs, draw_pairs(points, groups, 1000, seed=1))


def test_nothing_appears_when_writing_fails(tmp_path: Path) -> None:
    wrong = np.zeros((300, 65, 64), np.uint8)
    with pytest.raises(ValueError, match="broadcast"), BrownWriter(tmp_path / "set") as writer:  # noqa: PT012
        writer.add(np.concatenate([wrong[:, :64], wrong[:, :64]]), np.arange(600), 0)
        writer.add(wrong, np.arange(300), 0)
    assert list(tmp_path.iterdir()) == []


def test_an_existing_set_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path / "set")
    with pytest.raises(HardnetError, match="exists already"):
        BrownWriter(tmp_path / "set")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda s: (s / "info.txt").unlink(), "no info.txt"),
        (lambda s: (s / "info.txt").write_text(""), "is empty"),
        (lambda s: (s / "info.txt").write_text("x 0\n"), "point number"),
        (lambda s: (s / "patches0001.bmp").unlink(), "has 1 sheets"),
        (lambda s: (s / "patches0001.bmp").write_bytes(b"BM123"), r"patches0001\.bmp: expected"),
        (lambda s: (s / PAIR_FILE).write_text("0 0 0 999 7 0\n"), "names patch 999"),
        (lambda s: (s / PAIR_FILE).write_text("0 5 0 1 0 0\n"), "disagree"),
        (lambda s: (s / PAIR_FILE).write_text("0 5\n"), "pair file"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage, message: str) -> None:
    write(tmp_path / "set")
    damage(tmp_path / "set")
    with pytest.raises(HardnetError, match=message):
        read_brown(tmp_path / "set")
    assert not list((tmp_path / "set").glob("cache/*.part"))
