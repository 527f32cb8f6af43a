"""Patches of a COLMAP model: on a rendered world they must agree pixel by pixel."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.errors import HardnetError, silent
from hardnet.frames import from_similarity
from hardnet.interop.colmap.mapping import find_models
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.build.colmap import (
    ColmapReport,
    ColmapSettings,
    build_from_colmap,
    choose_patches,
    level,
)
from hardnet.patchsets.build.colmap_model import (
    Model,
    Scene,
    Tracks,
    find_database,
    read_model,
    read_photo,
)
from hardnet.patchsets.build.tracks import (
    carried_frames,
    choose_points,
    database_frames,
    drop_twins,
    farthest,
    long_enough,
    nearest,
    references,
    similar,
)

SETTINGS = ColmapSettings(pairs=200)


def scene_of(wall: Any, database: bool = True) -> Scene:
    return Scene("wall", wall.model, wall.images, wall.database if database else None)


def tree(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.is_file()}


def disagreement(folder: Path) -> tuple[float, float]:
    """Mean grey difference of matching and of non-matching patches."""
    found = read_brown(folder)
    a, b = (found.patches[found.pairs[:, side]].astype(float) for side in (0, 1))
    difference = np.abs(a - b).mean((1, 2))
    return difference[found.pair_labels].mean(), difference[~found.pair_labels].mean()


@pytest.fixture(scope="module")
def model(wall: Any) -> Model:
    return read_model(scene_of(wall))


@pytest.fixture(scope="module")
def made(wall: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[ColmapReport, Path]:
    """A set of the wall, with the frames of the database."""
    before, output = wall.database.read_bytes(), tmp_path_factory.mktemp("made") / "set"
    report = build_from_colmap([scene_of(wall)], output, SETTINGS, 1)
    assert wall.database.read_bytes() == before  # it is only read
    assert [p.name for p in wall.database.parent.glob("database*")] == ["database.db"]
    return report, output


def check(report: ColmapReport, folder: Path, frames: str, most: float) -> None:
    assert report.models[0]["frames"] == frames
    assert report.points > 20
    assert report.patches > 2.5 * report.points
    same, other = disagreement(folder)
    assert same < most  # resampling alone; half a pixel or a degree shows
    assert other > 25


def test_patches_of_a_point_agree_pixel_by_pixel(made: tuple[ColmapReport, Path]) -> None:
    check(*made, "database", 2.5)


def test_keypoints_without_scale_are_carried_instead(wall: Any, tmp_path: Path) -> None:
    plain = tmp_path / "plain.db"
    with pycolmap.Database.open(plain) as database:
        lens = pycolmap.Camera.create_from_model_name(1, "PINHOLE", 9, 9, 9)
        number = database.write_camera(lens)
        for k, frames in enumerate(wall.frames):
            image = database.write_image(pycolmap.Image(name=f"{k}.png", camera_id=number))
            database.write_keypoints(image, (frames[:, :, 2] + 0.5).astype(np.float32))
    scene = replace(scene_of(wall), database=plain)
    report = build_from_colmap([scene], tmp_path / "set", SETTINGS, 1)
    check(report, tmp_path / "set", "geometry", 3.5)


def test_half_a_pixel_is_noticed(
    wall: Any, made: tuple[ColmapReport, Path], tmp_path: Path
) -> None:
    """The tests above can fail: COLMAP's own pixels taken for ours give a worse agreement."""
    shifted = tmp_path / "shifted"
    shifted.mkdir()
    for k in range(3):
        image = cv2.imread(str(wall.images / f"{k}.png"), cv2.IMREAD_GRAYSCALE)
        moved = cv2.warpAffine(image, np.array([[1, 0, 0.5], [0, 1, 0.5]]), image.shape[::-1])
        cv2.imwrite(str(shifted / f"{k}.png"), moved)
    build_from_colmap([replace(scene_of(wall), images=shifted)], tmp_path / "wrong", SETTINGS, 1)
    assert disagreement(tmp_path / "wrong")[0] > 1.3 * disagreement(made[1])[0]


def test_frames_of_both_ways_are_the_true_ones(wall: Any, model: Model) -> None:
    tracks = model.tracks
    assert len(tracks) == wall.frames.shape[0] * wall.frames.shape[1]
    assert tracks.error.max() < 1e-3
    true = wall.frames[tracks.view, tracks.keypoint]
    np.testing.assert_allclose(database_frames(model, tracks, 12.0), true, atol=0.01)
    reference = references(model, tracks)
    # Distances 600, 700 and 520 from the wall: the first camera sees at the median size.
    assert (tracks.view[reference] == 0).all()
    for affine in (False, True):
        carried = carried_frames(model, tracks, reference, 12.0, affine, workers=1)
        good = np.isfinite(carried).all((1, 2))
        assert good.mean() > 0.5
        # The detector finds the frame of the reference again, not exactly: compare the maps
        # from the reference to the others.
        home = reference[good]
        expected = true[good, :, :2] @ np.linalg.inv(true[home, :, :2])
        actual = carried[good, :, :2] @ np.linalg.inv(carried[home, :, :2].astype(np.float64))
        np.testing.assert_allclose(actual, expected, atol=0.05)
        np.testing.assert_allclose(carried[good, :, 2], tracks.xy[good], atol=1e-3)


