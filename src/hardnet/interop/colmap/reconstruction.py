"""A folder of photos -> a COLMAP model, in stages that a stopped run need not repeat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from hardnet import descriptors, detectors
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.images import list_images
from hardnet.interop import extraction, hdf5
from hardnet.interop.colmap.database import write_photos
from hardnet.interop.colmap.pair_matching import match_pairs
from hardnet.interop.colmap.pairs import Pair, choose_pairs, read_pairs
from hardnet.interop.colmap.report import Report, database_report, model_numbers
from hardnet.interop.colmap.settings import Settings
from hardnet.sfm.cameras import check_cameras
from hardnet.sfm.colmap import DATABASE, SPARSE, failures_explained, quiet, require_pycolmap
from hardnet.sfm.mapping import build_models, usable_models
from hardnet.sfm.work_folder import WorkFolder, photo_facts, write_json

FEATURES = "features.h5"
SKIPPED = "skipped.json"
REPORT = "report.json"

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


def reconstruct(
    images: Path,
    work: Path,
    settings: Settings | None = None,
    *,
    mapping: bool = True,
    workers: int | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Report:
    """Make a COLMAP database of a folder of photos, and models of it.

    Everything is kept in the work folder: ``features.h5``, ``database.db``, ``sparse/0`` and so on,
    and ``report.json``. Called again after it was stopped, it goes on where it was.

    Args:
        images: folder of the photos, with its subfolders.
        work: folder to write.
        settings: see :class:`Settings`.
        mapping: False stops after the database.
        workers: threads; by default one per usable core.
        progress: called with (stage, done, total).

    Returns:
        What was made; without any model if the photos do not fit together.

    Raises:
        HardnetError: the settings are wrong, or too few photos can be used.
    """
    settings = settings or Settings()
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
    settings: Settings,
    workers: int | None,
    progress: Progress,
) -> None:
    """Features of the photos that have none yet."""
    how = extraction.Settings(
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
    images: Path, names: Iterable[str], work: Path, settings: Settings, progress: Progress
) -> None:
    """The database with cameras, images and keypoints."""
    skipped = _skipped(work)
    progress("database", 0, 1)
    features = {
        name: _without_descriptors(hdf5.read_features(work / FEATURES, name))
        for name in names
        if name not in skipped
    }
    refused = write_photos(work / DATABASE, images, features, settings.cameras)
    _check_enough(len(features), refused)
    _write_skipped(work, skipped | refused)


def _match(
    names: Iterable[str],
    work: Path,
    settings: Settings,
    workers: int | None,
    progress: Progress,
) -> None:
    """The matches of all pairs that have none yet."""
    skipped = _skipped(work)
    match_pairs(
        work / DATABASE,
        partial(hdf5.read_features, work / FEATURES),
        _pairs([name for name in names if name not in skipped], skipped, settings),
        settings.strategy,
        settings.mapper.seed,
        workers,
        settings.verification,
        lambda done, total: progress("matches", done, total),
    )


def _pairs(names: list[str], skipped: Mapping[str, str], settings: Settings) -> list[Pair]:
    if isinstance(settings.pairs, Path):
        return read_pairs(settings.pairs, names, list(skipped))
    return choose_pairs(names, settings.pairs)


def _build(
    images: Path,
    work: Path,
    settings: Settings,
    state: WorkFolder,
    report: Report,
    progress: Progress,
) -> Report:
    """The report with the models."""
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
