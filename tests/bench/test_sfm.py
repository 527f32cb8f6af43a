"""True cameras are read, and what a reconstruction misses of them is measured."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")

from hardnet.bench.metrics import align
from hardnet.bench.sfm import (
    COLMAP,
    Pose,
    compare,
    pinhole,
    pose_errors,
    read_camera,
    read_poses,
    read_scene,
)
from hardnet.errors import HardnetError

CAMERA = """2759.48 0 1520.69
0 2764.16 1006.81
0 0 1
0 0 0
0 -1 0
1 0 0
0 0 1
-7 -8 0.5
3072 2048
"""


def test_a_camera_file(tmp_path: Path) -> None:
    path = tmp_path / "0000.jpg.camera"
    path.write_text(CAMERA)
    pose, _, _ = read_camera(path)
    # The file turns from the camera into the world: its x axis points along the world's y.
    np.testing.assert_array_equal(pose.rotation @ (0, 1, 0), (1, 0, 0))
    np.testing.assert_array_equal(pose.centre, (-7, -8, 0.5))
    assert pose.focal == 2759.48 / 3072
    # Half the size: corners stay, and both K and COLMAP count from the first one.
    half = pinhole(np.array([[100.0, 0, 0], [0, 110, 50], [0, 0, 1]]), np.array([200, 160]), 100)
    assert half == (50, 55, 0, 25)
    for text in (CAMERA[:60], CAMERA.replace("0 -1 0", "0 -2 0"), "no numbers"):
        path.write_text(text)
        with pytest.raises(HardnetError, match="is not a camera file"):
            read_camera(path)


def test_scenes(data: Path, tmp_path: Path) -> None:
    door = read_scene(data / "sfm" / "lund-door")
    assert (door.name, len(door.truth)) == ("lund-door", 12)
    fountain = read_scene(data / "sfm" / "fountain-P11")
    assert list(fountain.truth)[:2] == ["0000.jpg", "0001.jpg"]
    assert fountain.cameras.model == "PINHOLE"
    assert fountain.cameras.params == (1379.74, 1382.08, 760.345, 503.405)
    assert door.cameras.params is None
    assert all((fountain.images / name).is_file() for name in fountain.truth)
    chair = read_scene(data / "multiview" / "chair")
    assert (chair.truth, chair.images) == ({}, data / "multiview" / "chair")
    with pytest.raises(HardnetError, match="not a folder of photos"):
        read_scene(tmp_path / "absent")


def test_true_poses_look_at_the_scene(data: Path) -> None:
    # If a rotation were read the wrong way round, the cameras would look in all directions; these
    # stand around a fountain, so what they look at is close to one point.
    truth = read_scene(data / "sfm" / "fountain-P11").truth.values()
    centres = np.stack([pose.centre for pose in truth])
    axes = np.stack([pose.rotation[2] for pose in truth])
    across = np.eye(3) - axes[:, :, None] * axes[:, None]
    point = np.linalg.solve(across.sum(0), (across @ centres[:, :, None]).sum(0)[:, 0])
    depth = ((point - centres) * axes).sum(1)
    miss = np.linalg.norm(across @ (point - centres)[:, :, None], axis=(1, 2))
    assert (depth > 3).all()
    assert (miss < 0.35 * depth).all()


def _ring() -> dict[str, Pose]:
    poses = {}
    for k in range(6):
        angle = k * np.pi / 3
        c, s = np.cos(angle), np.sin(angle)
        rotation = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1.0]])
        poses[f"{k}.jpg"] = Pose(rotation, np.array([2 * c, 2 * s, 0.3 * k]), 1.2)
    return poses


def test_errors_of_a_model_in_another_world() -> None:
    truth = _ring()
    turn = np.array([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    moved = {
        name: Pose(p.rotation @ turn.T, 5 * turn @ p.centre + (1, 2, 3), p.focal * 1.01)
        for name, p in truth.items()
        if name != "3.jpg"
    }
    errors = pose_errors(moved, truth)
    assert errors is not None
    assert errors["centre_max"] < 1e-12
    assert errors["rotation_max"] < 1e-5
    assert errors["focal"] == pytest.approx(0.01)
    # One camera 0.1 away and turned by 3 degrees.
    c, s = np.cos(np.deg2rad(3)), np.sin(np.deg2rad(3))
    tilt = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    wrong = moved["0.jpg"]
    moved["0.jpg"] = Pose(tilt @ wrong.rotation, wrong.centre + np.array([0, 0, 0.5]), wrong.focal)
    errors = pose_errors(moved, truth)
    assert errors is not None
    assert 0.04 < errors["centre_max"] < 0.1  # the alignment hides some of it
    names = list(moved)
    world = align([moved[n].centre for n in names], [truth[n].centre for n in names])
    away = [np.linalg.norm(world([moved[n].centre])[0] - truth[n].centre) for n in names]
    assert errors["centre_mean"] == pytest.approx(sum(away) / 5)
    assert errors["centre_median"] == pytest.approx(sorted(away)[2])
    assert errors["centre_max"] == pytest.approx(max(away))
    extent = max(
        np.linalg.norm(a.centre - b.centre) for a in truth.values() for b in truth.values()
    )
    assert errors["centre_relative"] == pytest.approx(errors["centre_mean"] / extent)
    assert 1.5 < errors["rotation_max"] < 4
    assert pose_errors({"0.jpg": moved["0.jpg"], "x.jpg": wrong}, truth) is None


def test_cameras_on_one_line_have_no_errors() -> None:
    line = {f"{k}": Pose(np.eye(3), np.array([k, 2.0 * k, 0.0]), 1.0) for k in range(4)}
    assert pose_errors(line, line) is None
    bent = line | {"3": Pose(np.eye(3), np.array([3.0, 6.0, 1.0]), 1.0)}
    found = pose_errors(bent, bent)
    assert found is not None
    assert found["centre_max"] < 1e-9


def test_poses_of_a_model(data: Path) -> None:
    model = data / "sfm" / "lund-door" / "colmap_ground_truth"
    pose = read_poses(model)["DSC_0001.JPG"]
    # Centre = - R^T t of the line in images.txt.
    np.testing.assert_allclose(
        -pose.rotation @ pose.centre, (-7.60712, 0.428157, 2.75243), atol=1e-4
    )
    assert pose.focal == 2435.38 / 1296


@pytest.mark.slow
def test_colmap_and_ours_on_the_same_photos(data: Path, tmp_path: Path) -> None:
    scene = tmp_path / "door"
    shutil.copytree(data / "sfm" / "lund-door", scene)
    for photo in sorted((scene / "images").iterdir())[4:]:
        photo.unlink()
    rows = compare([read_scene(scene)], {"hardnet": "hardnet"}, ["dog"], 800, tmp_path / "w", 800)
    assert [row["method"] for row in rows] == [COLMAP, "dog+hardnet"]
    for row in rows:
        assert row["registered"] == 4
        assert row["points"] > 100
        assert row["errors"]["centre_relative"] < 0.02
        assert row["errors"]["rotation_max"] < 5  # few photos: the focal length is vague
    assert rows[1]["keypoints"] <= rows[0]["keypoints"]
