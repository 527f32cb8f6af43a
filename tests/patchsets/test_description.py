"""Numbers of a set agree with counting by hand."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.brown_writer import BrownWriter
from hardnet.patchsets.description import Part, SplitSize, describe, grey_values
from hardnet.patchsets.hpatches import TAGS
from hardnet.provenance import data_digest


def test_brown(tmp_path: Path, camera: np.ndarray) -> None:
    patches = np.stack([camera[i : i + 64, i : i + 64] for i in range(300)])
    patches[::10] = 77  # nothing to see on every tenth
    points = np.concatenate([[0, 0, 0, 0], np.arange(296) // 2 + 1])
    with BrownWriter(tmp_path / "set") as writer:
        writer.add(patches, points, group=0)
        writer.finish(pairs=21, seed=0, extra_files={})
    found = describe(tmp_path / "set")
    contents = found.contents
    assert (contents.kind, contents.name) == ("brown", "set")
    assert (contents.patches, contents.points) == (300, 149)
    assert contents.per_point == (2, 2.0, 4)
    assert (contents.positive_pairs, contents.negative_pairs) == (10, 11)
    assert contents.sides == (64,)
    assert found.grey.patches == 300  # all of a small set; the padding of its last sheet is not
    assert found.grey.mean == pytest.approx(patches.mean())
    assert found.grey.std == pytest.approx(patches.std())
    low = [patch.std() < 10 for patch in patches]
    assert 30 <= sum(low) < 300
    assert found.grey.low_contrast == pytest.approx(np.mean(low))
    assert found.cache == {}
    assert found.fingerprint == data_digest(tmp_path / "set").sha256
    files = [p for p in (tmp_path / "set").iterdir() if p.is_file()]
    assert found.bytes == sum(len(p.read_bytes()) for p in files)
    read_brown(tmp_path / "set", 32)
    (size,) = describe(tmp_path / "set").cache.values()
    assert size == 128 + 300 * 32 * 32


def test_brown_names_a_bad_sheet_even_outside_the_sample(tmp_path: Path) -> None:
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
    contents = describe(tmp_path / "hp").contents
    assert (contents.kind, contents.patches, contents.points) == ("hpatches", 80, 5)
    assert contents.per_point == (16, 16, 16)
    assert contents.parts == (
        Part("i_y", "illumination", 2, 32),
        Part("v_x", "viewpoint", 3, 48),
    )
    assert contents.splits[0] == SplitSize("a", 1, 2, 1)
    assert [split.name for split in contents.splits] == ["a", "full", "view", "illum"]


def test_w1bs(tmp_path: Path, camera: np.ndarray) -> None:
    for name, side, count in (("A/{}/x", 32, 4), ("S/{}/y", 65, 2)):
        for k in "12":
            path = tmp_path / "w" / f"{name.format(k)}.bmp"
            path.parent.mkdir(parents=True)
            cv2.imwrite(str(path), camera[: side * count, :side])
    found = describe(tmp_path / "w")
    assert (found.contents.kind, found.contents.patches, found.contents.points) == ("w1bs", 12, 6)
    assert found.contents.sides == (32, 65)
    assert found.contents.parts == (Part("x", "A", 4, 8), Part("y", "S", 2, 4))
    assert found.grey.patches == 12


def test_one_real_strip(data: Path) -> None:
    found = describe(data / "hpatches-strip" / "ref.png")
    assert (found.contents.kind, found.contents.patches) == ("strip", 1123)
    assert found.grey.patches == 1123
    assert found.bytes == (data / "hpatches-strip" / "ref.png").stat().st_size


def test_grey_values_of_arrays_of_different_sides() -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.integers(0, 256, (3, 5, 5), np.uint8), rng.integers(95, 106, (2, 9, 9), np.uint8)]
    grey = grey_values(arrays)
    values = np.concatenate([a.ravel() for a in arrays]).astype(float)
    assert grey.patches == 5
    assert grey.mean == pytest.approx(values.mean())
    assert grey.std == pytest.approx(values.std())
    assert grey.low_contrast == 2 / 5
