"""A world whose geometry is known: a photo as a wall, seen by three distorting cameras."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.detectors import dog
from hardnet.frames import to_colmap

SIZE = (560, 520)
"""Width and height of the rendered photos: not square, so that mixed-up axes show."""


@dataclass(frozen=True)
class Wall:
    """The model on disk, its photos, and the frames of point i in photo k."""

    model: Path
    images: Path
    database: Path
    frames: np.ndarray
    """(photos, points, 2, 3)."""


@pytest.fixture(scope="session")
def wall(tmp_path_factory: pytest.TempPathFactory, camera: np.ndarray) -> Wall:
    """Cameras that face the wall, turned and at different distances: frames map by similarities."""
    pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    folder = tmp_path_factory.mktemp("wall")
    images, model, database = folder / "images", folder / "model", folder / "database.db"
    images.mkdir()
    model.mkdir()
    texture = cv2.GaussianBlur(camera, (0, 0), 1.0)
    on_wall = dog.detect(texture, 400)[0]
    middle = np.linalg.norm(on_wall[:, :, 2] - 256, axis=1) < 120
    large = np.sqrt(np.linalg.det(on_wall[:, :, :2])) > 10
    on_wall = on_wall[middle & large].astype(np.float64)

    lens = pycolmap.Camera.create_from_model_name(1, "SIMPLE_RADIAL", 600.0, *SIZE)
    lens.params = [600.0, SIZE[0] / 2, SIZE[1] / 2, -0.03]
    poses = [_pose(turn, depth) for turn, depth in ((0, 600), (35, 700), (-80, 520))]
    frames = np.empty((3, len(on_wall), 2, 3))
    for k, (rotation, translation) in enumerate(poses):
        cv2.imwrite(str(images / f"{k}.png"), _render(texture, lens, rotation, translation))
        corners = [on_wall[:, :, 2]]
        corners += [on_wall[:, :, 2] + on_wall[:, :, axis] for axis in (0, 1)]
        seen = [_project(lens, rotation, translation, xy) for xy in corners]
        frames[k] = np.stack([seen[1] - seen[0], seen[2] - seen[0], seen[0]], 2)
    _write_model(pycolmap, model, lens, poses, on_wall[:, :, 2], frames)
    _write_database(pycolmap, database, lens, frames)
    return Wall(model, images, database, frames)


def _pose(turn: float, depth: float) -> tuple[np.ndarray, np.ndarray]:
    """World -> camera; the wall is z = 0 with the texture's pixels as x and y."""
    c, s = np.cos(np.deg2rad(turn)), np.sin(np.deg2rad(turn))
    rotation = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]])
    return rotation, np.array([0, 0, depth]) - rotation @ [256, 256, 0]


def _project(lens, rotation: np.ndarray, translation: np.ndarray, xy: np.ndarray) -> np.ndarray:
    world = np.column_stack([xy, np.zeros(len(xy))])
    return lens.img_from_cam(world @ rotation.T + translation) - 0.5


def _render(texture: np.ndarray, lens, rotation: np.ndarray, translation: np.ndarray) -> np.ndarray:
    """Each pixel's ray meets the wall somewhere: look there."""
    y, x = np.mgrid[: SIZE[1], : SIZE[0]]
    rays = lens.cam_from_img(np.column_stack([x.ravel(), y.ravel()]) + 0.5)
    rays = np.column_stack([rays, np.ones(len(rays))]) * translation[2]
    met = ((rays - translation) @ rotation)[:, :2].astype(np.float32).reshape(*SIZE[::-1], 2)
    return cv2.remap(texture, met, None, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REFLECT)


def _write_model(pycolmap, folder: Path, lens, poses, xy: np.ndarray, frames: np.ndarray) -> None:
    model = pycolmap.Reconstruction()
    model.add_camera_with_trivial_rig(lens)
    for k, (rotation, translation) in enumerate(poses):
        image = pycolmap.Image(
            name=f"{k}.png", keypoints=frames[k, :, :, 2] + 0.5, camera_id=1, image_id=k + 1
        )
        pose = pycolmap.Rigid3d(np.column_stack([rotation, translation]))
        model.add_image_with_trivial_frame(image, pose)
    for i, (u, v) in enumerate(xy):
        track = pycolmap.Track()
        for k in range(len(poses)):
            track.add_element(k + 1, i)
        model.add_point3D(np.array([u, v, 0.0]), track)
    model.write(folder)


def _write_database(pycolmap, path: Path, lens, frames: np.ndarray) -> None:
    with pycolmap.Database.open(path) as database:
        number = database.write_camera(lens)
        for k, each in enumerate(frames):
            image = pycolmap.Image(name=f"{k}.png", camera_id=number)
            rows = to_colmap(each.astype(np.float32))
            database.write_keypoints(database.write_image(image), rows)
