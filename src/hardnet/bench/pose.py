"""Relative pose of photo pairs with known cameras: what matches are good for, in degrees.

Every descriptor gets the same keypoints and the same estimator. The best ratio of the ratio test
differs between descriptors, so each gets the one that is best for it on the *other* scenes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.bench import development
from hardnet.bench.development import (
    CORRECT_MATCHES,
    SAME_PLACE,
    Contestant,
    Scene,
    correct_at_precision,
)
from hardnet.bench.metrics import Floats, rotation_angle
from hardnet.bench.sfm import CAMERAS, read_scene
from hardnet.bench.sfm import MODEL as GROUND_TRUTH
from hardnet.errors import HardnetError, silent
from hardnet.features import Features
from hardnet.frames import points_to_colmap
from hardnet.images import read_image
from hardnet.interop.colmap.database import require_pycolmap
from hardnet.interop.colmap.mapping import is_model
from hardnet.matching.geometry import Geometry, estimate, relative_pose, sampson_error
from hardnet.matching.neighbours import RATIO, match_descriptors
from hardnet.patchsets.build import colmap_model
from hardnet.patchsets.build.colmap_model import View, read_model
from hardnet.threads import map_threads

DEGREES = tuple(range(1, 11))
"""Thresholds that mAA(10) averages over."""
CURVE = tuple(range(1, 21))
"""Thresholds of the curves."""
NO_POSE = 180.0
"""The error of a pair without an estimate."""
RATIOS = (0.8, 0.85, 0.9, 0.95, 1.0)
"""Each descriptor's ratio is chosen from these."""
INLIER_PIXELS = 1.5
"""How far a match may lie from its epipolar line, at the mean focal length of the two photos."""
MIN_SHARED = 50
"""3D points that both photos of a pair must see, if the truth has points."""
MIN_ANGLE = 2.0
"""Least median angle between the rays to these points, in degrees: below it, the direction in which
the camera moved is not known well enough."""
MAX_PAIRS = 40
"""Pairs per scene: those with the largest rotation between the cameras; others are easy."""
REPEATS = 10
"""Estimates of each pose at the chosen ratio, each with the matches in another order: the estimator
samples at random, and a lucky draw says nothing about a descriptor."""
MODELS = (GROUND_TRUTH, "colmap")
"""Folders that may contain the COLMAP model of a scene."""
_SAMPLE = 5  # matches that an essential matrix needs

RULES = {
    "matches": "mutual nearest neighbours that pass the ratio test",
    "estimator": (
        "essential matrix of undistorted points by MAGSAC++ (OpenCV), seeded, refitted to its "
        f"inliers, {INLIER_PIXELS:g} px; the pose with most inliers in front of both cameras, "
        "refined by minimising their Sampson errors (COLMAP)"
    ),
    "error": (
        "the larger of the angle between the rotations and the angle between the directions of "
        f"translation, up to its sign; {NO_POSE:g} degrees without an estimate"
    ),
    "maa": (
        "mean over the thresholds 1, 2, ... 10 degrees of the share of pairs below it, and over "
        f"{REPEATS} estimates of each pair from its matches in random order"
    ),
    "correct": (
        f"matches within {SAME_PLACE:g} px of their epipolar lines by the true cameras (some false "
        "ones lie there by chance)"
    ),
    "correct matches": CORRECT_MATCHES,
    "ratio": (
        f"the one of {', '.join(map(str, RATIOS))} with the best mean over the other scenes, from "
        "one estimate per pair"
    ),
    "pairs": (
        f"those that share {MIN_SHARED} points of the true model at {MIN_ANGLE:g} degrees or "
        f"more (all pairs if the ground truth has no points); of these, the {MAX_PAIRS} with the "
        "largest rotation between the cameras"
    ),
}
"""How a pose is judged, in words, for the results file."""


@dataclass(frozen=True, eq=False)
class PosePair:
    """Two photos whose cameras are known."""

    a: View
    b: View

    @property
    def truth(self) -> tuple[Floats, Floats]:
        """Rotation (3, 3) and translation (3,) from the first camera's coordinates to b's."""
        rotation = self.b.rotation @ self.a.rotation.T
        return rotation, self.b.translation - rotation @ self.a.translation


