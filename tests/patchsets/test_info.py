"""Numbers of a set agree with counting by hand; a row of the picture shows one point."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import BrownWriter, open_brown, read_brown
from hardnet.patchsets.hpatches import TAGS, read_hpatches
from hardnet.patchsets.info import (
    Part,
    Row,
    SplitSize,
    describe,
    draw_rows,
    matching_rows,
)
from hardnet.patchsets.w1bs import read_w1bs
from hardnet.provenance import data_digest

POINTS = np.repeat([5, 7, 9, 11], [1, 2, 3, 12])


def test_brown(tmp_path: Path, camera: np.ndarray) -> None:
    patches = np.stack([camera[i : i + 64, i : i + 64] for i in range(300)])
    points = np.concatenate([[0, 0, 0, 0], np.arange(296) // 2 + 1])
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(patches, points, group=0)
        writer.finish(pairs=21, seed=0, extra_files={})
    found = describe(tmp_path / "set")
    assert (found.kind, found.name) == ("brown", "set")
    assert (found.patches, found.points) == (300, 149)
    assert found.per_point == (2, 2.0, 4)
    assert (found.positive_pairs, found.negative_pairs) == (10, 11)
    assert found.sides == (64,)
    assert found.cache == {}
    assert found.digest == data_digest(tmp_path / "set").sha256
    files = [p for p in (tmp_path / "set").iterdir() if p.is_file()]
    assert found.bytes == sum(len(p.read_bytes()) for p in files)
    read_brown(tmp_path / "set", 32)
    (size,) = describe(tmp_path / "set").cache.values()
    assert size == 128 + 300 * 32 * 32


def test_brown_names_a_bad_sheet(tmp_path: Path) -> None:
    patches = np.zeros((300, 64, 64), np.uint8)
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(patches, np.arange(300) // 2, group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    cv2.imwrite(str(tmp_path / "set" / "patches0001.bmp"), np.zeros((512, 512), np.uint8))
    with pytest.raises(HardnetError, match=r"patches0001\.bmp is 512 x 512"):
        describe(tmp_path / "set")


def test_hpatches(tmp_path: Path, camera: np.ndarray) -> None:
    for name, count in {"v_x": 3, "i_y": 2}.items():
        (tmp_path / "hp" / name).mkdir(parents=True)
        for k, tag in enumerate(TAGS):
            strip = camera[k : k + 65 * count, :65]
            cv2.imwrite(str(tmp_path / "hp" / name / f"{tag}.png"), strip)
    text = '{"a": {"test": ["v_x"], "train": ["i_y", "v_z"]}}'
    (tmp_path / "hp" / "splits.json").write_text(text)
    found = describe(tmp_path / "hp")
    assert (found.kind, found.patches, found.points) == ("hpatches", 80, 5)
    assert found.per_point == (16, 16, 16)
    assert found.parts == (
        Part("i_y", "illumination", 2, 32),
        Part("v_x", "viewpoint", 3, 48),
    )
    assert found.splits[0] == SplitSize("a", 1, 2, 1)
    assert [split.name for split in found.splits] == ["a", "full", "view", "illum"]


def test_w1bs(tmp_path: Path, camera: np.ndarray) -> None:
    for name, side, count in (("A/{}/x", 32, 4), ("S/{}/y", 65, 2)):
        for k in "12":
            path = tmp_path / "w" / f"{name.format(k)}.bmp"
            path.parent.mkdir(parents=True)
            cv2.imwrite(str(path), camera[: side * count, :side])
    found = describe(tmp_path / "w")
    assert (found.kind, found.patches, found.points) == ("w1bs", 12, 6)
    assert found.sides == (32, 65)
    assert found.parts == (Part("x", "A", 4, 8), Part("y", "S", 2, 4))


@pytest.fixture
def brown(tmp_path: Path, camera: np.ndarray) -> Path:
    """Patch k is cut at row k of a photograph; point 5 has a single patch, point 11 has 12."""
    patches = np.stack([camera[i : i + 64, :64] for i in range(len(POINTS))])
    order = np.random.default_rng(0).permutation(len(POINTS))
    with BrownWriter(tmp_path / "brown") as writer:
        writer.add(patches[order], POINTS[order], group=0)
        writer.finish(pairs=4, seed=0, extra_files={})
    return tmp_path / "brown"


def test_brown_rows_are_points_with_several_patches(brown: Path, camera: np.ndarray) -> None:
    rows, headings = matching_rows(open_brown(brown), points=16)
    assert headings == ()
    assert [row.label for row in rows] == ["point 7", "point 9", "point 11"]
    assert [len(row.patches) for row in rows] == [2, 3, 8]
    expected = {camera[i : i + 64, :64].tobytes() for i in np.flatnonzero(POINTS == 9)}
    assert {patch.tobytes() for patch in rows[1].patches} == expected


def test_rows_depend_on_the_seed_alone(brown: Path) -> None:
    draws = [matching_rows(open_brown(brown), 1, seed)[0][0].label for seed in range(12)]
    assert draws == [matching_rows(open_brown(brown), 1, seed)[0][0].label for seed in range(12)]
    assert len(set(draws)) == 3


def test_hpatches_rows_have_sixteen_patches_of_one_index(
    tmp_path: Path, camera: np.ndarray
) -> None:
    for name, count in {"v_x": 3, "i_y": 1}.items():
        (tmp_path / name).mkdir()
        for k, tag in enumerate(TAGS):
            cv2.imwrite(str(tmp_path / name / f"{tag}.png"), camera[k : k + 65 * count, :65])
    rows, headings = matching_rows(read_hpatches(tmp_path), points=8)
    assert headings == TAGS
    assert [row.label for row in rows] == ["i_y 0", "v_x 0", "v_x 1", "v_x 2"]
    for k in range(16):
        assert np.array_equal(rows[2].patches[k], camera[k + 65 : k + 130, :65])
    assert len(matching_rows(read_hpatches(tmp_path), points=1)[0]) == 1


def test_w1bs_rows_show_every_subset(tmp_path: Path, camera: np.ndarray) -> None:
    for k, name in enumerate(("A/1/x", "A/2/x", "A/1/y", "A/2/y", "S/1/z", "S/2/z")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / f"{name}.bmp"), camera[k : k + 320, :32])
    rows, headings = matching_rows(read_w1bs(tmp_path), points=4)
    assert headings == ("1", "2")
    assert {row.label.split("/")[0] for row in rows} == {"A", "S"}
    (row,) = (row for row in rows[-1:] if row.label.startswith("S/z"))
    i = int(row.label.split()[1])
    assert np.array_equal(row.patches[0], camera[4 + 32 * i : 36 + 32 * i, :32])
    assert np.array_equal(row.patches[1], camera[5 + 32 * i : 37 + 32 * i, :32])


def test_cells_lie_where_they_should_and_gaps_are_white() -> None:
    rows = [
        Row("", [np.full((65, 65), 10, np.uint8), np.full((65, 65), 20, np.uint8)]),
        Row("", [np.full((32, 32), 30, np.uint8)]),
    ]
    picture = draw_rows(rows)
    left = picture.shape[1] - 2 * 67  # the labels' part; how wide no text is differs by OpenCV
    assert picture.shape[0] == 2 + 2 * 67
    assert 12 <= left - 2 <= 14
    assert (picture[2:67, left : left + 65] == 10).all()
    assert (picture[2:67, left + 67 : left + 132] == 20).all()
    assert (picture[69:134, left : left + 65] == 30).all()
    assert (picture[69:134, left + 65 :] == 255).all()
    assert (picture[67:69] == 255).all()
    assert (picture[:, left + 65 : left + 67] == 255).all()
    assert picture.dtype == np.uint8


def test_labels_and_headings_are_written_outside_the_patches() -> None:
    rows = [Row("point 123456789", [np.full((65, 65), 200, np.uint8)])]
    plain = draw_rows(rows)
    headed = draw_rows(rows, ["ref"])
    assert headed.shape[0] == plain.shape[0] + 16
    assert headed[:16].min() < 100
    left = plain.shape[1] - 2 - 67
    assert plain[:, :left].min() < 100
    assert (plain[2:67, left + 2 : left + 67] == 200).all()
