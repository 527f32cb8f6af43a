"""Structure from motion with our features against COLMAP's own SIFT, photos and mapper the same.

COLMAP's limit of keypoints counts places, and a place may have several orientations; ours counts
keypoints. So COLMAP goes first, and the budget of the others is the mean number of keypoints per
photo that it kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hardnet.bench.alignment import align, rotation_angle
from hardnet.bench.sfm_truth import Pose, Scene, read_poses
from hardnet.images import list_images
from hardnet.interop.colmap.reconstruction import reconstruct
from hardnet.interop.colmap.report import Report, database_report, model_numbers
from hardnet.interop.colmap.settings import Settings
from hardnet.sfm import sift
from hardnet.sfm.colmap import DATABASE, SPARSE, quiet, require_pycolmap
from hardnet.sfm.mapping import MapperSettings, build_models

COLMAP = "colmap-sift"

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""

RULES = {
    "cameras": (
        "one camera per scene; its calibration is kept where the truth has one, otherwise focal "
        "length and distortion are estimated as COLMAP does it"
    ),
    "keypoints": (
        "ours may keep as many per photo as COLMAP's SIFT kept on average; its own limit counts "
        "places, of which some have two orientations"
    ),
    "model": "of several models the one with the most points",
    "centre error": (
        "distance of a camera centre from the true one after the best similarity over all "
        "registered photos, without removing any; relative: divided by the largest distance "
        "between two true centres"
    ),
    "rotation error": "angle between the true and the estimated rotation after the same alignment",
}
"""How a reconstruction is judged, in words, for the results file."""


@dataclass(frozen=True)
class PoseErrors:
    """How far the cameras of a model are from the true ones.

    Attributes:
        centre_mean: in units of the truth, like the next two.
        centre_median: see there.
        centre_max: see there.
        centre_relative: mean in largest distances between two true centres.
        rotation_mean: degrees.
        rotation_max: degrees.
        focal: mean difference of the focal length, as a share of the true one.
    """

    centre_mean: float
    centre_median: float
    centre_max: float
    centre_relative: float
    rotation_mean: float
    rotation_max: float
    focal: float


def compare(
    scenes: Sequence[Scene],
    descriptors: Mapping[str, str],
    detectors: Sequence[str],
    keypoints: int,
    work: Path,
    max_size: int,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> list[dict[str, Any]]:
    """Reconstruct every scene with COLMAP's SIFT and with every detector and descriptor.

    Args:
        scenes: what to reconstruct.
        descriptors: label -> name or weights file.
        detectors: names.
        keypoints: most places per photo of COLMAP's SIFT; see the module for the others.
        work: folder for databases and models.
        max_size: longer side to which photos are shrunk before detection.
        seed: of COLMAP's random samples.
        progress: called with (what, done, total).

    Returns:
        One row per scene and method.
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
            settings = Settings(
                detector=detector,
                descriptor=descriptor,
                keypoints=budget,
                max_size=max_size,
                cameras=scene.cameras,
                mapper=mapper,
            )
            start = perf_counter()
            shown = partial(_within, progress, f"{scene.name}: {method}")
            report = reconstruct(scene.images, place, settings, progress=shown)
            rows.append(_row(scene, method, report, place, perf_counter() - start))
    return rows


def _within(progress: Progress, where: str, what: str, done: int, total: int) -> None:
    progress(f"{where}: {what}", done, total)


def pose_errors(estimated: Mapping[str, Pose], truth: Mapping[str, Pose]) -> PoseErrors | None:
    """Compare the cameras that both have; None if they are fewer than three, or on one line."""
    names = [name for name in estimated if name in truth]
    if len(names) < 3:
        return None
    mine, true = [estimated[n] for n in names], [truth[n] for n in names]
    centres = np.stack([pose.centre for pose in true])
    try:
        similarity = align(np.stack([pose.centre for pose in mine]), centres)
    except ValueError:  # on one line: any turn around it is as good
        return None
    distance = np.linalg.norm(similarity([pose.centre for pose in mine]) - centres, axis=1)
    everyone = np.stack([pose.centre for pose in truth.values()])
    extent = np.linalg.norm(everyone[:, None] - everyone[None], axis=2).max()
    turned = np.stack([pose.rotation for pose in mine]) @ similarity.rotation.T
    angle = rotation_angle(turned, np.stack([pose.rotation for pose in true]))
    focal = np.array([abs(m.focal / t.focal - 1) for m, t in zip(mine, true, strict=True)])
    return PoseErrors(
        centre_mean=float(distance.mean()),
        centre_median=float(np.median(distance)),
        centre_max=float(distance.max()),
        centre_relative=float(distance.mean() / extent),
        rotation_mean=float(angle.mean()),
        rotation_max=float(angle.max()),
        focal=float(focal.mean()),
    )


def _colmap_sift(
    scene: Scene, place: Path, keypoints: int, max_size: int, mapper: MapperSettings
) -> Report:
    """COLMAP's own features, matching and mapping."""
    place.mkdir(parents=True)
    database, sparse = place / DATABASE, place / SPARSE
    names = [p.relative_to(scene.images).as_posix() for p in list_images(scene.images)]
    with quiet(require_pycolmap()):
        sift.extract(database, scene.images, names, max_size, keypoints, mapper.seed, scene.cameras)
        sift.match(database, mapper.seed)
        refine = scene.cameras.params is None
        models = build_models(
            database, scene.images, sparse, replace(mapper, refine_cameras=refine)
        )
        report = database_report(database, len(names), {})
    numbers = {model.relative_to(place).as_posix(): model_numbers(model) for model in models}
    return replace(report, models=numbers)


def _row(scene: Scene, method: str, report: Report, place: Path, seconds: float) -> dict[str, Any]:
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
    return row | asdict(numbers) | {"errors": None if errors is None else asdict(errors)}
