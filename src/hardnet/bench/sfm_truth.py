"""Scenes with true cameras: where each photo was taken from, and which way it looks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.images import read_image
from hardnet.sfm.cameras import CameraSettings
from hardnet.sfm.colmap import is_model, require_pycolmap
from hardnet.stored_names import check_inside

Floats = NDArray[np.float64]
MODEL = "colmap_ground_truth"
CAMERAS = "gt_dense_cameras"
CAMERA_SUFFIX = ".camera"


@dataclass(frozen=True, eq=False)
class Pose:
    """One camera.

    Attributes:
        rotation: (3, 3) world -> camera.
        centre: (3,) in the world.
        focal: in widths of the photo, so that it holds for any size of it.
    """

    rotation: Floats
    centre: Floats
    focal: float


@dataclass(frozen=True)
class Scene:
    """Photos of a scene.

    Attributes:
        name: of its folder.
        images: folder of the photos.
        truth: name of a photo -> its true pose; empty if it is not known.
        origin: where the truth comes from, in words.
        cameras: what is known about the camera, which is one for all photos.
    """

    name: str
    images: Path
    truth: Mapping[str, Pose]
    origin: str
    cameras: CameraSettings = field(default_factory=lambda: CameraSettings(single=True))


def read_scene(folder: Path) -> Scene:
    """A scene: photos in ``images`` (or the folder itself), and the truth if it is there.

    The truth is a COLMAP model in ``colmap_ground_truth``, or files of Strecha's dense multi-view
    stereo sets in ``gt_dense_cameras``.
    """
    images = folder / "images" if (folder / "images").is_dir() else folder
    if not images.is_dir():
        raise HardnetError(f"{folder} is not a folder of photos")
    name = folder.resolve().name
    if (folder / CAMERAS).is_dir():
        files = sorted((folder / CAMERAS).glob(f"*{CAMERA_SUFFIX}"))
        truth = {file.name.removesuffix(CAMERA_SUFFIX): read_camera(file) for file in files}
        return Scene(name, images, truth, "measured by laser scan", _known_camera(files, images))
    if is_model(folder / MODEL):
        return Scene(name, images, read_poses(folder / MODEL), "COLMAP model of its own SIFT")
    return Scene(name, images, {}, "none")


def read_camera(path: Path) -> Pose:
    """The pose of a ``.camera`` file; R turns from the camera into the world there."""
    k, rotation, centre, size = _parse_camera(path)
    return Pose(rotation.T, centre, float(k[0, 0] / size[0]))


def pinhole(k: Floats, size: Floats, width: int) -> tuple[float, float, float, float]:
    """COLMAP's parameters (fx, fy, cx, cy) of a pinhole camera for photos that were shrunk.

    Shrinking keeps the corners of the photo in place, and COLMAP counts from the corner of the
    first pixel. So does K: the files do not say it, but of 4,500 matches of fountain-P11 the
    distance to the true epipolar lines is smallest for a principal point 0.3 and 0.4 pixels before
    the one that an origin in the centre of the pixel gives; the corner is 0.25 before it.

    Args:
        k: (3, 3) of the full size.
        size: (width, height) of the full size.
        width: of the photos.
    """
    factor = width / float(size[0])
    fx, fy, cx, cy = k[0, 0], k[1, 1], k[0, 2], k[1, 2]
    return float(fx * factor), float(fy * factor), float(cx * factor), float(cy * factor)


def _known_camera(files: Sequence[Path], images: Path) -> CameraSettings:
    """The calibration of the files, if it is one for all."""
    found = set()
    for file in files:
        k, _, _, size = _parse_camera(file)
        width = read_image(images / file.name.removesuffix(CAMERA_SUFFIX)).shape[1]
        found.add(pinhole(k, size, width))
    if len(found) != 1:
        return CameraSettings(single=True)
    return CameraSettings("PINHOLE", single=True, params=found.pop())


def _parse_camera(path: Path) -> tuple[Floats, Floats, Floats, Floats]:
    """Three rows of K, one of distortion, three of R, the centre, the size: K, R, C and size."""
    try:
        numbers = np.array(path.read_text().split(), np.float64)
        k, rotation = numbers[:9].reshape(3, 3), numbers[12:21].reshape(3, 3)
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path} is not a camera file: {error}") from error
    if len(numbers) < 26 or not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3):
        raise HardnetError(f"{path} is not a camera file: rows 5 to 7 must be a rotation")
    return k, rotation, numbers[21:24], numbers[24:26]


def read_poses(model: Path) -> dict[str, Pose]:
    """Name -> pose of the registered photos of a COLMAP model."""
    source = require_pycolmap().Reconstruction(str(model))
    poses = {}
    for number in source.reg_image_ids():
        image = source.image(number)
        camera = source.camera(image.camera_id)
        rotation = np.asarray(image.cam_from_world().rotation.matrix(), np.float64)
        centre = np.asarray(image.projection_center(), np.float64)
        poses[check_inside(image.name, model)] = Pose(
            rotation, centre, camera.mean_focal_length() / camera.width
        )
    return dict(sorted(poses.items()))
