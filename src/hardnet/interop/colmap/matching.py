"""Match pairs of photos into a COLMAP database, as many at once as there are cores.

A pair whose matches are in the database is done: a run that was killed continues with the others.

By default COLMAP verifies the matches: it knows the cameras and tells planes from depth by itself,
and gives larger models than our inliers, which are stricter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.features import Features
from hardnet.frames import points_to_colmap
from hardnet.interop.colmap.database import (
    CameraSettings,
    DatabasePhoto,
    quiet,
    read_photos,
    require_pycolmap,
    to_stored,
    write_pair,
    write_photos,
)
from hardnet.interop.colmap.pairs import Pair
from hardnet.matching.matches import Matches, Strategy, find_matches, match
from hardnet.threads import in_order, usable_cores

Verification = Literal["colmap", "hardnet"]
"""Who decides which matches of a pair agree with a geometry."""
MIN_INLIERS = 15
"""COLMAP's own smallest number of matches of a pair it believes."""
BLOCK = 64
"""Photos whose pairs are matched together; the features of two blocks are kept in memory."""


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

    Photos are called by their path in the folder ``images``. All matches are written, and as
    two-view geometry those that COLMAP verifies by the cameras, or, with ``verification``
    "hardnet", the inliers as they are. Returns photos that COLMAP cannot use, name -> why; they and
    their matches are left out.
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
                        geometry = matched_geometry(photos[a], photos[b], found)
                    write_pair(database, photos[a], photos[b], found.indices, geometry)
    return refused


def match_pairs(
    path: Path,
    features: Callable[[str], Features],
    pairs: Sequence[Pair],
    strategy: Strategy,
    seed: int,
    workers: int | None = None,
    verification: Verification = "colmap",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> None:
    """Find and verify the matches of pairs of photos; pairs that are done are not repeated.

    ``path`` is a database with keypoints. ``features`` gives those of a photo, by name; it is
    called by several threads, by default one per usable core. ``progress`` is called with (pairs
    done, pairs in all).
    """
    pycolmap = require_pycolmap()
    load = lru_cache(4 * BLOCK)(features)
    with pycolmap.Database.open(path) as database:
        photos = read_photos(database, path)

        def is_done(pair: Pair) -> bool:
            first, second = (photos[name].id for name in pair)
            return bool(database.exists_matches(first, second))

        def work(pair: Pair) -> tuple[Pair, NDArray[np.intp], Any]:
            a, b = (photos[name] for name in pair)
            first, second = map(load, pair)
            if verification == "hardnet":
                found = match(first, second, strategy=strategy)
                return pair, found.indices, matched_geometry(a, b, found)
            if strategy.guided:  # along our geometry; COLMAP verifies all of them
                indices = match(first, second, strategy=strategy).indices
            else:
                indices, _ = find_matches(first, second, strategy)
            return pair, indices, verify_pair(a, b, indices, seed)

        left = [pair for pair in pairs if not is_done(pair)]
        before = len(pairs) - len(left)
        progress(before, len(pairs))
        count = workers or usable_cores()
        with ThreadPoolExecutor(count, "hardnet-match") as pool:
            matched = in_order(pool, work, in_blocks(left), 2 * count + 1)
            for done, ((a, b), indices, geometry) in enumerate(matched, before + 1):
                write_pair(database, photos[a], photos[b], indices, geometry)
                progress(done, len(pairs))


def in_blocks(pairs: Sequence[Pair], block: int = BLOCK) -> list[Pair]:
    """The same pairs, those of the same two blocks of photos together.

    Row by row, every pair of a thousand photos would read the features of its second photo again.
    """
    order: Mapping[str, int] = {
        name: number for number, name in enumerate(dict.fromkeys(n for p in pairs for n in p))
    }
    return sorted(pairs, key=lambda p: (order[p[0]] // block, order[p[1]] // block))


def verify_pair(a: DatabasePhoto, b: DatabasePhoto, indices: NDArray[Any], seed: int) -> Any:
    """COLMAP's own verification of the (K, 2) matches of a pair, by its cameras.

    Returns a pycolmap.TwoViewGeometry; without matches if there are too few to believe.
    """
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


def matched_geometry(a: DatabasePhoto, b: DatabasePhoto, matches: Matches) -> Any:
    """A pycolmap.TwoViewGeometry of our inliers; empty if they are too few to believe."""
    pycolmap = require_pycolmap()
    geometry = pycolmap.TwoViewGeometry()
    kind, model = matches.geometry.kind, matches.geometry.model
    if kind is None or model is None or matches.inliers.sum() < MIN_INLIERS:
        return geometry
    geometry.inlier_matches = matches.indices[matches.inliers].astype(np.uint32)
    kinds = pycolmap.TwoViewGeometryConfiguration
    to_a, to_b = pixel_map(matches.a, a.points), pixel_map(matches.b, b.points)
    if kind == "homography":
        geometry.config = kinds.PLANAR_OR_PANORAMIC
        geometry.H = to_b @ model @ np.linalg.inv(to_a)
        return geometry
    if kind == "essential":
        assert matches.geometry.cameras is not None
        k_a, k_b = (np.linalg.inv(k) for k in matches.geometry.cameras)
        model = k_b.T @ model @ k_a
    model = np.linalg.inv(to_b).T @ model @ np.linalg.inv(to_a)
    geometry.F = model / np.linalg.norm(model)
    geometry.config = kinds.UNCALIBRATED
    if kind == "essential":
        geometry.config = kinds.CALIBRATED
        essential = b.camera.calibration_matrix().T @ model @ a.camera.calibration_matrix()
        geometry.E = essential / np.linalg.norm(essential)
    return geometry


def pixel_map(features: Features, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, 3) map from pixels of the upright photo to COLMAP's pixels of the file.

    The database does not say how a photo was turned; its keypoints, ``points`` (N, 2), do.
    """
    shift = np.eye(3)
    shift[:2, 2] = points_to_colmap(np.zeros(2))
    maps = [shift @ to_stored(features.image_size, turn) for turn in range(1, 9)]
    xy = features.xy.astype(np.float64)
    off = [np.abs(xy @ m[:2, :2].T + m[:2, 2] - points).max(initial=0.0) for m in maps]
    return maps[int(np.argmin(off))]
