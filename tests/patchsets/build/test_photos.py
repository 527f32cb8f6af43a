"""A patch set from real photographs: correct correspondence, reproducible, robust to bad files."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.detectors import dog
from hardnet.errors import HardnetError
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.build.choice import inside
from hardnet.patchsets.build.photos import (
    PhotoSettings,
    PhotosReport,
    build_from_photos,
    choose_frames,
    cut_photo,
)

SETTINGS = PhotoSettings(points=60, views=3, max_size=400, pairs=200, seed=5)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory, photos: Path) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for name in ("astronaut.png", "coffee.png", "rocket.jpg"):
        shutil.copy(photos / name, folder / name)
    (folder / "broken.jpg").write_bytes(b"this is not a picture")
    (folder / "empty.png").write_bytes(b"")
    cv2.imwrite(str(folder / "tiny.png"), np.zeros((5, 5), np.uint8))
    return folder


@pytest.fixture(scope="module")
def made(album: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[PhotosReport, Path]:
    """A set of the album, made by one process."""
    folder = tmp_path_factory.mktemp("made") / "set"
    return build_from_photos([album], folder, SETTINGS, workers=1), folder


def test_byte_for_byte_and_whatever_the_number_of_workers(
    album: Path, made: tuple[PhotosReport, Path], tmp_path: Path
) -> None:
    one, folder = made
    assert build_from_photos([album], tmp_path / "two", SETTINGS, workers=2) == one
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()}
    assert one.skipped == ("broken.jpg", "empty.png", "tiny.png")
    assert one.photos == 3
    found = read_brown(folder)
    assert len(found) == one.patches > 3 * 60
    assert len(np.unique(found.points)) == one.points
    assert (np.bincount(found.points) >= 2).all()


def test_patches_of_a_point_look_alike(made: tuple[PhotosReport, Path]) -> None:
    """Matching patches correlate, others do not: fails if frames or views get out of step."""
    found = read_brown(made[1], size=32)
    x = found.patches.reshape(len(found), -1).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    correlation = (x[found.pairs[:, 0]] * x[found.pairs[:, 1]]).mean(1)
    assert np.median(correlation[found.pair_labels]) > 0.5
    # The set is small and has few pairs; of patches drawn from all of it there are enough.
    a, b = np.random.default_rng(0).integers(0, len(found), (2, 5000))
    other = found.points[a] != found.points[b]
    assert abs(np.median((x[a[other]] * x[b[other]]).mean(1))) < 0.2


def test_a_photo_depends_on_its_name_and_the_seed_alone(
    album: Path, made: tuple[PhotosReport, Path]
) -> None:
    """The first photo of the set, cut without its neighbours."""
    alone = cut_photo((album / "astronaut.png", "astronaut.png"), SETTINGS)
    assert alone is not None
    assert np.array_equal(read_brown(made[1]).patches[: len(alone)], alone.patches)
    settings = replace(SETTINGS, seed=6)
    other = cut_photo((album / "astronaut.png", "astronaut.png"), settings)
    assert other is not None
    assert not np.array_equal(alone.patches[:100], other.patches[:100])


def test_detected_frames_are_inside_and_apart(album: Path) -> None:
    image = cv2.imread(str(album / "astronaut.png"), cv2.IMREAD_GRAYSCALE)
    frames = choose_frames(image, dog.detect(image, 1200)[0], 600, 150, np.random.default_rng(0))
    assert 100 < len(frames) <= 150
    assert inside(frames, 512, 512).all()
    half = np.sqrt(np.abs(np.linalg.det(frames[:, :, :2])))
    for i in range(len(frames)):
        for j in range(i):
            close = np.abs(frames[i, :, 2] - frames[j, :, 2]).max() < 0.25 * min(half[i], half[j])
            like = abs(np.log2(half[i] / half[j])) < 0.5
            turn = frames[i, :, 0] @ frames[j, :, 0] / (half[i] * half[j]) > np.cos(np.deg2rad(40))
            assert not (close and like and turn)


def test_folder_without_images(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="contains no image"):
        build_from_photos([tmp_path], tmp_path / "set", SETTINGS, workers=1)
    with pytest.raises(HardnetError, match="is not a folder"):
        build_from_photos([tmp_path / "none"], tmp_path / "set", SETTINGS, workers=1)
    (tmp_path / "bad.jpg").write_bytes(b"x")
    with pytest.raises(HardnetError, match="no patch was produced"):
        build_from_photos([tmp_path], tmp_path / "set", SETTINGS, workers=1)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["bad.jpg"]
