"""Scenes with true cameras: where each photo was taken from, and which way it looks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.sfm.colmap import is_model, require_pycolmap

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
    """

    name: str
    images: Path
    truth: Mapping[str, Pose]
    origin: str


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
        return Scene(name, images, truth, "measured by laser scan")
    if is_model(folder / MODEL):
        return Scene(name, images, read_poses(folder / MODEL), "COLMAP model of its own SIFT")
    return Scene(name, images, {}, "none")


def read_camera(path: Path) -> Pose:
    """A ``.camera`` file: three rows of K, one of distortion, three of R, the centre, the size.

    R turns from the camera into the world there. K is of the full-size photo; only fx / width is
    kept, which no shrinking changes. (A principal point does change: photos shrink with their
    corners in place, so c + 0.5 is halved, not c, if the centre of the first pixel is 0.)
    """
    try:
        numbers = np.array(path.read_text().split(), np.float64)
        k, rest = numbers[:9].reshape(3, 3), numbers[12:]
        rotation, centre = rest[:9].reshape(3, 3), rest[9:12]
        width = float(rest[12])
    except (OSError, ValueError, IndexError) as error:
        raise HardnetError(f"{path} is not a camera file: {error}") from error
    if not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3):
        raise HardnetError(f"{path} is not a camera file: rows 5 to 7 are not a rotation")
    return Pose(rotation.T, centre, float(k[0, 0]) / width)


def read_poses(model: Path) -> dict[str, Pose]:
    """Name -> pose of the registered photos of a COLMAP model."""
    source = require_pycolmap().Reconstruction(str(model))
    poses = {}
    for number in source.reg_image_ids():
        image = source.image(number)
        camera = source.camera(image.camera_id)
        rotation = np.asarray(image.cam_from_world().rotation.matrix(), np.float64)
        centre = np.asarray(image.projection_center(), np.float64)
        poses[image.name] = Pose(rotation, centre, camera.mean_focal_length() / camera.width)
    return dict(sorted(poses.items()))
