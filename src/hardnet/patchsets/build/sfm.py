"""Structure from motion on folders of photos, by pycolmap: photos -> COLMAP models.

Every stage leaves its result in the work folder, so that a run that was stopped goes on where it
was, and a second set with other settings costs no second reconstruction.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.images import list_images
from hardnet.patchsets.build.colmap_model import DATABASE, Scene, find_models, require_pycolmap

STAGES = ("features", "matches", "models")
SILENT = 3  # glog's level of fatal errors: all others we say ourselves
SPARSE = "sparse"
STATE = "state.json"


@dataclass(frozen=True)
class SfmSettings:
    """How to reconstruct; stored in the work folder.

    Attributes:
        max_size: longer side in pixels to which photos are shrunk to find keypoints.
        min_images: smaller models are dropped.
        relaxed_angle: degrees of parallax the first two photos must have where COLMAP's default
            (16) finds no pair to start from, as when the camera moves straight ahead.
        relaxed_inliers: matches those two photos must share then (COLMAP's default: 100).
        seed: of the random samples; the result still depends on the version of pycolmap.
    """

    max_size: int = 1600
    min_images: int = 3
    relaxed_angle: float = 2.0
    relaxed_inliers: int = 50
    seed: int = 0


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

    Args:
        folder: photos, or folders of photos: each folder is a scene. Photos of several scenes in
            one folder are told apart by the mapper, which makes a model of each.
        work: databases and models are kept here, in a folder per scene.
        settings: see :class:`SfmSettings`.
        progress: called with (scene and stage, stages done, stages in all).

    Raises:
        HardnetError: nothing could be reconstructed.
    """
    pycolmap = require_pycolmap()
    photos = find_photo_folders(folder)
    scenes: list[Scene] = []
    failed: dict[str, str] = {}
    with _quiet(pycolmap):
        for number, (name, files) in enumerate(photos.items()):
            if len(files) < settings.min_images:
                failed[name] = f"{len(files)} photos; at least {settings.min_images} are needed"
                continue

            def advance(stage: str, start: int = number * len(STAGES), name: str = name) -> None:
                done = start + STAGES.index(stage)
                progress(f"{name}: {stage}", done, len(STAGES) * len(photos))

            place = work / name.replace("/", "-")
            models = _reconstruct_scene(pycolmap, files, place, settings, advance)
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
    pycolmap: Any,
    files: Sequence[Path],
    work: Path,
    settings: SfmSettings,
    advance: Callable[[str], None],
) -> list[Path]:
    """Models of one scene, largest first; stages that are done already are not repeated."""
    images, names = files[0].parent, [p.name for p in files]
    state = _State(work, {"settings": asdict(settings), "photos": _photo_facts(files)})
    database, sparse = work / DATABASE, work / SPARSE
    advance("features")
    if not state.has("features"):
        database.unlink(missing_ok=True)  # half-written
        options = pycolmap.FeatureExtractionOptions()
        options.max_image_size, options.use_gpu = settings.max_size, False
        pycolmap.set_random_seed(settings.seed)
        # Registered first: the threads of the extraction would number the photos as they finish.
        pycolmap.Database.open(database).close()
        pycolmap.import_images(database, images, image_names=names)
        pycolmap.extract_features(database, images, names, extraction_options=options)
        state.add("features")
    advance("matches")
    if not state.has("matches"):
        matching, verification = (
            pycolmap.FeatureMatchingOptions(),
            pycolmap.TwoViewGeometryOptions(),
        )
        matching.use_gpu = False
        verification.ransac.random_seed = settings.seed
        pycolmap.match_exhaustive(
            database, matching_options=matching, verification_options=verification
        )
        state.add("matches")
    advance("models")
    if not state.has("models"):
        for relaxed in (False, True):
            shutil.rmtree(sparse, ignore_errors=True)
            sparse.mkdir()
            options = _mapper_options(pycolmap, settings, relaxed)
            pycolmap.incremental_mapping(database, images, sparse, options)
            if _usable_models(pycolmap, sparse, settings.min_images):
                break
        state.add("models")
    return _usable_models(pycolmap, sparse, settings.min_images)


def _mapper_options(pycolmap: Any, settings: SfmSettings, relaxed: bool) -> Any:
    options = pycolmap.IncrementalPipelineOptions()
    options.min_model_size = settings.min_images
    options.random_seed = settings.seed
    options.num_threads = 1  # more of them add in another order each time: another model
    if relaxed:
        options.mapper.init_min_tri_angle = settings.relaxed_angle
        options.mapper.init_max_forward_motion = 1.0
        options.mapper.init_min_num_inliers = settings.relaxed_inliers
    return options


def _usable_models(pycolmap: Any, sparse: Path, min_images: int) -> list[Path]:
    """Models with points and enough photos, those with the most points first."""
    if not any(sparse.iterdir()):
        return []
    sized = []
    for number, path in enumerate(find_models(sparse)):
        model = pycolmap.Reconstruction(str(path))
        if model.num_reg_images() >= min_images and model.num_points3D():
            sized.append((-model.num_points3D(), number, path))
    return [path for *_, path in sorted(sized)]


class _State:
    """Which stages of a scene are done, for which photos and settings."""

    def __init__(self, work: Path, inputs: dict[str, Any]) -> None:
        self._path = work / STATE
        self._content: dict[str, Any] = {**inputs, "done": []}
        if self._path.is_file():
            found = json.loads(self._path.read_text())
            if {**found, "done": []} != self._content:
                raise HardnetError(
                    f"{work} was made from other photos or settings; delete it or name another "
                    "work folder"
                )
            self._content = found
        elif work.exists() and any(work.iterdir()):
            raise HardnetError(f"{work} holds other files; name another work folder")
        work.mkdir(parents=True, exist_ok=True)
        self._write()

    def has(self, stage: str) -> bool:
        return stage in self._content["done"]

    def add(self, stage: str) -> None:
        self._content["done"].append(stage)
        self._write()

    def _write(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self._content, indent=1) + "\n")
        part.replace(self._path)


def _photo_facts(files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of change of each photo: enough to notice that they are others."""
    return [[p.name, p.stat().st_size, p.stat().st_mtime_ns] for p in files]


@contextmanager
def _quiet(pycolmap: Any) -> Iterator[None]:
    """Without COLMAP's running commentary."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = SILENT
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before
