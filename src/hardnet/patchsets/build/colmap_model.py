"""COLMAP models: made from folders of photos by pycolmap, and read as arrays.

Every stage of a reconstruction keeps its result in the work folder: a stopped run continues where
it was, and a second set with other settings needs no second reconstruction. Pixel coordinates
follow our convention throughout: the centre of the top-left pixel is (0, 0).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Progress, counted, silent
from hardnet.frames import points_from_colmap, points_to_colmap
from hardnet.image_files import read_image_file
from hardnet.images import Pixels, list_images
from hardnet.interop.colmap.database import DATABASE, failures_explained, quiet, require_pycolmap
from hardnet.interop.colmap.mapping import (
    SPARSE,
    MapperSettings,
    WorkFolder,
    build_models,
    extract_sift,
    find_models,
    is_model,
    match_sift,
    open_model,
    photo_facts,
    usable_models,
)
from hardnet.patchsets.build.choice import Rows
from hardnet.patchsets.patchset import Floats, Ints
from hardnet.storage import check_inside

if TYPE_CHECKING:
    import pycolmap


@dataclass(frozen=True)
class Scene:
    """A COLMAP model on disk, and the folder that its photo names are relative to."""

    name: str
    model: Path
    images: Path
    database: Path | None = None


@dataclass(frozen=True)
class View:
    """One registered photo.

    ``rotation`` (3, 3) and ``translation`` (3,) map the world to the camera; ``keypoints`` (K, 2)
    are all of the photo, triangulated or not.
    """

    name: str
    path: Path
    camera: pycolmap.Camera
    rotation: Floats
    translation: Floats
    keypoints: Floats

    @property
    def size(self) -> tuple[int, int]:
        return self.camera.width, self.camera.height

    def to_camera(self, world: Floats) -> Floats:
        """(N, 3) world points in the camera's coordinates; z is the depth."""
        return np.asarray(world @ self.rotation.T + self.translation)

    def to_world(self, points: Floats) -> Floats:
        return np.asarray((points - self.translation) @ self.rotation)

    def project(self, world: Floats) -> Floats:
        """(N, 2) pixels of (N, 3) world points, lens distortion included; NaN behind the camera."""
        points = self.to_camera(world)
        pixels = np.asarray(self.camera.img_from_cam(points, check_cheirality=False), np.float64)
        return np.where(points[:, 2:] > 0, points_from_colmap(pixels), np.nan)

    def lift(self, pixels: Floats, depth: Floats) -> Floats:
        """(N, 3) world points seen at (N, 2) pixels, at (N,) depth."""
        rays = np.asarray(self.camera.cam_from_img(points_to_colmap(pixels)), np.float64)
        return self.to_world(np.concatenate([rays, np.ones((len(rays), 1))], 1) * depth[:, None])


@dataclass(frozen=True)
class Observations(Rows):
    """Row i: a point was seen in a view. Sorted by point."""

    point: Ints
    view: Ints

    @property
    def points(self) -> int:
        return len(np.unique(self.point))


@dataclass(frozen=True)
class Tracks(Observations):
    """Observations of a model.

    ``keypoint`` is the row of the view's keypoints and ``xy`` (M, 2) its position; ``error`` the
    distance of the point's projection from it, in pixels.
    """

    keypoint: Ints
    xy: Floats
    error: Floats
    depth: Floats


@dataclass(frozen=True)
class Model:
    """What a scene's model holds."""

    scene: Scene
    views: tuple[View, ...]
    xyz: Floats  # (P, 3) world positions of the points, in the order of COLMAP's ids
    tracks: Tracks


def find_database(model: Path, images: Path) -> Path | None:
    """The ``database.db`` in or above the model's folder, or beside the photos."""
    model = model.resolve()
    for folder in (model, model.parent, model.parent.parent, images.resolve().parent):
        if (folder / DATABASE).is_file():
            return folder / DATABASE
    return None


def read_model(scene: Scene) -> Model:
    """Read a model; every photo it names must exist."""
    if not is_model(scene.model):
        find_models(scene.model)
    source = open_model(scene.model)
    images = [source.image(number) for number in sorted(source.reg_image_ids())]
    names = [check_inside(image.name, scene.model) for image in images]
    if not scene.images.is_dir():
        raise HardnetError(f"{scene.images} is not a folder: name the folder of the photos")
    missing = [name for name in names if not (scene.images / name).is_file()]
    if missing:
        more = f" (and {counted(len(missing) - 1, 'other')})" if len(missing) > 1 else ""
        raise HardnetError(f"{scene.images} lacks {missing[0]}{more}, which {scene.model} names")
    if not names:
        raise HardnetError(f"{scene.model} has no registered image")
    ids = sorted(source.point3D_ids())
    xyz = np.array([source.point3D(number).xyz for number in ids]).reshape(-1, 3)
    views, tracks = [], []
    for number, image in enumerate(images):
        camera, pose = source.camera(image.camera_id), image.cam_from_world()
        rotation = np.asarray(pose.rotation.matrix(), np.float64)
        translation = np.asarray(pose.translation, np.float64)
        xy = np.array([p.xy for p in image.points2D], np.float64).reshape(-1, 2)
        path, keypoints = scene.images / image.name, points_from_colmap(xy)
        views.append(View(image.name, path, camera, rotation, translation, keypoints))
        seen = [(i, p.point3D_id) for i, p in enumerate(image.points2D) if p.has_point3D()]
        keypoint, point = np.array(seen, np.int64).reshape(-1, 2).T
        tracks.append(
            _tracks_of_view(views[-1], number, keypoint, np.searchsorted(ids, point), xyz)
        )
    every = Tracks.join(tracks)
    return Model(scene, tuple(views), xyz, every[np.argsort(every.point, kind="stable")])


