"""Reconstruction of real photos: models, resuming, scenes that fail."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.build.colmap import ColmapSettings, build_from_colmap
from hardnet.patchsets.build.colmap_model import (
    SfmReport,
    SfmSettings,
    find_photo_folders,
    read_model,
    reconstruct,
)

SETTINGS = SfmSettings(max_size=700)


@pytest.fixture(scope="module")
def album(tmp_path_factory: pytest.TempPathFactory, data: Path, photos: Path) -> Path:
    """A chair seen five times, three pictures that have nothing in common, and a single one."""
    folder = tmp_path_factory.mktemp("album")
    for name in ("chair", "mixed", "single"):
        (folder / name).mkdir()
    for photo in sorted((data / "multiview" / "chair").glob("*.jpg"))[:5]:
        shutil.copy(photo, folder / "chair")
    for name in ("camera.png", "coffee.png", "rocket.jpg"):
        shutil.copy(photos / name, folder / "mixed")
    shutil.copy(photos / "camera.png", folder / "single")
    return folder


@pytest.fixture(scope="module")
def report(album: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[SfmReport, Path]:
    work = tmp_path_factory.mktemp("work") / "sfm"
    return reconstruct(album, work, SETTINGS), work


def test_scenes_are_reconstructed_or_named(report: tuple[SfmReport, Path]) -> None:
    found, _ = report
    assert [scene.name for scene in found.scenes] == ["chair"]
    model = read_model(found.scenes[0])
    assert len(model.views) >= 3
    assert len(model.xyz) > 100
    assert np.median(model.tracks.error) < 1
    assert sorted(found.failed) == ["mixed", "single"]
    assert "1 photo;" in found.failed["single"]
    assert "no two photos" in found.failed["mixed"]


def test_a_second_run_repeats_nothing_and_other_photos_are_noticed(
    album: Path, report: tuple[SfmReport, Path], tmp_path: Path
) -> None:
    found, work = report
    before = {p: p.stat().st_mtime_ns for p in work.rglob("*.bin")}
    steps: list[str] = []
    again = reconstruct(album, work, SETTINGS, lambda what, done, total: steps.append(what))
    assert again == found
    assert {p: p.stat().st_mtime_ns for p in work.rglob("*.bin")} == before
    assert steps[:3] == ["chair: features", "chair: matches", "chair: models"]
    with pytest.raises(HardnetError, match="was made with"):
        reconstruct(album, work, SfmSettings(max_size=400))
    (tmp_path / "chair").mkdir()
    (tmp_path / "chair" / "mine.txt").write_text("not yours")
    with pytest.raises(HardnetError, match="is in the way"):
        reconstruct(album, tmp_path, SfmSettings())


@pytest.mark.slow
def test_the_same_model_every_time(
    album: Path, report: tuple[SfmReport, Path], tmp_path: Path
) -> None:
    again = reconstruct(album / "chair", tmp_path, SETTINGS)
    one, two = (read_model(scenes[0]) for scenes in (report[0].scenes, again.scenes))
    np.testing.assert_array_equal(one.xyz, two.xyz)


def test_a_set_of_the_reconstruction(report: tuple[SfmReport, Path], tmp_path: Path) -> None:
    settings = ColmapSettings(pairs=500)
    made = build_from_colmap(report[0].scenes, tmp_path / "set", settings, 1)
    assert made.models[0]["frames"] == "database"
    found = read_brown(tmp_path / "set", size=32)
    x = found.patches.reshape(len(found), -1).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    correlation = (x[found.pairs[:, 0]] * x[found.pairs[:, 1]]).mean(1)
    assert np.median(correlation[found.pair_labels]) > 0.8
    assert np.median(correlation[~found.pair_labels]) < 0.5  # the slats of a chair are alike


def test_nothing_to_reconstruct(album: Path, tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match=r"nothing could be reconstructed.*single: 1 photo"):
        reconstruct(album / "single", tmp_path, SfmSettings())
    (tmp_path / "empty").mkdir()
    with pytest.raises(HardnetError, match="contains no image"):
        reconstruct(tmp_path / "empty", tmp_path / "work", SfmSettings())


def test_a_folder_with_photos_is_a_scene(album: Path) -> None:
    assert list(find_photo_folders(album)) == ["chair", "mixed", "single"]
    assert list(find_photo_folders(album / "chair")) == ["chair"]


@pytest.mark.slow
def test_all_cameras_at_once_give_the_same_scene(
    album: Path, report: tuple[SfmReport, Path], tmp_path: Path
) -> None:
    found = reconstruct(album / "chair", tmp_path / "work", replace(SETTINGS, mapper="global"))
    whole, one = read_model(found.scenes[0]), read_model(report[0].scenes[0])
    assert len(whole.views) >= len(one.views)
    assert len(whole.xyz) > 0.5 * len(one.xyz)  # it keeps points that three photos see
    assert np.median(whole.tracks.error) < 1
    again = reconstruct(album / "chair", tmp_path / "again", replace(SETTINGS, mapper="global"))
    np.testing.assert_array_equal(read_model(again.scenes[0]).xyz, whole.xyz)
    with pytest.raises(HardnetError, match="was made with"):
        reconstruct(album / "chair", tmp_path / "work", SETTINGS)
