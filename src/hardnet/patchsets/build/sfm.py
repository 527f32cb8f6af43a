"""Structure from motion on folders of photos, by pycolmap: photos -> COLMAP models.

Every stage leaves its result in the work folder, so that a run that was stopped continues where it
was, and a second set with other settings costs no second reconstruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from hardnet.errors import HardnetError, counted
from hardnet.images import list_images
from hardnet.interop.colmap.database import DATABASE, failures_explained, quiet, require_pycolmap
from hardnet.interop.colmap.mapping import (
    SPARSE,
    MapperSettings,
    WorkFolder,
    build_models,
    extract_sift,
    match_sift,
    photo_facts,
    usable_models,
)
from hardnet.patchsets.build.colmap_model import Scene

STAGES = ("features", "matches", "models")


@dataclass(frozen=True)
class SfmSettings(MapperSettings):
    """How to reconstruct; stored in the work folder.

    Attributes:
        max_size: longer side in pixels to which photos are shrunk to find keypoints.
        keypoints: most keypoints of a photo; None for COLMAP's default.
        following: photos of a scene are matched with this number of those that follow in the order
            of their names; 0 matches all pairs.
    """

    max_size: int = 1600
    keypoints: int | None = None
    following: int = 0


@dataclass(frozen=True)
class SfmReport:
    """What :func:`reconstruct` found."""

    scenes: tuple[Scene, ...]
    """One per model, the largest of a photo folder first."""
    failed: dict[str, str]
    """Photo folder -> why it has no model."""


def find_photo_folders(folder: Path) -> dict[str, list[Path]]:
    """Scenes below ``folder``: each folder that has photos directly in it, by relative name."""
    scenes: dict[str, list[Path]] = {}
    for photo in list_images(folder):
        name = photo.parent.relative_to(folder).as_posix()
        scenes.setdefault(folder.name if name == "." else name, []).append(photo)
    return scenes


def reconstruct(
    folder: Path,
    work: Path,
    settings: SfmSettings,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> SfmReport:
    """Reconstruct every folder of photos below ``folder``.

    Each folder is a scene. Photos of several scenes in one folder are told apart by the mapper,
    which makes a model of each. Databases and models are kept in ``work``, in a folder per scene.
    """
    photos = find_photo_folders(folder)
    scenes: list[Scene] = []
    failed: dict[str, str] = {}
    with quiet(require_pycolmap()):
        for number, (name, files) in enumerate(photos.items()):
            if len(files) < settings.min_images:
                failed[name] = (
                    f"{counted(len(files), 'photo')}; at least {settings.min_images} are needed"
                )
                continue

            def advance(stage: str, start: int = number * len(STAGES), name: str = name) -> None:
                done = start + STAGES.index(stage)
                progress(f"{name}: {stage}", done, len(STAGES) * len(photos))

            place = work / name.replace("/", "-")
            models = _reconstruct_scene(files, place, settings, advance)
            if not models:
                failed[name] = "no two photos share enough points seen from different places"
            for k, model in enumerate(models):
                label = name if len(models) == 1 else f"{name}-{k}"
                scenes.append(Scene(label, model, files[0].parent, place / DATABASE))
    if not scenes:
        reasons = "; ".join(f"{name}: {why}" for name, why in failed.items())
        raise HardnetError(f"{folder}: nothing could be reconstructed ({reasons})")
    return SfmReport(tuple(scenes), failed)


def _reconstruct_scene(
    files: Sequence[Path], work: Path, settings: SfmSettings, advance: Callable[[str], None]
) -> list[Path]:
    """Models of one scene, largest first; stages that are done already are not repeated."""
    images, names = files[0].parent, [p.name for p in files]
    stored = asdict(settings)
    if settings.mapper == "incremental":  # folders begun before there was a choice do not name it
        del stored["mapper"]
    inputs = {"settings": stored, "photos": photo_facts(images, files)}
    database, sparse = work / DATABASE, work / SPARSE
    with WorkFolder(work, inputs) as state, failures_explained(work):
        advance("features")
        if not state.has("features"):
            size, most = settings.max_size, settings.keypoints
            extract_sift(database, images, names, size, most, settings.seed)
            state.add("features")
        advance("matches")
        if not state.has("matches"):
            following = settings.following if len(names) > settings.following else 0
            match_sift(database, settings.seed, following)
            state.add("matches")
        advance("models")
        if not state.has("models"):
            build_models(database, images, sparse, settings)
            state.add("models")
    return usable_models(sparse, settings.min_images)
