"""A folder of photos -> a COLMAP model, in stages that a stopped run need not repeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from hardnet import descriptors, detectors
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import MAX_SIZE, Features
from hardnet.images import list_images
from hardnet.interop import extraction, feature_files
from hardnet.interop.colmap.database import (
    DATABASE,
    CameraSettings,
    check_cameras,
    failures_explained,
    quiet,
    require_pycolmap,
    write_photos,
)
from hardnet.interop.colmap.mapping import (
    SPARSE,
    MapperSettings,
    WorkFolder,
    build_models,
    photo_facts,
    usable_models,
    write_json,
)
from hardnet.interop.colmap.matching import Verification, match_pairs
from hardnet.interop.colmap.pairs import Pair, PairSettings, choose_pairs, read_pairs, read_text
from hardnet.matching.matches import Strategy

KEYPOINTS = 4096
"""Twice as many as for matching two photos: a point counts only if several photos see it."""
FEATURES = "features.h5"
SKIPPED = "skipped.json"
REPORT = "report.json"
Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


@dataclass(frozen=True)
class ReconstructionSettings:
    """How photos become a model; stored in the work folder.

    Attributes:
        detector: name of a detector.
        descriptor: name of a descriptor, or a weights file.
        keypoints: most per photo.
        max_size: longer side to which photos are shrunk before detection; None: never.
        upright: the photos are the right way up.
        pairs: which photos to match: how to choose them, or a file that lists them.
        strategy: how matches are found. If it is guided, more are looked for along our geometry.
        verification: "colmap": COLMAP verifies the matches by what it knows of the cameras;
            "hardnet": by the strategy's estimator, threshold and check of frames.
        cameras: what is known about the cameras.
        mapper: how models are built.
    """

    detector: str = "dog"
    descriptor: str = "hardnet"
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    pairs: PairSettings | Path = field(default_factory=PairSettings)
    strategy: Strategy = field(default_factory=Strategy)
    verification: Verification = "colmap"
    cameras: CameraSettings = field(default_factory=CameraSettings)
    mapper: MapperSettings = field(default_factory=MapperSettings)

    def __post_init__(self) -> None:
        if self.verification not in ("colmap", "hardnet"):
            raise HardnetError(f"no verification '{self.verification}': choose colmap or hardnet")

    def to_json(self) -> dict[str, Any]:
        """As JSON values; of a file of pairs its content, which is what the result depends on."""
        pairs = read_text(self.pairs) if isinstance(self.pairs, Path) else asdict(self.pairs)
        return {**asdict(self), "pairs": pairs}


@dataclass(frozen=True)
class ModelNumbers:
    """The size and the quality of a model.

    Attributes:
        registered: photos whose pose was found.
        points: 3D points.
        observations: keypoints that are seen of them.
        track_length: photos that see a point, on average.
        reprojection_error: pixels between a keypoint and the projection of its point, on average.
    """

    registered: int
    points: int
    observations: int
    track_length: float
    reprojection_error: float


@dataclass(frozen=True)
class ReconstructionReport:
    """What became of a folder of photos.

    Attributes:
        photos: files that were found.
        skipped: photos that could not be used, name -> why.
        keypoints: of all photos together.
        pairs: that were matched.
        verified_pairs: that COLMAP believes.
        matches: of these pairs, those that agree with their geometry.
        models: folder, relative to the work folder -> its numbers, most points first; None if no
            models were asked for.
    """

    photos: int
    skipped: Mapping[str, str]
    keypoints: int
    pairs: int
    verified_pairs: int
    matches: int
    models: Mapping[str, ModelNumbers] | None = None

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)


def reconstruct(
    images: Path,
    work: Path,
    settings: ReconstructionSettings | None = None,
    *,
    mapping: bool = True,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> ReconstructionReport:
    """Make a COLMAP database of a folder of photos, and models of it.

    Everything is kept in the work folder: ``features.h5``, ``database.db``, ``sparse/0`` and so on,
    and ``report.json``. Called again after it was stopped, it continues where it was.

    Args:
        images: folder of the photos, with its subfolders.
        work: folder to write.
        settings: see :class:`ReconstructionSettings`.
        mapping: False stops after the database.
        workers: threads; by default one per usable core.
        progress: called with (stage, done, total).

    Returns:
        What was made; without any model if the photos do not fit together.

    Raises:
        HardnetError: the settings are wrong, or too few photos can be used.
    """
    settings = settings or ReconstructionSettings()
    pycolmap = require_pycolmap()
    files = {p.relative_to(images).as_posix(): p for p in list_images(images)}
    check_cameras(settings.cameras)
    detectors.load(settings.detector)  # a wrong name shows before anything is written
    describe = descriptors.load(settings.descriptor)
    inputs = {
        "settings": settings.to_json(),
        "descriptor": descriptor_digest(describe),
        "photos": photo_facts(images, list(files.values())),
    }
    _check_enough(len(files), {})
    with WorkFolder(work, inputs) as state, quiet(pycolmap):
        _forget_lost(work, state)
        if not state.has("features"):
            _extract(files, work, settings, workers, progress)
            state.add("features")
        with failures_explained(work):
            if not state.has("database"):
                _write_photos(images, files, work, settings, progress)
                state.add("database")
            if not state.has("matches"):
                _match(files, work, settings, workers, progress)
                state.add("matches")
            report = database_report(work / DATABASE, len(files), _skipped(work))
            if mapping:
                report = _build(images, work, settings, state, report, progress)
        write_json(work / REPORT, report.to_json())
        return report


def database_report(
    database: Path, photos: int, skipped: Mapping[str, str]
) -> ReconstructionReport:
    """The numbers of a database."""
    with require_pycolmap().Database.open(database) as opened:
        # COLMAP keeps a row for a pair that failed, too.
        _, inliers = opened.read_two_view_geometry_num_inliers()
        return ReconstructionReport(
            photos=photos,
            skipped=skipped,
            keypoints=opened.num_keypoints(),
            pairs=opened.num_matched_image_pairs(),
            verified_pairs=sum(count > 0 for count in inliers),
            matches=sum(inliers),
        )


def model_numbers(folder: Path) -> ModelNumbers:
    """The numbers of a model on disk."""
    model = require_pycolmap().Reconstruction(str(folder))
    return ModelNumbers(
        registered=model.num_reg_images(),
        points=model.num_points3D(),
        observations=model.compute_num_observations(),
        track_length=model.compute_mean_track_length(),
        reprojection_error=model.compute_mean_reprojection_error(),
    )


def _forget_lost(work: Path, state: WorkFolder) -> None:
    """Stages whose files somebody deleted are done again."""
    if not (work / SPARSE).is_dir():
        state.forget("models")
    if not (work / DATABASE).is_file():
        state.forget("database", "matches", "models")
    if not state.has("matches") and not (work / FEATURES).is_file():
        state.forget("features")


def _extract(
    files: Mapping[str, Path],
    work: Path,
    settings: ReconstructionSettings,
    workers: int | None,
    progress: Progress,
) -> None:
    how = extraction.ExtractionSettings(
        settings.detector,
        settings.descriptor,
        settings.keypoints,
        settings.max_size,
        settings.upright,
    )
    report = extraction.extract_to(work / FEATURES, files, how, workers=workers, progress=progress)
    _check_enough(len(files), report.skipped)
    _write_skipped(work, report.skipped)


def _write_photos(
    images: Path,
    names: Iterable[str],
    work: Path,
    settings: ReconstructionSettings,
    progress: Progress,
) -> None:
    skipped = _skipped(work)
    progress("database", 0, 1)
    features = {
        name: _without_descriptors(feature_files.read_hdf5(work / FEATURES, name))
        for name in names
        if name not in skipped
    }
    refused = write_photos(work / DATABASE, images, features, settings.cameras)
    _check_enough(len(features), refused)
    _write_skipped(work, skipped | refused)


def _match(
    names: Iterable[str],
    work: Path,
    settings: ReconstructionSettings,
    workers: int | None,
    progress: Progress,
) -> None:
    skipped = _skipped(work)
    match_pairs(
        work / DATABASE,
        partial(feature_files.read_hdf5, work / FEATURES),
        _pairs([name for name in names if name not in skipped], skipped, settings),
        settings.strategy,
        settings.mapper.seed,
        workers,
        settings.verification,
        lambda done, total: progress("matches", done, total),
    )


def _pairs(
    names: list[str], skipped: Mapping[str, str], settings: ReconstructionSettings
) -> list[Pair]:
    if isinstance(settings.pairs, Path):
        return read_pairs(settings.pairs, names, list(skipped))
    return choose_pairs(names, settings.pairs)


def _build(
    images: Path,
    work: Path,
    settings: ReconstructionSettings,
    state: WorkFolder,
    report: ReconstructionReport,
    progress: Progress,
) -> ReconstructionReport:
    sparse = work / SPARSE
    if not state.has("models"):
        progress("models", 0, report.photos)
        build_models(
            work / DATABASE,
            images,
            sparse,
            replace(settings.mapper, refine_cameras=settings.cameras.params is None),
            lambda done: progress("models", done, report.photos),
        )
        state.add("models")
    models = usable_models(sparse, settings.mapper.min_images)
    numbers = {model.relative_to(work).as_posix(): model_numbers(model) for model in models}
    return replace(report, models=numbers)


def _without_descriptors(features: Features) -> Features:
    """A thousand photos' frames fit in memory, their descriptors do not."""
    return replace(features, descriptors=features.descriptors[:0].copy())


def _check_enough(photos: int, skipped: Mapping[str, str]) -> None:
    """A pair needs two photos."""
    usable = photos - len(skipped)
    if usable < 2:
        why = f" ({'; '.join(skipped.values())})" if skipped else ""
        raise HardnetError(f"{usable} of {photos} photos can be used, 2 are needed{why}")


def _skipped(work: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((work / SKIPPED).read_text())
    return found


def _write_skipped(work: Path, skipped: Mapping[str, str]) -> None:
    write_json(work / SKIPPED, dict(skipped))
