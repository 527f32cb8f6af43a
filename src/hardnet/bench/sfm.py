"""Structure from motion with our features against COLMAP's own SIFT, photos and mapper the same.

COLMAP's limit of keypoints counts places, and a place may have several orientations; ours counts
keypoints. So COLMAP goes first, and the budget of the others is the mean number of keypoints per
photo that it kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hardnet.bench.metrics import Floats, align, rotation_angle
from hardnet.errors import HardnetError, Progress, silent, within
from hardnet.images import list_images, read_image
from hardnet.interop.colmap.database import DATABASE, CameraSettings, quiet, require_pycolmap
from hardnet.interop.colmap.mapping import (
    SPARSE,
    MapperSettings,
    build_models,
    extract_sift,
    is_model,
    match_sift,
    open_model,
)
from hardnet.interop.colmap.reconstruction import (
    ReconstructionReport,
    ReconstructionSettings,
    database_report,
    model_numbers,
    reconstruct,
)
from hardnet.storage import check_inside

COLMAP = "colmap-sift"

RULES = {
    "cameras": (
        "one camera per scene; a calibration that comes with the ground truth is kept, otherwise "
        "focal length and distortion are estimated as COLMAP does by default"
    ),
    "keypoints": (
        "ours may keep as many per photo as COLMAP's SIFT kept on average; COLMAP's limit counts "
        "places, some of which have two orientations"
    ),
    "model": "the one with the most points, if there are several",
    "centre error": (
        "distance of a camera centre from the true one after the best similarity over all "
        "registered photos, without removing outliers; relative: divided by the largest distance "
        "between two true centres"
    ),
    "rotation error": "angle between the true and the estimated rotation after the same alignment",
}
"""How a reconstruction is judged, in words, for the results file."""


def compare(
    scenes: Sequence[Scene],
    descriptors: Mapping[str, str],
    detectors: Sequence[str],
    keypoints: int,
    work: Path,
    max_size: int,
    seed: int = 0,
    progress: Progress = silent,
) -> list[dict[str, Any]]:
    """Reconstruct every scene with COLMAP's SIFT and with every detector and descriptor.

    ``keypoints`` limits the places per photo of COLMAP's SIFT; for the others see the module.
    Databases and models are made in ``work``. Returns one row per scene and method.
    """
    rows = []
    mapper = MapperSettings(seed=seed)
    for scene in scenes:
        progress(f"{scene.name}: {COLMAP}", 0, 1)
        start = perf_counter()
        place = work / scene.name / COLMAP
        report = _colmap_sift(scene, place, keypoints, max_size, mapper)
        rows.append(_row(scene, COLMAP, report, place, perf_counter() - start))
        budget = round(report.keypoints / report.photos)
        for detector, (label, descriptor) in product(detectors, descriptors.items()):
            method = f"{detector}+{label}"
            place = work / scene.name / method.replace("/", "-")
            settings = ReconstructionSettings(
                detector=detector,
                descriptor=descriptor,
                keypoints=budget,
                max_size=max_size,
                cameras=scene.cameras,
                mapper=mapper,
            )
            start = perf_counter()
            shown = partial(within, progress, f"{scene.name}: {method}")
            report = reconstruct(scene.images, place, settings, progress=shown)
            rows.append(_row(scene, method, report, place, perf_counter() - start))
    return rows


def pose_errors(
    estimated: Mapping[str, Pose], truth: Mapping[str, Pose]
) -> dict[str, float] | None:
    """Compare the cameras that both have; None if they are fewer than three, or on one line.

    Centres in units of the truth, rotations in degrees, ``focal`` as a share of the true length.
    """
    names = [name for name in estimated if name in truth]
    if len(names) < 3:
        return None
    mine, true = [estimated[n] for n in names], [truth[n] for n in names]
    centres = np.stack([pose.centre for pose in true])
    try:
        similarity = align(np.stack([pose.centre for pose in mine]), centres)
    except ValueError:  # on one line: any rotation about it is as good
        return None
    distance = np.linalg.norm(similarity([pose.centre for pose in mine]) - centres, axis=1)
    everyone = np.stack([pose.centre for pose in truth.values()])
    extent = np.linalg.norm(everyone[:, None] - everyone[None], axis=2).max()
    turned = np.stack([pose.rotation for pose in mine]) @ similarity.rotation.T
    angle = rotation_angle(turned, np.stack([pose.rotation for pose in true]))
    focal = np.array([abs(m.focal / t.focal - 1) for m, t in zip(mine, true, strict=True)])
    return {
        "centre_mean": float(distance.mean()),
        "centre_median": float(np.median(distance)),
        "centre_max": float(distance.max()),
        "centre_relative": float(distance.mean() / extent),
        "rotation_mean": float(angle.mean()),
        "rotation_max": float(angle.max()),
        "focal": float(focal.mean()),
    }


def _colmap_sift(
    scene: Scene, place: Path, keypoints: int, max_size: int, mapper: MapperSettings
) -> ReconstructionReport:
    place.mkdir(parents=True)
    database, sparse = place / DATABASE, place / SPARSE
    names = [p.relative_to(scene.images).as_posix() for p in list_images(scene.images)]
    with quiet(require_pycolmap()):
        extract_sift(database, scene.images, names, max_size, keypoints, mapper.seed, scene.cameras)
        match_sift(database, mapper.seed)
        refine = scene.cameras.params is None
        models = build_models(
            database, scene.images, sparse, replace(mapper, refine_cameras=refine)
        )
        report = database_report(database, len(names), {})
    numbers = {model.relative_to(place).as_posix(): model_numbers(model) for model in models}
    return replace(report, models=numbers)


def _row(
    scene: Scene, method: str, report: ReconstructionReport, place: Path, seconds: float
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "scene": scene.name,
        "truth": scene.origin,
        "calibrated": scene.cameras.params is not None,
        "method": method,
        "photos": report.photos,
        "keypoints": round(report.keypoints / report.photos),
        "verified_pairs": report.verified_pairs,
        "matches": report.matches,
        "seconds": round(seconds, 1),
    }
    if not report.models:
        return row | {"registered": 0, "points": 0, "errors": None}
    folder, numbers = next(iter(report.models.items()))
    errors = pose_errors(read_poses(place / folder), scene.truth)
    return row | asdict(numbers) | {"errors": errors}


MODEL = "colmap_ground_truth"
CAMERAS = "gt_dense_cameras"
CAMERA_SUFFIX = ".camera"


@dataclass(frozen=True, eq=False)
class Pose:
    """One camera: (3, 3) world -> camera, (3,) centre, focal length in widths of the photo."""

    rotation: Floats
    centre: Floats
    focal: float


@dataclass(frozen=True)
class Scene:
    """Photos of a scene, taken by one camera.

    ``truth``: name of a photo -> its true pose, empty if it is not known; ``origin`` where it is
    from.
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
        truth, found = {}, set()
        for file in sorted((folder / CAMERAS).glob(f"*{CAMERA_SUFFIX}")):
            photo = file.name.removesuffix(CAMERA_SUFFIX)
            truth[photo], k, size = read_camera(file)
            found.add(pinhole(k, size, read_image(images / photo).shape[1]))
        cameras = CameraSettings(single=True)
        if len(found) == 1:
            cameras = CameraSettings("PINHOLE", single=True, params=found.pop())
        return Scene(name, images, truth, "measured by laser scan", cameras)
    if is_model(folder / MODEL):
        return Scene(name, images, read_poses(folder / MODEL), "COLMAP model of its own SIFT")
    return Scene(name, images, {}, "none")


