"""From a COLMAP database to models, the same ones every time, in a work folder that resumes.

COLMAP's own SIFT is here too: the reference for comparisons, and the source of patch sets.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, Literal, Self

from hardnet.errors import HardnetError
from hardnet.image_files import state_of
from hardnet.interop.colmap.database import (
    DATABASE,
    CameraSettings,
    check_database,
    import_images,
    remove_database,
    require_pycolmap,
)
from hardnet.storage import (
    FolderLock,
    OwnedFolder,
    check_inside,
    claim,
    refuse_foreign,
    refuse_other_settings,
    replacing,
)

PARTS = ("cameras", "images", "points3D")
MODEL_FILES = (
    "project.ini",
    *(f"{part}{suffix}" for part in (*PARTS, "frames", "rigs") for suffix in (".bin", ".txt")),
)
"""All that COLMAP writes into the folder of a model."""
SPARSE = "sparse"
_RELAXED_ANGLE, _RELAXED_INLIERS = 2.0, 50
"""Degrees of parallax and matches of the first two photos, if COLMAP's defaults (16 and 100) find
no pair to start from, as when the camera moves straight ahead."""


@dataclass(frozen=True)
class MapperSettings:
    """How to reconstruct.

    Attributes:
        mapper: "incremental" adds photo by photo; "global" solves for all cameras at once, several
            times faster on a hundred photos, and needs three photos of every point.
        min_images: smaller models are dropped.
        seed: of the random samples; the result still depends on the version of pycolmap.
        refine_cameras: estimate focal length and distortion; False: they are known.
    """

    mapper: Literal["incremental", "global"] = "incremental"
    min_images: int = 3
    seed: int = 0
    refine_cameras: bool = True


def build_models(
    database: Path,
    images: Path,
    sparse: Path,
    settings: MapperSettings,
    progress: Callable[[int], None] = lambda registered: None,
) -> list[Path]:
    """Reconstruct the photos of a database; returns the :func:`usable_models` in ``sparse``.

    Models that we made there before are deleted. If the global mapper finds nothing, the
    incremental one follows, and if COLMAP's defaults find nothing, a last attempt asks less of the
    first two photos. ``progress`` is called with the number of photos added so far.
    """
    pycolmap = require_pycolmap()
    with pycolmap.Database.open(database) as opened:
        for image in opened.read_all_images():
            check_inside(image.name, database)  # COLMAP opens photos by these names
    attempts = ["global"] if settings.mapper == "global" else []
    models: list[Path] = []
    for number, attempt in enumerate([*attempts, "incremental", "relaxed"]):
        clear_models(sparse, ours=number > 0)
        place = database, images, sparse
        if attempt == "global":
            pycolmap.global_mapping(*place, _global_options(pycolmap, settings))
        else:
            options, steps = _options(pycolmap, settings, attempt == "relaxed"), count(1)
            report = lambda steps=steps: progress(next(steps))  # noqa: E731
            pycolmap.incremental_mapping(*place, options, next_image_callback=report)
        if models := usable_models(sparse, settings.min_images):
            break
    return models


def usable_models(sparse: Path, min_images: int) -> list[Path]:
    """Models with points and enough photos, those with the most points first."""
    points: dict[Path, int] = {}
    for path in find_models(sparse) if any(sparse.iterdir()) else []:
        model = require_pycolmap().Reconstruction(str(path))
        if model.num_reg_images() >= min_images and model.num_points3D():
            points[path] = model.num_points3D()
    return sorted(points, key=lambda path: -points[path])


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
        options.mapper.init_min_tri_angle = _RELAXED_ANGLE
        options.mapper.init_max_forward_motion = 1.0
        options.mapper.init_min_num_inliers = _RELAXED_INLIERS
    return options


def _global_options(pycolmap: Any, settings: MapperSettings) -> Any:
    options = pycolmap.GlobalPipelineOptions()
    options.min_model_size = settings.min_images
    options.random_seed = options.mapper.random_seed = settings.seed
    options.num_threads = options.mapper.num_threads = 1  # the same model every time
    adjustment = options.mapper.bundle_adjustment
    adjustment.refine_focal_length = adjustment.refine_extra_params = settings.refine_cameras
    adjustment.ceres.use_gpu = options.mapper.global_positioning.use_gpu = False
    return options


def find_models(folder: Path) -> list[Path]:
    """``folder`` itself if it is a model, else the models directly inside (sparse/0, sparse/1)."""
    if is_model(folder):
        return [folder]
    inside = [p for p in sorted(folder.iterdir()) if is_model(p)] if folder.is_dir() else []
    if not inside:
        raise HardnetError(
            f"{folder} is not a COLMAP model: no cameras, images and points3D (.bin or .txt) there"
        )
    return sorted(inside, key=lambda p: (int(p.name) if p.name.isdecimal() else 0, p.name))


def is_model(folder: Path) -> bool:
    return any(
        all((folder / f"{part}{suffix}").is_file() for part in PARTS) for suffix in (".bin", ".txt")
    )


def open_model(folder: Path) -> Any:
    """The reconstruction of a model that may come from anybody.

    A damaged file makes pycolmap read points without end, or ends the process. So the lengths in
    the binary files are checked first, and another process tries to read the model.
    """
    pycolmap = require_pycolmap()
    damaged = f"{folder} is damaged: pycolmap cannot read this model"
    for part, length in _RECORDS.items():
        path = folder / f"{part}.bin"
        if path.is_file() and not _is_filled(path.read_bytes(), length):
            raise HardnetError(f"{damaged}: {path.name} does not have the length that it claims")
    program = "import sys, pycolmap; pycolmap.Reconstruction(sys.argv[1])"
    tried = subprocess.run([sys.executable, "-P", "-c", program, str(folder)], capture_output=True)
    if tried.returncode < 0:
        raise HardnetError(damaged)
    try:
        return pycolmap.Reconstruction(str(folder))
    except (ValueError, RuntimeError, IndexError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise HardnetError(f"{folder}: pycolmap cannot read this model: {reason}") from None


def _after_point(content: bytes, start: int) -> int:
    """Number, position, colour and error; then the length of the track, and its elements."""
    return start + 51 + 8 * int(struct.unpack_from("<Q", content, start + 43)[0])


def _after_image(content: bytes, start: int) -> int:
    """Number, pose and camera; the name, up to a zero; then keypoints and their points."""
    end = content.index(b"\0", start + 64) + 1
    return end + 8 + 24 * int(struct.unpack_from("<Q", content, end)[0])


_RECORDS: dict[str, Callable[[bytes, int], int]] = {
    "points3D": _after_point,
    "images": _after_image,
}
"""Where the record ends that starts at a byte, of the files whose records differ in length."""


def _is_filled(content: bytes, after: Callable[[bytes, int], int]) -> bool:
    try:
        (records,) = struct.unpack_from("<Q", content)
        place = 8
        for _ in range(records):
            place = after(content, place)
    except (struct.error, ValueError, OverflowError):  # beyond the end of the file
        return False
    return place == len(content)


def clear_models(sparse: Path, ours: bool = False) -> None:
    """An empty folder for models: those that we made there before are deleted.

    Anything that COLMAP does not write is an error, and so are models in a folder that is not ours;
    ``ours``: this process made what is in it.
    """
    owned = OwnedFolder.find(sparse.parent)
    listed = owned is not None and f"{sparse.name}/" in owned
    if sparse.is_dir() and not sparse.is_symlink():
        models = list(sparse.iterdir())
        files = [file for model in models if model.is_dir() for file in model.iterdir()]
        for path in (*models, *files):
            known = path.name in MODEL_FILES if path.parent != sparse else path.name.isdecimal()
            if not (ours or listed) or not known or path.is_symlink():
                raise HardnetError(f"{path} is in the way: hardnet did not make it; move it")
        for file in files:
            file.unlink()
        for model in models:
            model.rmdir()
    elif owned is not None:
        owned.claim(f"{sparse.name}/")
    sparse.mkdir(exist_ok=True)


def extract_sift(
    database: Path,
    images: Path,
    names: Sequence[str],
    max_size: int,
    keypoints: int | None = None,
    seed: int = 0,
    cameras: CameraSettings | None = None,
) -> None:
    """Write cameras, images, keypoints and descriptors of the photos; an old file is replaced.

    Photos are numbered in the order of ``names``, and shrunk to ``max_size`` to find keypoints.
    ``keypoints`` are the most places per photo, None for COLMAP's default; a place may have two
    orientations, which count as one here.
    """
    pycolmap = require_pycolmap()
    remove_database(database)  # half-written
    options = pycolmap.FeatureExtractionOptions()
    options.max_image_size, options.use_gpu = max_size, False
    if keypoints is not None:
        options.sift.max_num_features = keypoints
    pycolmap.set_random_seed(seed)
    # Registered first: the threads of the extraction would number the photos as they finish.
    pycolmap.Database.open(database).close()
    import_images(database, images, names, cameras or CameraSettings())
    pycolmap.extract_features(database, images, names, extraction_options=options)


def match_sift(database: Path, seed: int = 0, following: int = 0) -> None:
    """Match and verify pairs of photos of a database with keypoints and descriptors.

    Each photo is matched with the next ``following`` by name; 0 matches all pairs.
    """
    pycolmap = require_pycolmap()
    matching, verification = pycolmap.FeatureMatchingOptions(), pycolmap.TwoViewGeometryOptions()
    matching.use_gpu = False
    verification.ransac.random_seed = seed
    options = {"matching_options": matching, "verification_options": verification}
    if following:
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap, pairing.quadratic_overlap = following, False
        pycolmap.match_sequential(database, pairing_options=pairing, **options)
    else:
        pycolmap.match_exhaustive(database, **options)


class WorkFolder:
    """Remembers finished stages in ``state.json``, and refuses other photos or settings.

    Use it in a ``with`` statement: the folder belongs to one process at a time. It is new, empty
    or of the same ``inputs``, JSON values that the results depend on.
    """

    def __init__(self, folder: Path, inputs: dict[str, Any]) -> None:
        self._folder = folder
        self._path = folder / "state.json"
        self._lock = FolderLock(folder)
        # As a file gives them back: a tuple is a list there.
        self._inputs: dict[str, Any] = json.loads(json.dumps(inputs))
        self._done: list[str] = []

    def __enter__(self) -> Self:
        folder = self._folder
        if not self._path.is_file():
            refuse_foreign(folder, ["lock"])
        folder.mkdir(parents=True, exist_ok=True)
        if not self._lock.take():
            raise HardnetError(
                f"another process works in {folder}: wait for it, or name another folder"
            )
        try:  # only now: the previous process may have written until it released the lock
            OwnedFolder.mark(folder).sweep()
            check_database(folder / DATABASE)
            self._read()
        except BaseException:
            self._lock.release()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _read(self) -> None:
        if not self._path.is_file():
            self._write([])
            return
        try:
            found = json.loads(self._path.read_text())
            self._done = found["done"]
        except (ValueError, KeyError, TypeError):
            raise HardnetError(f"{self._path} is damaged: delete {self._folder}") from None
        advice = "delete it, or name another work folder"
        refuse_other_settings(found, self._inputs, self._folder, advice)

    def _write(self, done: list[str]) -> None:
        self._done = done
        write_json(self._path, {**self._inputs, "done": done})

    def has(self, stage: str) -> bool:
        return stage in self._done

    def add(self, stage: str) -> None:
        self._write([*self._done, stage])

    def once(self, stage: str, make: Callable[[], None]) -> None:
        """Make what the stage makes, unless it was finished."""
        if not self.has(stage):
            make()
            self.add(stage)

    def forget(self, *stages: str) -> None:
        """These stages must be done again."""
        self._write([stage for stage in self._done if stage not in stages])


def write_json(path: Path, value: Any) -> None:
    """Write a file that is complete or as it was, whenever the process is killed."""
    with replacing(claim(path)) as part:
        part.write_text(json.dumps(value, indent=1) + "\n")


def photo_facts(folder: Path, files: Sequence[Path]) -> list[list[Any]]:
    """Name, size and time of change of each photo: enough to notice a change."""
    facts: list[list[Any]] = []
    for path in files:
        facts.append([path.relative_to(folder).as_posix()])
        with suppress(OSError):  # a loop of links; reading it will say so
            facts[-1] += state_of(path).values()
    return facts