@pytest.mark.slow
def test_the_same_bytes_whatever_the_number_of_processes(wall: Any, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        build_from_colmap([scene_of(wall, False)], tmp_path / name, SETTINGS, workers)
    assert tree(tmp_path / "one") == tree(tmp_path / "two")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one", "two"]  # no scratch is left


def test_what_is_written(made: tuple[ColmapReport, Path]) -> None:
    report, folder = made
    found = read_brown(folder)
    assert len(found) == report.patches
    assert (np.diff(found.points) >= 0).all()
    assert len(np.unique(found.points)) == report.points
    interest = np.loadtxt(folder / "interest.txt")
    assert interest.shape == (report.patches, 5)
    assert (interest[:, 0] == 0).all()
    about = json.loads((folder / "set.json").read_text())
    counts = about["models"][0]
    lost = sum(v for k, v in counts.items() if k.startswith(("without", "whole", "on top")))
    assert counts["in the model"] == counts["points"] + lost


def test_a_photo_is_used_by_one_model_only_and_ids_are_disjoint(
    wall: Any, made: tuple[ColmapReport, Path], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(wall.images, copy)
    scenes = [scene_of(wall), scene_of(wall), replace(scene_of(wall), images=copy)]
    report = build_from_colmap(scenes, tmp_path / "set", SETTINGS, 1)
    once = made[0]
    assert [model["points"] for model in report.models] == [once.points, 0, once.points]
    assert (report.points, report.patches) == (2 * once.points, 2 * once.patches)
    assert len(np.unique(read_brown(tmp_path / "set").points)) == report.points


def test_noise_disturbs_every_frame_and_follows_the_seed(
    wall: Any, model: Model, tmp_path: Path
) -> None:
    def chosen(**changes: float) -> np.ndarray:
        return choose_patches(model, replace(SETTINGS, **changes), 1, set(), silent)[0].frames

    noisy = chosen(noise=2.0)
    assert (noisy != chosen()).any((1, 2)).all()
    assert np.array_equal(noisy, chosen(noise=2.0))
    assert not np.array_equal(noisy, chosen(noise=2.0, seed=1))
    build_from_colmap([scene_of(wall)], tmp_path / "set", replace(SETTINGS, noise=2.0), 1)
    assert disagreement(tmp_path / "set")[0] > 8


def test_limits_of_points_and_tracks(model: Model) -> None:
    settings = replace(SETTINGS, points=7, max_track=2)
    chosen, _ = choose_patches(model, settings, 1, set(), silent)
    assert np.unique(chosen.point, return_counts=True)[1].tolist() == [2] * 7


def test_what_is_turned_is_not_level(model: Model) -> None:
    """The photos of the wall are all turned against each other, so that nothing is left."""
    settings = ColmapSettings(upright=True)
    assert not len(choose_patches(model, settings, 1, set(), silent)[0].frames)
    frames = from_similarity(np.zeros((4, 2)), 2.0, np.deg2rad([170, -170, -164, 10]))
    assert level(frames, np.array([0, 0, 0, 0])).tolist() == [True, True, False, False]


def test_twins_go_and_the_longer_track_stays() -> None:
    point = np.array([0, 0, 1, 1, 1, 2, 2])
    view = np.array([0, 1, 0, 1, 2, 0, 1])
    xy = np.array([[50, 50], [60, 50], [51, 50], [61, 50], [70, 70], [200, 50], [200, 50]], float)
    tracks = Tracks(point, view, np.arange(7), xy, np.zeros(7), np.ones(7))
    kept = drop_twins(tracks, from_similarity(xy, 3.0))
    assert kept.tolist() == [False, False, True, True, True, True, True]
    assert choose_points(tracks, 1).tolist() == [False, False, True, True, True, False, False]
    assert long_enough(point, 3).tolist() == [False, False, True, True, True, False, False]


def test_spread_takes_the_middle_and_the_ends() -> None:
    angle = np.deg2rad([0, 5, 10, 15, 20, 25, 40])
    directions = np.column_stack([np.sin(angle), np.zeros(7), np.cos(angle)]) * 3
    chosen = farthest(directions, 3)
    assert sorted(chosen.tolist()) == [0, 3, 6]


def test_the_nearest_of_equals_is_the_first() -> None:
    others = np.array([[9, 9], [5, 5], [5, 5], [6, 5]], np.float32)
    index, distance = nearest(np.array([[5.2, 5.0], [30.0, 5.0]]), others)
    assert index[0] == 1
    assert distance[0] == pytest.approx(0.2)
    assert distance[1] == np.inf


def test_the_similar_matrix_keeps_area_and_turn() -> None:
    turn = np.array([[0, -1], [1, 0]]) @ np.diag([4.0, 1.0])  # stretched, then a quarter turn
    np.testing.assert_allclose(similar(turn[None])[0], [[0, -2], [2, 0]], atol=1e-9)


def test_a_turned_photo_is_read_as_colmap_reads_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="writes the EXIF entry")
    exif = image.Exif()
    exif[0x0112] = 6
    image.fromarray(np.zeros((40, 60), np.uint8)).save(tmp_path / "a.jpg", exif=exif)
    assert read_photo(tmp_path / "a.jpg", (60, 40)).shape == (40, 60)


def test_errors_name_what_is_wrong(wall: Any, tmp_path: Path) -> None:
    def build(scene: Scene) -> None:
        build_from_colmap([scene], tmp_path / "set", SETTINGS, 1)

    scene = scene_of(wall)
    with pytest.raises(HardnetError, match="is not a COLMAP model"):
        build(replace(scene, model=tmp_path))
    with pytest.raises(HardnetError, match=r"lacks 0.png \(and 2 others\)"):
        build(replace(scene, images=tmp_path))
    small = tmp_path / "small"
    small.mkdir()
    for k in range(3):
        cv2.imwrite(str(small / f"{k}.png"), np.zeros((50, 60), np.uint8))
    with pytest.raises(HardnetError, match=r"0.png is 60x50 pixels.*560x520"):
        build(replace(scene, images=small))
    other = tmp_path / "other.db"
    with pycolmap.Database.open(other) as database:
        number = database.write_camera(
            pycolmap.Camera.create_from_model_name(1, "PINHOLE", 9, 9, 9)
        )
        image = database.write_image(pycolmap.Image(name="0.png", camera_id=number))
        database.write_keypoints(image, np.zeros((3, 6), np.float32))
    with pytest.raises(HardnetError, match=r"other\.db: other keypoints"):
        build(replace(scene, database=other))
    (tmp_path / "text.db").write_text("this is not a database" * 100)
    with pytest.raises(HardnetError, match=r"text\.db cannot be read as a COLMAP database"):
        build(replace(scene, database=tmp_path / "text.db"))
    broken = tmp_path / "broken"
    shutil.copytree(wall.model, broken)
    (broken / "images.bin").write_bytes(b"x")
    with pytest.raises(HardnetError, match="broken"):
        build(replace(scene, model=broken))
    (tmp_path / "set").mkdir()
    with pytest.raises(HardnetError, match="exists already"):
        build(scene)
    assert not (tmp_path / "set.part").exists()


def test_models_and_databases_are_found(wall: Any, tmp_path: Path) -> None:
    for name in ("0", "2", "10"):
        shutil.copytree(wall.model, tmp_path / "sparse" / name)
    assert [p.name for p in find_models(tmp_path / "sparse")] == ["0", "2", "10"]
    assert find_models(wall.model) == [wall.model]
    assert find_database(tmp_path / "sparse" / "0", tmp_path / "images") is None
    shutil.copy(wall.database, tmp_path / "database.db")
    found = find_database(tmp_path / "sparse" / "0", Path("/nowhere/images"))
    assert found == (tmp_path / "database.db").resolve()


@pytest.mark.slow
@pytest.mark.parametrize("upright", [False, True])
def test_real_photos_of_a_door(data: Path, tmp_path: Path, upright: bool) -> None:
    """Three of the photos, frames by geometry: matching patches correlate, others do not."""
    source = data / "sfm" / "lund-door"
    model = pycolmap.Reconstruction(str(source / "colmap_ground_truth"))
    for number in sorted(model.reg_image_ids())[3:]:
        model.deregister_frame(model.image(number).frame_id)
    (tmp_path / "model").mkdir()
    model.write(tmp_path / "model")
    scene = Scene("door", tmp_path / "model", source / "images")
    settings = ColmapSettings(points=300, pairs=1000, upright=upright)
    report = build_from_colmap([scene], tmp_path / "set", settings, 2)
    interest = np.loadtxt(tmp_path / "set" / "interest.txt")
    assert (interest[:, 3] == 0).all() == upright
    assert report.points > 200
    found = read_brown(tmp_path / "set", size=32)
    x = found.patches.reshape(len(found), -1).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    correlation = (x[found.pairs[:, 0]] * x[found.pairs[:, 1]]).mean(1)
    assert np.median(correlation[found.pair_labels]) > 0.8
    assert abs(np.median(correlation[~found.pair_labels])) < 0.2
