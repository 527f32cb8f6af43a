"""A COLMAP database of features and matches.

Descriptors are left out on purpose: COLMAP's own matching takes them for bytes of SIFT, and signed
vectors find no match there. Keypoints, matches and two-view geometries are all the mapper needs.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.frames import to_colmap
from hardnet.interop.colmap.cameras import register_images
from hardnet.interop.colmap.orientation import turn_frames
from hardnet.interop.colmap.own_geometry import own_geometry
from hardnet.interop.colmap.pairs import Pair
from hardnet.interop.colmap.two_view import Photo, Verification, verify_pair
from hardnet.matching.matches import Matches
from hardnet.sfm.cameras import CameraSettings
from hardnet.sfm.colmap import quiet, require_pycolmap
from hardnet.stored_names import check_inside


def write_database(
    path: Path,
    images: Path,
    features: Mapping[str, Features],
    matches: Mapping[Pair, Matches],
    cameras: CameraSettings | None = None,
    seed: int = 0,
    verification: Verification = "colmap",
) -> dict[str, str]:
    """Write features and matches as a COLMAP database; an old file is replaced.

    All matches are written, and as two-view geometry those that are verified.

    Args:
        path: file to write, e.g. ``database.db``.
        images: folder of the photos.
        features: name of a photo, relative to the folder -> its features.
        matches: pair of names -> what :func:`hardnet.match` found.
        cameras: what is known about the cameras.
        seed: of COLMAP's RANSAC.
        verification: "colmap": the matches that COLMAP verifies, by the cameras; "hardnet": the
            inliers of the matches and their geometry, as they are.

    Returns:
        Photos that COLMAP cannot use, name -> why; they and their matches are left out.
    """
    pycolmap = require_pycolmap()
    with quiet(pycolmap):
        refused = write_photos(path, images, features, cameras or CameraSettings())
        with pycolmap.Database.open(path) as database:
            photos = read_photos(database, path)
            for (a, b), found in matches.items():
                if a in photos and b in photos:
                    if verification == "colmap":
                        geometry = verify_pair(photos[a], photos[b], found.indices, seed)
                    else:
                        geometry = own_geometry(photos[a], photos[b], found)
                    write_pair(database, photos[a], photos[b], found.indices, geometry)
    return refused


def write_photos(
    path: Path, images: Path, features: Mapping[str, Features], cameras: CameraSettings
) -> dict[str, str]:
    """Write a new database with cameras, images and keypoints, no matches yet.

    Returns:
        Photos that COLMAP cannot use, name -> why.
    """
    sizes = {check_inside(name, path): found.image_size for name, found in features.items()}
    registered, refused = register_images(path, images, sizes, cameras)
    _open_to_old_colmap(path)
    with require_pycolmap().Database.open(path) as database:
        for name, entry in registered.items():
            frames = turn_frames(features[name].frames, sizes[name], entry.orientation)
            database.write_keypoints(entry.id, to_colmap(frames))
    return refused


def _open_to_old_colmap(path: Path) -> None:
    """Add the columns without which COLMAP before 3.10 does not open a database.

    Debian and Ubuntu still carry it. Newer versions pass over columns they do not know.
    """
    with closing(sqlite3.connect(path)) as connection:
        for column in ("qw", "qx", "qy", "qz", "tx", "ty", "tz"):
            connection.execute(f"ALTER TABLE images ADD COLUMN prior_{column} REAL")
        connection.commit()


def read_photos(database: Any, path: Path) -> dict[str, Photo]:
    """The photos by name of an open database, whose file is ``path``."""
    cameras = {camera.camera_id: camera for camera in database.read_all_cameras()}
    return {
        check_inside(image.name, path): Photo(
            image.image_id,
            cameras[image.camera_id],
            np.asarray(database.read_keypoints(image.image_id), np.float64)[:, :2],
        )
        for image in database.read_all_images()
    }


def write_pair(database: Any, a: Photo, b: Photo, indices: NDArray[Any], geometry: Any) -> None:
    """Write the matches of a pair, the geometry first: matches mean that the pair is done."""
    if database.exists_two_view_geometry(a.id, b.id):
        database.delete_two_view_geometry(a.id, b.id)
    database.write_two_view_geometry(a.id, b.id, geometry)
    database.write_matches(a.id, b.id, indices.astype(np.uint32))
