"""Which photos to match with which, and their matches into a COLMAP database, on all cores.

A pair whose matches are in the database is done: a run that was killed continues with the others.

By default COLMAP verifies the matches: it knows the cameras and tells planes from depth by itself,
and gives larger models than our inliers, which are stricter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Steps, silent
from hardnet.features import Features
from hardnet.frames import points_to_colmap
from hardnet.image_files import require_regular_file
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
from hardnet.matching.matches import Matches, Strategy, find_matches, match
from hardnet.threads import in_order, usable_cores

Pair = tuple[str, str]
Verification = Literal["colmap", "hardnet"]
"""Who decides which matches of a pair agree with a geometry."""
MIN_INLIERS = 15
"""COLMAP's own smallest number of matches of a pair it believes."""
BLOCK = 64
"""Photos whose pairs are matched together; the features of two blocks are kept in memory."""
MANY_PHOTOS = 300
"""All pairs of more photos than this take long: 300 photos are 44,850 pairs."""


@dataclass(frozen=True)
class PairSettings:
    """How pairs are chosen.

    Attributes:
        method: "exhaustive": every photo with every other; "sequential": with those that follow,
            for the frames of a video or photos taken along a path.
        overlap: sequential: how many of the following photos.
        quadratic: sequential: also those 2, 4, 8, ... 2^overlap photos later.
        loop: sequential: also every n-th photo with each other, to notice that the camera
            came back; 0: none.
    """

    method: Literal["exhaustive", "sequential"] = "exhaustive"
    overlap: int = 10
    quadratic: bool = True
    loop: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("exhaustive", "sequential"):
            raise HardnetError(f"no pairs '{self.method}': choose exhaustive or sequential")
        if self.overlap < 1:
            raise HardnetError(f"overlap is {self.overlap}: give at least 1")
        if self.loop < 0:
            raise HardnetError(f"loop is {self.loop}: give a number of photos, or 0 for none")


def choose_pairs(names: Sequence[str], settings: PairSettings) -> list[Pair]:
    """Pairs of photos to match, each once, in an order that does not depend on the machine."""
    if settings.method == "exhaustive":
        return list(combinations(sorted(names), 2))
    order = sorted(names, key=_by_number)
    steps = set(range(1, settings.overlap + 1))
    if settings.quadratic:
        steps |= {2**k for k in range(1, settings.overlap + 1)}
    found = {(i, i + step) for i in range(len(order)) for step in steps if i + step < len(order)}
    if settings.loop:
        found |= set(combinations(range(0, len(order), settings.loop), 2))
    return [(order[i], order[j]) for i, j in sorted(found)]


def read_pairs(path: Path, names: Sequence[str], left_out: Sequence[str] = ()) -> list[Pair]:
    """Pairs of a text file: two names of photos per line, with a space or a tab between.

    Empty lines and lines that begin with # do not count, nor do pairs of photos that are left out.
    """
    known, passed = set(names), set(left_out)
    found: dict[Pair, None] = {}
    for number, line in enumerate(read_text(path).splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        a, b = _split(line, known | passed, f"{path}, line {number}")
        if a == b:
            raise HardnetError(f"{path}, line {number}: {a} is paired with itself")
        if a in known and b in known:
            found[(min(a, b), max(a, b))] = None
    if not found:
        raise HardnetError(f"{path} names no pair of photos")
    return list(found)


def read_text(path: Path) -> str:
    """The text of a file of pairs."""
    try:
        require_regular_file(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardnetError(f"{path} cannot be read as a list of pairs: {error}") from error


def _split(line: str, known: set[str], where: str) -> Pair:
    """The two names of a line; names may contain spaces themselves."""
    text = line.strip()
    for gap in re.finditer(r"\s+", text):
        a, b = text[: gap.start()], text[gap.end() :]
        if a in known and b in known:
            return a, b
    words = text.split("\t") if "\t" in text else text.split()
    if len(words) != 2:
        raise HardnetError(f"{where}: '{text}' is not two names of photos")
    missing = next(word for word in words if word not in known)
    raise HardnetError(f"{where}: no photo is called {missing}; names are relative to the folder")


def _by_number(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts if p]


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
    progress: Steps = silent,
) -> None:
    """Find and verify the matches of pairs of photos; pairs that are done are not repeated.

    ``path`` is a database with keypoints. ``features`` gives those of a photo, by name; it is
    called by several threads, by default one per usable core. ``progress`` is called with (pairs
    done, pairs in all).
    """
    pycolmap = require_pycolmap()
    from threadpoolctl import threadpool_limits  # comes with pycolmap in the extra

    load = lru_cache(4 * BLOCK)(features)
    with pycolmap.Database.open(path) as database:
        photos = read_photos(database, path)

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
                write_pair(database, photos[a], photos[b], indices, geometry)
                progress(done, len(pairs))


def in_blocks(pairs: Sequence[Pair], block: int = BLOCK) -> list[Pair]:
    """The same pairs, those of the same two blocks of photos together.

    Row by row, every pair of a thousand photos would read the features of its second photo again.
    """
    names = dict.fromkeys(name for pair in pairs for name in pair)
    order = {name: number for number, name in enumerate(names)}
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