def read_pose_scene(folder: Path) -> Scene[PosePair]:
    """A scene: photos in ``images``, and a COLMAP model or Strecha's camera files beside them."""
    model = next((folder / name for name in MODELS if is_model(folder / name)), None)
    if model is not None:
        pairs, origin = _seen_together(model, folder / "images"), "COLMAP model"
    elif (folder / CAMERAS).is_dir():
        pairs = [PosePair(a, b) for a, b in combinations(_measured(folder), 2)]
        origin = "measured by laser scan"
    else:
        raise HardnetError(
            f"{folder} has no true cameras: neither a COLMAP model in {' or '.join(MODELS)} nor "
            f"{CAMERAS}"
        )
    if not pairs:
        raise HardnetError(f"{folder}: no two photos share enough of the scene")
    turned = [-float(rotation_angle(pair.a.rotation, pair.b.rotation)) for pair in pairs]
    widest = [pairs[i] for i in sorted(np.argsort(turned, kind="stable")[:MAX_PAIRS].tolist())]
    named = tuple((pair.a.path, pair.b.path, pair) for pair in widest)
    return Scene(folder.resolve().name, named, origin)


def directions(view: View, xy: ArrayLike) -> Floats:
    """(N, 2) pixels of a photo -> (N, 2) places at depth 1, without the lens distortion."""
    pixels = np.asarray(xy, np.float64).reshape(-1, 2)
    return np.asarray(view.camera.cam_from_img(points_to_colmap(pixels)), np.float64).reshape(-1, 2)


def estimate_pose(pair: PosePair, xy_a: ArrayLike, xy_b: ArrayLike) -> tuple[Floats, Floats] | None:
    """Rotation and translation (of length 1) from matches, (M, 2) pixels, best first; or None."""
    focal = float(np.mean([view.camera.mean_focal_length() for view in (pair.a, pair.b)]))
    a, b = directions(pair.a, xy_a) * focal, directions(pair.b, xy_b) * focal
    if len(a) < _SAMPLE:
        return None
    ideal = np.diag([focal, focal, 1.0])  # one camera for both, without distortion
    essential = estimate(a, b, "essential", INLIER_PIXELS, cameras=(ideal, ideal))
    if essential is None:
        return None
    inliers = sampson_error(essential, a / focal, b / focal) < INLIER_PIXELS / focal
    if inliers.sum() < _SAMPLE:
        return None
    found = relative_pose(Geometry("essential", essential, inliers, (ideal, ideal)), a, b)
    pycolmap = require_pycolmap()
    better = pycolmap.refine_relative_pose(
        pycolmap.Rigid3d(pycolmap.Rotation3d(found.rotation), found.translation),
        pair.a.camera,
        points_to_colmap(np.asarray(xy_a, np.float64).reshape(-1, 2)),
        pair.b.camera,
        points_to_colmap(np.asarray(xy_b, np.float64).reshape(-1, 2)),
        found.in_front[:, None],
    )
    if better is None:
        return found.rotation, found.translation
    pose = better["cam2_from_cam1"]
    return np.asarray(pose.rotation.matrix()), np.asarray(pose.translation)


def pose_error(estimated: tuple[Floats, Floats] | None, truth: tuple[Floats, Floats]) -> float:
    """Degrees: the larger of the errors of rotation and of direction, ``NO_POSE`` without one."""
    if estimated is None:
        return NO_POSE
    turn = float(rotation_angle(estimated[0], truth[0]))
    mine, true = (t / np.linalg.norm(t) for t in (estimated[1], truth[1]))
    # From the sine as well: the cosine of a small angle has no digits left.
    away = np.rad2deg(np.arctan2(np.linalg.norm(np.cross(mine, true)), abs(mine @ true)))
    return max(turn, float(away))


def shares_below(errors: ArrayLike, degrees: Sequence[float] = DEGREES) -> Floats:
    error = np.asarray(errors, np.float64)
    return np.array([(error < limit).mean() if len(error) else 0.0 for limit in degrees])


def maa(errors: ArrayLike) -> float:
    """mAA(10): the mean of :func:`shares_below` over 1, 2, ... 10 degrees."""
    return float(shares_below(errors).mean())


class Matched(NamedTuple):
    """The mutual nearest neighbours of a pair, the best first."""

    pair: PosePair
    xy_a: NDArray[np.float32]
    xy_b: NDArray[np.float32]
    ratios: NDArray[np.float32]

    def error(self, ratio: float, rng: np.random.Generator | None = None) -> float:
        """Of the pose from the matches below a ratio, in degrees; in random order with ``rng``."""
        kept = np.flatnonzero(self.ratios < ratio)
        if rng is not None:
            kept = rng.permutation(kept)
        found = estimate_pose(self.pair, self.xy_a[kept], self.xy_b[kept])
        return pose_error(found, self.pair.truth)

    def repeated(self, ratio: float) -> list[float]:
        return map_threads(lambda k: self.error(ratio, np.random.default_rng(k)), range(REPEATS))


class PairScore(NamedTuple):
    """A pair: its matches, ratio -> error in degrees, and the number of correct matches."""

    matched: Matched
    errors: dict[float, float]
    correct: int


