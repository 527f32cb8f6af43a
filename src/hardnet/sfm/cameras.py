"""What is known about the cameras, and how a COLMAP database gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hardnet.errors import HardnetError
from hardnet.sfm.colmap import require_pycolmap


@dataclass(frozen=True)
class CameraSettings:
    """What is known about the cameras.

    Attributes:
        model: COLMAP's name of the camera model.
        single: all photos are from one camera with one zoom. Otherwise photos share a camera
            where their EXIF entries name the same one, and have each their own where there are
            none.
        focal: focal length in pixels of the photos as they are stored, to begin with; None: from
            EXIF, and where there is none, 1.2 times the longer side as a first guess.
        params: all parameters of the camera model, in COLMAP's order and pixels (the corner of the
            first pixel is 0), from a calibration: the mapper keeps them as they are.
    """

    model: str = "SIMPLE_RADIAL"
    single: bool = False
    focal: float | None = None
    params: tuple[float, ...] | None = None


def check_cameras(settings: CameraSettings) -> None:
    """Raise a HardnetError that names the option if the settings make no sense."""
    pycolmap = require_pycolmap()
    known = [name for name in pycolmap.CameraModelId.__members__ if name != "INVALID"]
    if settings.model not in known:
        raise HardnetError(f"no camera model '{settings.model}': choose {', '.join(known)}")
    if settings.focal is not None and not 0 < settings.focal < float("inf"):
        raise HardnetError(f"focal is {settings.focal}: give the focal length in pixels")
    if settings.params is None:
        return
    if settings.focal is not None:
        raise HardnetError("focal and params exclude each other: params have the focal length")
    camera = pycolmap.Camera.create_from_model_name(1, settings.model, 1.0, 1, 1)
    if len(settings.params) != len(camera.params):
        raise HardnetError(
            f"{settings.model} has the parameters {camera.params_info}, got {len(settings.params)} "
            "numbers"
        )
    values = np.array(settings.params)
    if not np.isfinite(values).all() or (values[list(camera.focal_length_idxs())] <= 0).any():
        raise HardnetError(
            f"params are {', '.join(map(str, settings.params))}: {camera.params_info} must be "
            "numbers, the focal length above 0"
        )


def import_images(
    database: Path, images: Path, names: Sequence[str], settings: CameraSettings
) -> None:
    """Write cameras and images into a database that is there; photos are numbered in this order.

    Args:
        database: the file.
        images: folder of the photos.
        names: of the photos, relative to it. Those that COLMAP cannot read are left out.
        settings: see :class:`CameraSettings`.
    """
    pycolmap = require_pycolmap()
    if not names:  # COLMAP would take all files of the folder
        return
    options = pycolmap.ImageReaderOptions()
    options.camera_model = settings.model
    mode = pycolmap.CameraMode.SINGLE if settings.single else pycolmap.CameraMode.AUTO
    pycolmap.import_images(database, images, mode, list(names), options)
    if settings.focal is None and settings.params is None:
        return
    with pycolmap.Database.open(database) as opened:
        for camera in opened.read_all_cameras():
            camera.params = _params(camera, settings)
            camera.has_prior_focal_length = True
            opened.update_camera(camera)


def _params(camera: Any, settings: CameraSettings) -> Any:
    if settings.params is not None:
        return list(settings.params)
    params = camera.params
    params[list(camera.focal_length_idxs())] = settings.focal
    return params
