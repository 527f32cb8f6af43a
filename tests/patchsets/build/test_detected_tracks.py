"""Frames detected in photos of a known world are paired where its geometry says, and only there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.frames import from_similarity
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.build.colmap import ColmapReport, ColmapSettings, build_from_colmap
from hardnet.patchsets.build.colmap_model import Model, Scene, read_model
from hardnet.patchsets.build.photos import KINDS
from hardnet.patchsets.build.tracks import (
    NEIGHBOURS,
    NOISE,
    SURE,
    Detected,
    DetectedSettings,
    detect_tracks,
    local_maps,
    partners,
)

SETTINGS = DetectedSettings(keypoints=200, seeds=50, carried=0.3)


def scene_of(wall: Any) -> Scene:
    return Scene("wall", wall.model, wall.images, wall.database)


@pytest.fixture(scope="module")
def model(wall: Any) -> Model:
    return read_model(scene_of(wall))


@pytest.fixture(scope="module")
def found(model: Model) -> Detected:
    rng = np.random.default_rng(0)
    return detect_tracks(model, model.tracks, SETTINGS, 12, 2.0, rng, workers=1)


def test_maps_are_those_of_least_squares_by_a_loop() -> None:
    rng = np.random.default_rng(1)
    source = rng.uniform(0, 200, (60, 2))
    target = source @ np.array([[0.8, 0.3], [-0.4, 1.1]]).T + [30, 5] + rng.normal(0, 0.8, (60, 2))
    frames = from_similarity(rng.uniform(-20, 220, (40, 2)), rng.uniform(1, 5, 40), 0.4)
    maps, good = local_maps(source, target, frames, 1.0)
    for frame, found, is_good in zip(frames.astype(float), maps, good, strict=True):
        place, half = frame[:, 2], np.sqrt(np.linalg.det(frame[:, :2]))
        near = np.argsort(np.linalg.norm(source - place, axis=1))[:NEIGHBOURS]
        design = np.column_stack([source[near] - place, np.ones(NEIGHBOURS)])
        solution, missed, *_ = np.linalg.lstsq(design, target[near], rcond=None)
        assert np.allclose(found, solution.T, atol=1e-5)
        error = np.sqrt(missed.sum() / (2 * NEIGHBOURS - 6))
        spread = np.linalg.inv(design.T @ design)
        # The variance of a mapped place x is (x, 1) spread (x, 1)': at a corner of the frame, the
        # mean over its four corners.
        corners = np.array([[x, y, 1] for x in (-half, half) for y in (-half, half)])
        border = np.mean([corner @ spread @ corner for corner in corners])
        sure = max(error, NOISE) * np.sqrt(border) <= SURE * half
        assert is_good == (error <= 1.0 and sure)
    assert 5 < good.sum() < 35


def test_what_the_points_do_not_tell_is_not_trusted() -> None:
    line = np.column_stack([np.linspace(0, 90, 10), np.full(10, 50.0)])
    frames = from_similarity([[45, 50]], 4.0)
    assert not local_maps(line, line + 3, frames, 2.0)[1].any()
    square = np.random.default_rng(0).uniform(20, 80, (30, 2))
    assert local_maps(square, square + 3, frames, 2.0)[1].all()
    far = from_similarity([[300, 50]], 4.0)
    assert not local_maps(square, square + 3, far, 2.0)[1].any()
    step = square + np.where(square[:, :1] > 45, 25, 0)  # two surfaces at different depths
    assert not local_maps(square, step, frames, 2.0)[1].any()
    mirrored = square * [-1, 1]
    assert not local_maps(square, mirrored, frames, 2.0)[1].any()
    assert not local_maps(square[:7], square[:7], frames, 2.0)[1].any()
    assert local_maps(square, square, frames[:0], 2.0)[0].shape == (0, 2, 3)


def test_partners_share_enough_and_are_near_and_far() -> None:
    seen = [np.arange(n) for n in (100, 19, 20, 90, 60, 70, 80)]
    assert partners(seen, 0, 12) == [3, 6, 5, 4, 2]
    assert partners(seen, 0, 3) == [3, 5, 2]
    assert partners(seen, 1, 12) == []


def test_every_pair_shows_the_same_spot_of_the_wall(model: Model, found: Detected) -> None:
    """All cameras face the wall, so that one depth per photo says where a pixel lies on it."""
    on_wall, size = np.empty((len(found.point), 2)), np.empty(len(found.point))
    half = np.sqrt(np.linalg.det(found.frames[:, :, :2].astype(np.float64)))
    for k, view in enumerate(model.views):
        here = found.view == k
        depth = np.full(here.sum(), view.translation[2])
        on_wall[here] = view.lift(found.frames[here, :, 2].astype(np.float64), depth)[:, :2]
        size[here] = half[here] * view.translation[2] / view.camera.mean_focal_length()
    _, first, group = np.unique(found.point, return_index=True, return_inverse=True)
    home = first[group]
    other = home != np.arange(len(home))
    away = np.linalg.norm(on_wall - on_wall[home], axis=1)[other] / size[home][other]
    assert other.sum() > 100
    assert away.max() < 0.25 + 2 * SURE  # the tolerance, and the error of the map itself
    assert np.median(away) < 0.1
    assert np.abs(np.log2(size / size[home]))[other].max() < 0.7
    assert found.carried[other].any()
    assert not found.carried[~other].any()


def test_a_detection_is_in_one_point_and_a_point_once_in_a_photo(found: Detected) -> None:
    rows = np.column_stack([found.point, found.view])
    assert len(np.unique(rows, axis=0)) == len(rows)
    real = ~found.carried
    places = np.column_stack([found.view, found.kind, found.frames.reshape(-1, 6)])[real]
    assert len(np.unique(places, axis=0)) == len(places)
    for point in np.unique(found.point):
        assert len(np.unique(found.kind[found.point == point])) == 1
    # The photos are turned against each other: upright frames have no counterpart.
    assert set(found.kind) == {KINDS.index("dog"), KINDS.index("hessian-affine")}


@pytest.fixture(scope="module")
def made(wall: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[ColmapReport, Path]:
    """A set of two windows, made by one process."""
    folder = tmp_path_factory.mktemp("made") / "set"
    return build(wall, folder, replace(SETTINGS, windows=(12.0, 24.0)), workers=1), folder


def build(wall: Any, folder: Path, detected: DetectedSettings, workers: int) -> ColmapReport:
    settings = ColmapSettings(pairs=200)
    return build_from_colmap([scene_of(wall)], folder, settings, workers, detected=detected)


def test_a_set_has_its_points_image_by_image(made: tuple[ColmapReport, Path]) -> None:
    report, folder = made
    found = read_brown(folder)
    assert report.points > 30
    assert found.images is not None
    assert set(found.images // 3) == {0, 2, len(KINDS), len(KINDS) + 2}  # kind, of the three photos
    x = found.patches[:].reshape(len(found), -1).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    correlation = (x[found.pairs[:, 0]] * x[found.pairs[:, 1]]).mean(1)
    assert np.median(correlation[found.pair_labels]) > 0.7
    assert np.median(correlation[~found.pair_labels]) < 0.4
    about = json.loads((folder / "set.json").read_text())
    assert about["detections"]["tolerances"]["degrees"] == 25
    assert about["models"][0]["frames"] == "detections"
    assert about["models"][0]["carried"] > 0


def test_windows_of_one_detection_are_different_points(
    wall: Any, made: tuple[ColmapReport, Path], tmp_path: Path
) -> None:
    build(wall, tmp_path / "set", SETTINGS, workers=1)
    one, two = read_brown(tmp_path / "set"), read_brown(made[1])
    assert two.images is not None
    assert np.array_equal(two.patches[: len(one)], one.patches[:])
    assert np.array_equal(two.points[: len(one)], one.points)
    wide = slice(len(one), None)
    assert len(np.unique(two.points[wide])) > 10
    assert two.points[wide].min() == one.points.max() + 1
    assert set(two.images[wide] // 3) <= {len(KINDS), len(KINDS) + 2}


@pytest.mark.slow
def test_the_same_bytes_whatever_the_number_of_processes(
    wall: Any, made: tuple[ColmapReport, Path], tmp_path: Path
) -> None:
    build(wall, tmp_path / "set", replace(SETTINGS, windows=(12.0, 24.0)), workers=2)
    for file in made[1].iterdir():
        assert file.read_bytes() == (tmp_path / "set" / file.name).read_bytes()