def score_pair(a: Features, b: Features, pair: PosePair) -> PairScore:
    indices, scores = match_descriptors(a.descriptors, b.descriptors, ratio=1.0)
    one = Matched(pair, a.xy[indices[:, 0]], b.xy[indices[:, 1]], 1 - scores)
    errors = dict(zip(RATIOS, map_threads(one.error, RATIOS), strict=True))
    return PairScore(
        one, errors, correct_at_precision(one.ratios, agrees(pair, one.xy_a, one.xy_b))
    )


def agrees(pair: PosePair, xy_a: ArrayLike, xy_b: ArrayLike) -> NDArray[np.bool_]:
    """(M,) which matches, (M, 2) pixels of both photos, lie on each other's epipolar lines."""
    rotation, (x, y, z) = pair.truth
    essential = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]]) @ rotation
    focal = float(np.mean([view.camera.mean_focal_length() for view in (pair.a, pair.b)]))
    away = sampson_error(essential, directions(pair.a, xy_a), directions(pair.b, xy_b))
    return np.asarray(away * focal <= SAME_PLACE)


def choose_ratios(errors: Mapping[str, Mapping[float, Sequence[float]]]) -> dict[str, float]:
    """Scene -> the ratio with the highest mean mAA(10) over the other scenes.

    Among equally good ratios the largest wins, because it keeps most matches. A single scene gets
    the default of the pipeline.
    """
    chosen = {}
    for scene in errors:
        others = [by_ratio for name, by_ratio in errors.items() if name != scene]
        if not others:
            chosen[scene] = RATIO if RATIO in errors[scene] else max(errors[scene])
            continue
        mean = {r: float(np.mean([maa(each[r]) for each in others])) for r in errors[scene]}
        chosen[scene] = max(mean, key=lambda ratio: (round(mean[ratio], 9), ratio))
    return chosen


def compare(
    scenes: Sequence[Scene[PosePair]],
    entrants: Iterable[Contestant],
    advance: Callable[[], None] = silent,
) -> list[dict[str, Any]]:
    return development.compare(scenes, entrants, score_pair, partial(summarise, scenes), advance)


def summarise(
    scenes: Sequence[Scene[PosePair]], found: Mapping[str, Sequence[PairScore]]
) -> dict[str, Any]:
    errors = {
        name: {ratio: [one.errors[ratio] for one in pairs] for ratio in pairs[0].errors}
        for name, pairs in found.items()
    }
    ratios = choose_ratios(errors)
    again = {
        name: [one.matched.repeated(ratios[name]) for one in pairs] for name, pairs in found.items()
    }
    facts = {
        name: {
            "ratio": ratios[name],
            "correct": float(np.mean([one.correct for one in pairs])),
            "curve": [round(float(share), 4) for share in shares_below(again[name], CURVE)],
            "errors": {str(r): [round(error, 2) for error in e] for r, e in errors[name].items()},
            "repeated": [[round(error, 2) for error in each] for each in again[name]],
        }
        for name, pairs in found.items()
    }
    scores = {name: [maa(each) for each in pairs] for name, pairs in again.items()}
    return development.summary(scenes, "maa", scores, facts)


def _seen_together(model: Path, images: Path) -> list[PosePair]:
    read = read_model(colmap_model.Scene(model.parent.name, model, images))
    order = sorted(range(len(read.views)), key=lambda number: read.views[number].name)
    seen = [np.unique(read.tracks.point[read.tracks.view == number]) for number in order]
    views = [read.views[number] for number in order]
    pairs = []
    for i, j in combinations(range(len(views)), 2):
        both = np.intersect1d(seen[i], seen[j])
        if len(both) >= MIN_SHARED:
            centres = (view.to_world(np.zeros((1, 3))) for view in (views[i], views[j]))
            rays = (read.xyz[both] - centre for centre in centres)
            a, b = (ray / np.linalg.norm(ray, axis=1, keepdims=True) for ray in rays)
            angles = np.rad2deg(np.arccos(np.clip((a * b).sum(1), -1, 1)))
            if np.median(angles) >= MIN_ANGLE:
                pairs.append(PosePair(views[i], views[j]))
    return pairs


def _measured(folder: Path) -> list[View]:
    scene = read_scene(folder)
    params = scene.cameras.params
    if params is None:
        raise HardnetError(f"{folder / CAMERAS}: the photos have different calibrations")
    views = []
    for name, pose in sorted(scene.truth.items()):
        path = scene.images / name
        height, width = read_image(path).shape[:2]
        camera = require_pycolmap().Camera(
            model="PINHOLE", width=width, height=height, params=list(params)
        )
        move = -pose.rotation @ pose.centre
        views.append(View(name, path, camera, pose.rotation, move, np.zeros((0, 2))))
    return views