def read_photo(path: Path, size: tuple[int, int]) -> Pixels:
    """(H, W) grey pixels as COLMAP sees them, of its camera's ``size``: it ignores EXIF."""
    data = np.frombuffer(read_image_file(path), np.uint8)
    image = cv2.imdecode(data, cv2.IMREAD_GRAYSCALE | cv2.IMREAD_IGNORE_ORIENTATION)
    if image is None:
        raise HardnetError(f"{path} is damaged or not an image OpenCV can read")
    height, width = image.shape
    if (width, height) != size:
        raise HardnetError(
            f"{path} is {width}x{height} pixels, but its camera in the model is "
            f"{size[0]}x{size[1]}: give the photos the model was made from"
        )
    return np.asarray(image, np.uint8)


def _tracks_of_view(view: View, number: int, keypoint: Ints, point: Ints, xyz: Floats) -> Tracks:
    world, xy = xyz[point], view.keypoints[keypoint]
    error = np.linalg.norm(view.project(world) - xy, axis=1)
    error = np.where(np.isfinite(error), error, np.inf)
    depth = view.to_camera(world)[:, 2]
    # A point with two keypoints in one photo (two orientations, say) keeps the better one.
    order = np.lexsort((error, point))
    order = order[np.unique(point[order], return_index=True)[1]]
    where = np.full(len(keypoint), number, np.int64)
    return Tracks(point, where, keypoint, xy, error, depth)[order]


@contextmanager
def open_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection; errors name the file.

    pycolmap would open it for writing and upgrade it: a user's database is not ours to change.
    """
    # COLMAP leaves its file in write-ahead mode. Even to read such a file SQLite wants to write
    # beside it, unless told that the file does not change; a -wal file means someone is writing.
    busy = path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.resolve().as_uri()}?{'mode=ro' if busy else 'immutable=1'}"
    try:
        connection = sqlite3.connect(uri, uri=True)
        try:
            yield connection
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise HardnetError(f"{path} cannot be read as a COLMAP database: {error}") from None


def read_keypoints(database: sqlite3.Connection, image: str) -> NDArray[np.float32] | None:
    """(K, 2), (K, 4) or (K, 6) keypoints of an image by name; None if it is not there."""
    query = (
        "SELECT k.rows, k.cols, k.data FROM keypoints k JOIN images i ON k.image_id = i.image_id "
        "WHERE i.name = ?"
    )
    row = database.execute(query, (image,)).fetchone()
    if row is None:
        return None
    rows, columns, data = row
    return np.frombuffer(data or b"", np.float32).reshape(rows, columns)


STAGES = ("features", "matches", "models")


@dataclass(frozen=True)
class SfmSettings(MapperSettings):
    """How to reconstruct; stored in the work folder.

    Photos are shrunk to ``max_size`` to find keypoints. Each is matched with the next ``following``
    photos by name; 0 matches all pairs.
    """

    max_size: int = 1600
    keypoints: int | None = None
    following: int = 0


@dataclass(frozen=True)
class SfmReport:
    """What :func:`reconstruct` found."""

    scenes: tuple[Scene, ...]  # one per model, the largest of a photo folder first
    failed: dict[str, str]  # photo folder -> why it has no model


def find_photo_folders(folder: Path) -> dict[str, list[Path]]:
    """Scenes below ``folder``: each folder that has photos directly in it, by relative name."""
    scenes: dict[str, list[Path]] = {}
    for photo in list_images(folder):
        name = photo.parent.relative_to(folder).as_posix()
        scenes.setdefault(folder.name if name == "." else name, []).append(photo)
    return scenes


def reconstruct(
    folder: Path, work: Path, settings: SfmSettings, progress: Progress = silent
) -> SfmReport:
    """Reconstruct every folder of photos below ``folder``.

    Each folder is a scene. The mapper separates photos of several scenes in one folder into several
    models. Databases and models are kept in ``work``, in a folder per scene.
    """
    photos = find_photo_folders(folder)
    scenes: list[Scene] = []
    failed: dict[str, str] = {}
    with quiet(require_pycolmap()):
        for number, (name, files) in enumerate(photos.items()):
            if len(files) < settings.min_images:
                found = counted(len(files), "photo")
                failed[name] = f"{found}; at least {settings.min_images} are needed"
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
    images, names = files[0].parent, [p.name for p in files]
    database, sparse = work / DATABASE, work / SPARSE
    following = settings.following if len(names) > settings.following else 0
    stages: dict[str, Callable[[], object]] = {
        "features": lambda: extract_sift(
            database, images, names, settings.max_size, settings.keypoints, settings.seed
        ),
        "matches": lambda: match_sift(database, settings.seed, following),
        "models": lambda: build_models(database, images, sparse, settings),
    }
    inputs = {"settings": asdict(settings), "photos": photo_facts(images, files)}
    with WorkFolder(work, inputs) as state, failures_explained(work):
        for stage, run in stages.items():
            advance(stage)
            if not state.has(stage):
                run()
                state.add(stage)
    return usable_models(sparse, settings.min_images)