def pinhole(k: Floats, size: Floats, width: int) -> tuple[float, float, float, float]:
    """COLMAP's parameters (fx, fy, cx, cy) of a pinhole camera for photos that were shrunk.

    Shrinking keeps the corners of the photo in place, and COLMAP counts from the corner of the
    first pixel. So does K: the files do not say it, but matches of fountain-P11 lie nearest to the
    true epipolar lines if it does.
    """
    factor = width / float(size[0])
    fx, fy, cx, cy = k[0, 0], k[1, 1], k[0, 2], k[1, 2]
    return float(fx * factor), float(fy * factor), float(cx * factor), float(cy * factor)


def read_camera(path: Path) -> tuple[Pose, Floats, Floats]:
    """Pose, (3, 3) K and (2,) size of the photos of a ``.camera`` file.

    It has three rows of K, one of distortion, three of R (from the camera to the world), the
    centre, the size.
    """
    try:
        numbers = np.array(path.read_text().split(), np.float64)
        k, rotation = numbers[:9].reshape(3, 3), numbers[12:21].reshape(3, 3)
    except (OSError, ValueError) as error:
        raise HardnetError(f"{path} is not a camera file: {error}") from error
    if len(numbers) < 26 or not np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-3):
        raise HardnetError(f"{path} is not a camera file: rows 5 to 7 must be a rotation")
    size = numbers[24:26]
    return Pose(rotation.T, numbers[21:24], float(k[0, 0] / size[0])), k, size


def read_poses(model: Path) -> dict[str, Pose]:
    source = open_model(model)
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
