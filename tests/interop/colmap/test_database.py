"""A COLMAP database of hand-written features, read back by pycolmap; and a model of it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.bench.metrics import align, rotation_angle
from hardnet.bench.sfm import read_poses
from hardnet.errors import HardnetError
from hardnet.images import read_image
from hardnet.interop.colmap import CameraSettings, write_database
from hardnet.interop.colmap.database import stored_size, turn_frames
from hardnet.interop.colmap.mapping import MapperSettings, build_models
from hardnet.interop.colmap.reconstruction import database_report
from hardnet.patchsets.build.colmap_model import open_database, read_keypoints

from .conftest import (
    KnownScene,
    make_features,
    make_matches,
    upright_frames,
    write_photo,
)

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")


def test_keypoints_are_half_a_pixel_farther_and_carry_their_shape(tmp_path: Path) -> None:
    write_photo(tmp_path / "photos" / "sub" / "é 1.jpg", (64, 48))
    write_photo(tmp_path / "photos" / "turned.jpg", (64, 48), orientation=6)
    frames = np.array([[[6.0, -3, 10], [12, 18, 20.25]], [[0, -6, 0], [6, 0, 0]]])
    features = {
        "sub/é 1.jpg": make_features(frames, (64, 48)),
        "turned.jpg": make_features(frames[:1], (48, 64)),
    }
    path = tmp_path / "database.db"
    assert write_database(path, tmp_path / "photos", features, {}) == {}
    with open_database(path) as database:
        plain = read_keypoints(database, "sub/é 1.jpg")
        turned = read_keypoints(database, "turned.jpg")
    # A window of 12 sigma: a half-size of 6 pixels is a sigma of 1.
    np.testing.assert_array_equal(
        plain, np.array([[10.5, 20.75, 1, -0.5, 2, 3], [0.5, 0.5, 0, -1, 1, 0]], np.float32)
    )
    # Turned by 90 degrees: x = v, y = 47 - u; the rows of the shape follow.
    np.testing.assert_array_equal(turned, np.array([[20.75, 37.5, 2, 3, -1, 0.5]], np.float32))
    with pycolmap.Database.open(path) as opened:
        sizes = {(c.width, c.height) for c in opened.read_all_cameras()}
        assert sizes == {(64, 48)}
        assert opened.num_descriptors() == 0


def test_matches_and_their_geometry(known_scene: KnownScene, tmp_path: Path) -> None:
    scene, path = known_scene, tmp_path / "database.db"
    cameras = CameraSettings("SIMPLE_PINHOLE", single=True, focal=scene.focal)
    write_database(path, scene.images, scene.features, scene.matches, cameras)
    with pycolmap.Database.open(path) as database:
        (camera,) = database.read_all_cameras()
        np.testing.assert_array_equal(camera.params, [scene.focal, 160, 120])
        assert camera.has_prior_focal_length
        numbers = {image.name: image.image_id for image in database.read_all_images()}
        a, b = sorted(scene.features)[:2]
        given = scene.matches[a, b].indices
        np.testing.assert_array_equal(database.read_matches(numbers[a], numbers[b]), given)
        geometry = database.read_two_view_geometry(numbers[a], numbers[b])
    kept = {tuple(row) for row in geometry.inlier_matches.tolist()}
    right = {tuple(row) for row in given[: -scene.wrong].tolist()}
    assert right <= kept
    assert len(kept - right) < 8  # a wrong match may lie on its epipolar line by chance
    assert geometry.config == pycolmap.TwoViewGeometryConfiguration.CALIBRATED


def test_pairs_may_come_in_either_order(known_scene: KnownScene, tmp_path: Path) -> None:
    scene = known_scene
    a, b = sorted(scene.features)[:2]
    rows = np.stack([np.arange(0, 300), np.arange(0, 300)], 1)
    rows[0] = 7, 9  # only so can the order of the columns be told
    swapped = {(b, a): make_matches(scene.features[b], scene.features[a], rows)}
    path = tmp_path / "database.db"
    write_database(path, scene.images, {n: scene.features[n] for n in (a, b)}, swapped)
    with pycolmap.Database.open(path) as database:
        np.testing.assert_array_equal(database.read_matches(2, 1), rows)
        np.testing.assert_array_equal(database.read_matches(1, 2), rows[:, ::-1])
        verified = database.read_two_view_geometry(1, 2).inlier_matches
        assert len(verified) > 250


@pytest.fixture(scope="module")
def known_model(known_scene: KnownScene, tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("known-model")
    cameras = CameraSettings("SIMPLE_PINHOLE", single=True, focal=known_scene.focal)
    path = work / "database.db"
    write_database(path, known_scene.images, known_scene.features, known_scene.matches, cameras)
    models = build_models(path, known_scene.images, work / "sparse", MapperSettings())
    assert [model.name for model in models] == ["0"]
    return models[0]


def test_the_mapper_finds_the_cameras(known_scene: KnownScene, known_model: Path) -> None:
    poses = read_poses(known_model)
    assert sorted(poses) == sorted(known_scene.features)
    centres = np.stack([known_scene.centres[name] for name in poses])
    world = align([pose.centre for pose in poses.values()], centres)
    found = world([pose.centre for pose in poses.values()])
    # 6 units away, pixels without noise: half a pixel of shift would show as 0.0075 units.
    np.testing.assert_allclose(found, centres, atol=1e-3)
    rotations = np.stack([pose.rotation for pose in poses.values()]) @ world.rotation.T
    truth = np.stack([known_scene.rotations[name] for name in poses])
    assert rotation_angle(rotations, truth).max() < 0.02


def test_a_calibration_is_kept(known_scene: KnownScene, tmp_path: Path) -> None:
    path = tmp_path / "database.db"
    params = (known_scene.focal * 1.01, known_scene.focal * 0.99, 160.0, 120.0)
    cameras = CameraSettings("PINHOLE", single=True, params=params)
    write_database(path, known_scene.images, known_scene.features, known_scene.matches, cameras)
    for refine in (True, False):
        settings = MapperSettings(refine_cameras=refine)
        (model,) = build_models(path, known_scene.images, tmp_path / "sparse", settings)
        (camera,) = pycolmap.Reconstruction(str(model)).cameras.values()
        assert (camera.params.tolist() == list(params)) != refine


@pytest.mark.slow
def test_stock_colmap_opens_the_database(
    known_scene: KnownScene, known_model: Path, tmp_path: Path
) -> None:
    program = shutil.which("colmap")
    if program is None:
        pytest.skip("no colmap program here: apt-get install colmap")
    database = tmp_path / "database.db"
    shutil.copy(known_model.parent.parent / "database.db", database)
    (tmp_path / "sparse").mkdir()
    places = "--database_path", database, "--image_path", known_scene.images
    command = [program, "mapper", *places, "--output_path", tmp_path / "sparse"]
    options = ["--Mapper.min_model_size", "3"]
    subprocess.run([*command, *options], check=True, capture_output=True)
    assert len(read_poses(tmp_path / "sparse" / "0")) == len(known_scene.features)
    analyse = [program, "model_analyzer", "--path", known_model]
    done = subprocess.run(analyse, check=True, capture_output=True, text=True)
    assert f"Registered images: {len(known_scene.features)}" in done.stdout + done.stderr


def test_photos_colmap_cannot_use_are_named(tmp_path: Path) -> None:
    images = tmp_path / "photos"
    for k in range(2):
        write_photo(images / f"{k}.jpg", (64, 48), seed=k)
    (images / "bad.jpg").write_bytes(b"no photo")
    frames = upright_frames(np.array([[20.0, 20.0]]))
    sizes = {"0.jpg": (64, 48), "1.jpg": (640, 480), "bad.jpg": (64, 48)}
    features = {name: make_features(frames, size) for name, size in sizes.items()}
    refused = write_database(tmp_path / "database.db", images, features, {})
    assert sorted(refused) == ["1.jpg", "bad.jpg"]
    assert "64x48 pixels, not 640x480" in refused["1.jpg"]
    with pycolmap.Database.open(tmp_path / "database.db") as database:
        assert [image.name for image in database.read_all_images()] == ["0.jpg"]


def test_no_keypoints_no_matches_no_photos(tmp_path: Path) -> None:
    images = tmp_path / "photos"
    features = {}
    for k in range(2):
        write_photo(images / f"{k}.jpg", (64, 48), seed=k)
        features[f"{k}.jpg"] = make_features(np.zeros((0, 2, 3)), (64, 48))
    nothing = make_matches(*features.values(), np.zeros((0, 2)))
    write_database(tmp_path / "database.db", images, features, {("0.jpg", "1.jpg"): nothing})
    with pycolmap.Database.open(tmp_path / "database.db") as database:
        assert database.num_images() == 2
        assert database.num_keypoints() == 0
        assert database.exists_matches(1, 2)
    report = database_report(tmp_path / "database.db", 2, {})
    assert (report.pairs, report.verified_pairs, report.matches) == (1, 0, 0)
    write_database(tmp_path / "database.db", images, {}, {})  # replaces the other
    with pycolmap.Database.open(tmp_path / "database.db") as database:
        assert database.num_images() == 0


def test_cameras_that_cannot_be(tmp_path: Path) -> None:
    images = tmp_path / "photos"
    write_photo(images / "a.jpg", (64, 48))
    write_photo(images / "b.jpg", (48, 64))
    features = {
        "a.jpg": make_features(np.zeros((0, 2, 3)), (64, 48)),
        "b.jpg": make_features(np.zeros((0, 2, 3)), (48, 64)),
    }
    for cameras, message in (
        (CameraSettings("FISHBOWL"), "no camera model 'FISHBOWL': choose SIMPLE_PINHOLE"),
        (CameraSettings(focal=0), "focal is 0"),
        (CameraSettings(params=(1, 2)), "parameters f, cx, cy, k, got 2 numbers"),
        (CameraSettings(focal=9, params=(1, 2, 3, 4)), "exclude each other"),
        (CameraSettings(single=True), "a.jpg has 64x48 pixels, b.jpg 48x64"),
    ):
        with pytest.raises(HardnetError, match=message):
            write_database(tmp_path / "database.db", images, features, {}, cameras)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_pixel_is_found_where_the_file_has_it(tmp_path: Path, orientation: int) -> None:
    write_photo(tmp_path / "photo.jpg", (24, 17), orientation)
    upright = read_image(tmp_path / "photo.jpg")
    flags = cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION
    stored = cv2.imread(str(tmp_path / "photo.jpg"), flags)
    assert stored is not None
    height, width = upright.shape
    assert stored_size((width, height), orientation) == (24, 17)
    v, u = (side.ravel() for side in np.indices(upright.shape))
    frames = upright_frames(np.stack([u, v], 1))
    x, y = turn_frames(frames, (width, height), orientation)[:, :, 2].astype(int).T
    np.testing.assert_array_equal(stored[y, x], upright[v, u])


def test_frames_turn_with_their_photo() -> None:
    # Orientation 6: shown turned by 90 degrees clockwise. A patch whose x axis points right in the
    # upright photo of 20 x 30 pixels points up in the file of 30 x 20.
    frames = np.array([[[2.0, 0, 5], [0, 3, 7]]], np.float32)
    turned = turn_frames(frames, (20, 30), 6)
    np.testing.assert_array_equal(turned, [[[0, 3, 7], [-2, 0, 14]]])
    np.testing.assert_array_equal(turn_frames(frames, (20, 30), 1), frames)
