"""Incremental mapping: a COLMAP database -> models, the same ones every time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from hardnet.sfm.colmap import clear_models, find_models, require_pycolmap
from hardnet.stored_names import check_inside


@dataclass(frozen=True)
class MapperSettings:
    """How to reconstruct.

    Attributes:
        min_images: smaller models are dropped.
        relaxed_angle: degrees of parallax the first two photos must have where COLMAP's default
            (16) finds no pair to start from, as when the camera moves straight ahead.
        relaxed_inliers: matches those two photos must share then (COLMAP's default: 100).
        seed: of the random samples; the result still depends on the version of pycolmap.
        refine_cameras: estimate focal length and distortion; False: they are known.
    """

    min_images: int = 3
    relaxed_angle: float = 2.0
    relaxed_inliers: int = 50
    seed: int = 0
    refine_cameras: bool = True


def build_models(
    database: Path,
    images: Path,
    sparse: Path,
    settings: MapperSettings,
    progress: Callable[[int], None] = lambda registered: None,
) -> list[Path]:
    """Reconstruct the photos of a database.

    Models that we made in ``sparse`` before are deleted. Where COLMAP's defaults find nothing, a
    second attempt asks less of the first two photos.

    Args:
        database: with keypoints and verified matches.
        images: folder of the photos; the names in the database are relative to it.
        sparse: the models become its folders 0, 1, ...
        settings: see :class:`MapperSettings`.
        progress: called with the number of photos added so far.

    Returns:
        The models, as :func:`usable_models` lists them.
    """
    pycolmap = require_pycolmap()
    with pycolmap.Database.open(database) as opened:
        for image in opened.read_all_images():
            check_inside(image.name, database)  # COLMAP opens photos by these names
    models: list[Path] = []
    for relaxed in (False, True):
        clear_models(sparse, ours=relaxed)
        steps = count(1)
        pycolmap.incremental_mapping(
            database,
            images,
            sparse,
            _options(pycolmap, settings, relaxed),
            next_image_callback=lambda steps=steps: progress(next(steps)),
        )
        models = usable_models(sparse, settings.min_images)
        if models:
            break
    return models


def usable_models(sparse: Path, min_images: int) -> list[Path]:
    """Models with points and enough photos, those with the most points first."""
    pycolmap = require_pycolmap()
    if not any(sparse.iterdir()):
        return []
    sized = []
    for number, path in enumerate(find_models(sparse)):
        model = pycolmap.Reconstruction(str(path))
        if model.num_reg_images() >= min_images and model.num_points3D():
            sized.append((-model.num_points3D(), number, path))
    return [path for *_, path in sorted(sized)]


def _options(pycolmap: Any, settings: MapperSettings, relaxed: bool) -> Any:
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = settings.min_images
    options.random_seed = settings.seed
    options.num_threads = 1  # more of them add in another order each time: another model
    if not settings.refine_cameras:
        options.ba_refine_focal_length = options.ba_refine_extra_params = False
        options.mapper.abs_pose_refine_focal_length = False
        options.mapper.abs_pose_refine_extra_params = False
    if relaxed:
        options.mapper.init_min_tri_angle = settings.relaxed_angle
        options.mapper.init_max_forward_motion = 1.0
        options.mapper.init_min_num_inliers = settings.relaxed_inliers
    return options
