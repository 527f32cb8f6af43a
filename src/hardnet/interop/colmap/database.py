"""A COLMAP database: cameras, photos, keypoints, matches and their geometry.

Descriptors are left out: COLMAP's matching takes them for bytes of SIFT, and the mapper needs none.
COLMAP verifies the matches: it knows the cameras and tells planes from depth by itself, and gives
larger models than our inliers, which are stricter.

Our images are turned by their EXIF entry; COLMAP reads the pixels as they are stored. Keypoints go
to COLMAP in its pixels, so that its colours, undistorted images and dense models come out right.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, MissingExtraError, Steps, silent
from hardnet.features import Features
from hardnet.frames import Frames, to_colmap
from hardnet.matching.matches import Matches, Strategy, find_matches, match
from hardnet.storage import OwnedFolder, check_inside
from hardnet.threads import in_order, usable_cores

Pair = tuple[str, str]
DATABASE = "database.db"
MIN_INLIERS = 15
"""COLMAP's own smallest number of matches of a pair it believes."""
BLOCK = 64
"""Photos whose pairs are matched together; the features of two blocks are kept in memory."""
_BESIDE = {
    "-wal": (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83"),
    "-shm": (b"\x18\xe2\x2d\x00", b"\x00\x2d\xe2\x18"),
    "-journal": (b"\xd9\xd5\x05\xf9",),
}
"""What SQLite keeps beside a database, and how these files begin."""
_FATAL = 3  # glog's level: all other errors we report ourselves

# EXIF orientation -> how stored (x, y) follow from upright (u, v): whether to exchange the two
# axes, then the signs of x and y.
_TURNS = {
    **{1: (False, 1, 1), 2: (False, -1, 1), 3: (False, -1, -1), 4: (False, 1, -1)},
    **{5: (True, 1, 1), 6: (True, 1, -1), 7: (True, -1, -1), 8: (True, -1, 1)},
}


@dataclass(frozen=True)
class CameraSettings:
    """What is known about the cameras.

    Attributes:
        model: COLMAP's name of the camera model.
        single: all photos are from one camera with one zoom. Otherwise photos share a camera if
            their EXIF entries name the same one, and photos without entries have one each.
        focal: a first guess of the focal length in pixels of the photos as they are stored; None:
            from EXIF, or else 1.2 times the longer side.
        params: all parameters of the camera model, in COLMAP's order and pixels (the corner of the
            first pixel is 0), from a calibration: the mapper keeps them as they are.
    """

    model: str = "SIMPLE_RADIAL"
    single: bool = False
    focal: float | None = None
    params: tuple[float, ...] | None = None


@dataclass(frozen=True, eq=False)
class DatabasePhoto:
    """What a database holds of a photo: its camera, and (N, 2) keypoints in COLMAP's pixels."""

    id: int
    camera: Any
    points: NDArray[np.float64]


def write_database(
    path: Path,
    images: Path,
    features: Mapping[str, Features],
    matches: Mapping[Pair, Matches],
    cameras: CameraSettings | None = None,
    seed: int = 0,
) -> dict[str, str]:
    """Write features and matches as a COLMAP database; an old file is replaced.

    Photos are called by their path in the folder ``images``. All matches are written, and as
    two-view geometry those that COLMAP verifies by the cameras. Returns photos that COLMAP cannot
    use, name -> why; they and their matches are left out.
    """
    pycolmap = require_pycolmap()
    with quiet(pycolmap):
        refused = write_photos(path, images, features, cameras or CameraSettings())
        with pycolmap.Database.open(path) as database:
            photos = read_photos(database, path)
            for (a, b), found in matches.items():
                if a in photos and b in photos:
                    geometry = _verify(photos[a], photos[b], found.indices, seed)
                    _write_pair(database, photos[a], photos[b], found.indices, geometry)
    return refused


def write_photos(
    path: Path, images: Path, features: Mapping[str, Features], cameras: CameraSettings
) -> dict[str, str]:
    """Write a new database with cameras, images and keypoints; see :func:`write_database`.

    Photos are numbered in the given order.
    """
    pycolmap = require_pycolmap()
    sizes = {check_inside(name, path): found.image_size for name, found in features.items()}
    check_cameras(cameras)
    remove_database(path)
    turns: dict[str, int] = {}
    refused: dict[str, str] = {}
    for name, size in sizes.items():
        found = _orientation(pycolmap, images / name, size)
        if isinstance(found, int):
            turns[name] = found
        else:
            refused[name] = found
    if cameras.single:  # COLMAP would leave out the photos of another size without a word
        stored = {name: stored_size(sizes[name], turn) for name, turn in turns.items()}
        first, size = next(iter(stored.items()), ("", (0, 0)))
        for name, other in stored.items():
            if other != size:
                raise HardnetError(
                    f"a single camera has photos of one size: {first} has {size[0]}x{size[1]} "
                    f"pixels, {name} {other[0]}x{other[1]}; leave --single-camera out"
                )
    pycolmap.Database.open(path).close()
    import_images(path, images, list(turns), cameras)
    # Without these columns COLMAP before 3.10, which Debian and Ubuntu still carry, does not open a
    # database. Newer versions ignore columns they do not know.
    with closing(sqlite3.connect(path)) as connection:
        for column in ("qw", "qx", "qy", "qz", "tx", "ty", "tz"):
            connection.execute(f"ALTER TABLE images ADD COLUMN prior_{column} REAL")
        connection.commit()
    with pycolmap.Database.open(path) as database:
        numbers = {image.name: image.image_id for image in database.read_all_images()}
        for name, number in numbers.items():
            frames = turn_frames(features[name].frames, sizes[name], turns[name])
            database.write_keypoints(number, to_colmap(frames))
    unread = (name for name in turns if name not in numbers)
    return refused | dict.fromkeys(unread, "COLMAP cannot read this file")


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
    """Write cameras and images into an existing database; photos are numbered in this order.

    Those that COLMAP cannot read are left out.
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
            params = np.array(settings.params or camera.params)
            if settings.focal is not None:
                params[list(camera.focal_length_idxs())] = settings.focal
            camera.params = params
            camera.has_prior_focal_length = True
            opened.update_camera(camera)


def _orientation(pycolmap: Any, path: Path, size: tuple[int, int]) -> int | str:
    """The EXIF entry of a photo whose upright size is known, or why COLMAP cannot use it."""
    bitmap = pycolmap.Bitmap.read(str(path), False)
    if bitmap is None:
        return "COLMAP cannot read this kind of file: convert it to JPEG or PNG"
    entry = bitmap.exif_orientation()
    orientation = int(entry) if entry in _TURNS else 1
    if (bitmap.width, bitmap.height) != stored_size(size, orientation):
        return (
            f"COLMAP sees {bitmap.width}x{bitmap.height} pixels, not {size[0]}x{size[1]}: "
            "save it without its EXIF orientation"
        )
    return orientation


def stored_size(size: tuple[int, int], orientation: int) -> tuple[int, int]:
    """(width, height) of the file's pixels, from those of the upright photo."""
    return (size[1], size[0]) if _TURNS[orientation][0] else size


def turn_frames(frames: Frames, size: tuple[int, int], orientation: int) -> Frames:
    """(N, 2, 3) frames of an upright photo of this size in pixels of the file."""
    exchange, *signs = _TURNS[orientation]
    turned = (frames[:, ::-1] if exchange else frames).astype(np.float64)
    turned *= np.array(signs)[:, None]
    far = np.array(stored_size(size, orientation)) - 1
    turned[:, :, 2] += np.where(np.array(signs) < 0, far, 0)
    return turned.astype(np.float32)


def read_photos(database: Any, path: Path) -> dict[str, DatabasePhoto]:
    """The photos by name of an open database, whose file is ``path``."""
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
    return {
        check_inside(image.name, path): DatabasePhoto(
            image.image_id,
            cameras[image.camera_id],
            np.asarray(database.read_keypoints(image.image_id), np.float64)[:, :2],
        )
        for image in database.read_all_images()
    }


def match_pairs(
    path: Path,
    features: Callable[[str], Features],
    pairs: Sequence[Pair],
    strategy: Strategy,
    seed: int,
    workers: int | None = None,
    progress: Steps = silent,
) -> None:
    """Find and verify the matches of pairs of photos of a database with keypoints.

    A pair whose matches are in it is done: a run that was killed continues with the others.
    ``features`` gives those of a photo, by name; ``workers`` threads call it, by default one per
    usable core.
    """
    pycolmap = require_pycolmap()
    from threadpoolctl import threadpool_limits  # comes with pycolmap in the extra

    load = lru_cache(4 * BLOCK)(features)
    with pycolmap.Database.open(path) as database:
        photos = read_photos(database, path)

        def work(pair: Pair) -> tuple[Pair, NDArray[np.intp], Any]:
            a, b = pair
            if strategy.guided:  # along our geometry; COLMAP verifies all of them
                indices = match(load(a), load(b), strategy=strategy).indices
            else:
                indices, _ = find_matches(load(a), load(b), strategy)
            return pair, indices, _verify(photos[a], photos[b], indices, seed)

        left = [(a, b) for a, b in pairs if not database.exists_matches(photos[a].id, photos[b].id)]
        before = len(pairs) - len(left)
        progress(before, len(pairs))
        count = workers or usable_cores()
        # Every worker multiplies matrices by itself: threads inside a product would wait for those
        # of the other workers.
        with (
            threadpool_limits(1, user_api="blas"),
            ThreadPoolExecutor(count, "hardnet-match") as pool,
        ):
            matched = in_order(pool, work, in_blocks(left), 2 * count + 1)
            for done, ((a, b), indices, geometry) in enumerate(matched, before + 1):
                _write_pair(database, photos[a], photos[b], indices, geometry)
                progress(done, len(pairs))


def in_blocks(pairs: Sequence[Pair], block: int = BLOCK) -> list[Pair]:
    """The same pairs, those of the same two blocks of photos together.

    Row by row, every pair of a thousand photos would read the features of its second photo again.
    """
    names = dict.fromkeys(name for pair in pairs for name in pair)
    order = {name: number for number, name in enumerate(names)}
    return sorted(pairs, key=lambda p: (order[p[0]] // block, order[p[1]] // block))


def _write_pair(
    database: Any, a: DatabasePhoto, b: DatabasePhoto, indices: NDArray[Any], geometry: Any
) -> None:
    """The geometry first: matches mean that the pair is done."""
    if database.exists_two_view_geometry(a.id, b.id):
        database.delete_two_view_geometry(a.id, b.id)
    database.write_two_view_geometry(a.id, b.id, geometry)
    database.write_matches(a.id, b.id, indices.astype(np.uint32))


def _verify(a: DatabasePhoto, b: DatabasePhoto, indices: NDArray[Any], seed: int) -> Any:
    """COLMAP's verification of (K, 2) matches by its cameras; empty if too few to believe."""
    pycolmap = require_pycolmap()
    if len(indices) < MIN_INLIERS:
        return pycolmap.TwoViewGeometry()
    options = pycolmap.TwoViewGeometryOptions()
    options.ransac.random_seed = seed
    options.min_num_inliers = MIN_INLIERS
    found = pycolmap.estimate_two_view_geometry(
        a.camera, a.points, b.camera, b.points, indices.astype(np.uint32), options
    )
    return found if len(found.inlier_matches) >= MIN_INLIERS else pycolmap.TwoViewGeometry()


def remove_database(path: Path) -> None:
    """Delete a database that we made, before another takes its place."""
    owned = OwnedFolder.mark(path.parent)
    names = [path.name + suffix for suffix in ("", *_BESIDE)]
    for name in names:
        owned.claim(name)
    owned.remove(*names)
    owned.adopt(*names)


def check_database(path: Path) -> None:
    """Raise if files beside a database are not SQLite's: it deletes whatever has their names."""
    for suffix, starts in _BESIDE.items():
        beside = path.with_name(path.name + suffix)
        if beside.is_file():
            with beside.open("rb") as file:
                start = file.read(4)
            if start.strip(b"\0") and start not in starts:
                raise HardnetError(f"{beside} is in the way: it is not of {path.name}; move it")


def require_pycolmap() -> Any:
    """The pycolmap module, or an error that says how to install it."""
    try:
        import pycolmap
    except ImportError:
        raise MissingExtraError("pycolmap", "sfm") from None
    return pycolmap


@contextmanager
def quiet(pycolmap: Any) -> Iterator[None]:
    """Without COLMAP's running commentary."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = _FATAL
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


@contextmanager
def failures_explained(folder: Path) -> Iterator[None]:
    """What COLMAP or SQLite complain of while they write ``folder``, as one line for the user."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError, sqlite3.Error) as error:
        # COLMAP does not notice that a model is cut short, only its reader does.
        why = " ".join(str(error).split())
        raise HardnetError(
            f"COLMAP failed in {folder} ({why}): is the disk full, or a file there damaged? Run "
            "the same command again to continue"
        ) from error
