"""Match two images: nearest neighbours, then the geometry that explains them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors
from hardnet.descriptors import are_alike, described_by
from hardnet.errors import InputError, counted
from hardnet.features import (
    KEYPOINTS,
    MAX_SIZE,
    DescribeSettings,
    Features,
    Orientation,
    extract_together,
)
from hardnet.images import Source, write_image
from hardnet.matching.draw import draw_matches
from hardnet.matching.geometry import (
    INLIER_PIXELS,
    MIN_INLIERS,
    Cameras,
    Estimator,
    Geometry,
    Grid,
    Intrinsics,
    Model,
    Pairs,
    check_model,
    distinct,
    is_mirrored,
    refit,
    verify,
)
from hardnet.matching.guided import GUIDED_RATIO, consistent, guided_matches
from hardnet.matching.neighbours import (
    RATIO,
    FarSecond,
    Neighbours,
    match_descriptors,
    pair_distances,
)

if TYPE_CHECKING:
    from hardnet.descriptors import Descriptor
    from hardnet.detectors import Detector


SURE_INLIERS, LEVEL_DEGREES = 60, 15.0
"""Upright photos with this many verified matches are not described a second time, unless one is
turned by more than these degrees against the other."""


@dataclass(frozen=True)
class Strategy:
    """How matches are found and verified.

    All distances in pixels are in pixels of the images as they were looked at, that is after
    ``max_size`` of :func:`hardnet.extract`, so they mean the same for small and large photos.

    Attributes:
        neighbours: "exact" compares every descriptor with every other, in portions; "flann" looks
            at a part of them, as MODS does, and misses some matches.
        mutual: keep a match only if each of its descriptors is the nearest one of the other.
        ratio: keep a match only if it is nearer than this times the second neighbour; 1: off.
        symmetric: ask for the ratio in both directions.
        fginn: pixels; the second neighbour of the ratio test is the first one that lies farther
            than this from the nearest neighbour (first geometrically inconsistent neighbour), so a
            keypoint found twice does not reject itself. None: any second neighbour.
        duplicates: pixels; of matches that agree to this in both images, keep the best. None: all.
        estimator: "magsac" (MAGSAC++ of OpenCV) or "degensac" (DEGENSAC of pydegensac).
        threshold: pixels; how far a match may lie from where the geometry puts it.
        frame_check: drop inliers whose frames (size, shape, orientation) contradict the geometry.
        guided: look again for matches along the geometry that was found.
    """

    neighbours: Neighbours = "exact"
    mutual: bool = True
    ratio: float = RATIO
    symmetric: bool = False
    fginn: float | None = None
    duplicates: float | None = None
    estimator: Estimator = "magsac"
    threshold: float = INLIER_PIXELS
    frame_check: bool = False
    guided: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio <= 1:
            raise InputError(f"ratio is {self.ratio}: give a number above 0 and up to 1")
        for name, kind in (("neighbours", Neighbours), ("estimator", Estimator)):
            if (value := getattr(self, name)) not in get_args(kind):
                raise InputError(f"no {name} '{value}': choose {' or '.join(get_args(kind))}")
        for name in ("fginn", "duplicates", "threshold"):
            pixels = getattr(self, name)
            if pixels is not None and not 0 < pixels < float("inf"):
                raise InputError(f"{name} is {pixels}: give a number of pixels above 0")


MODS = Strategy("flann", False, 0.8, fginn=10.0, duplicates=2.0, threshold=4.0, frame_check=True)
"""The matcher of MODS, which the paper's stereo experiments use, without its view synthesis.

Its RANSAC is DEGENSAC: ``dataclasses.replace(MODS, estimator="degensac")`` if pydegensac is there.
"""

STRATEGIES = {"default": Strategy(), "mods": MODS}


@dataclass(frozen=True, eq=False, repr=False)
class Matches:
    """Matches between two images, best first.

    Attributes:
        indices: (M, 2) indices into the features of a and of b.
        scores: (M,) one minus the ratio of nearest to second nearest distance; 0 for matches that
            only the geometry could tell (guided).
        geometry: what the inliers agree on; its kind is None if nothing could be verified.
        a: features of the first image.
        b: features of the second image.
        seconds: time per stage ("match", "verify").
    """

    indices: NDArray[np.intp]
    scores: NDArray[np.float32]
    geometry: Geometry
    a: Features
    b: Features
    seconds: dict[str, float] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.indices)

    def __repr__(self) -> str:
        return f"Matches: {self._summary()}, {self.a.image_name} and {self.b.image_name}"

    def _summary(self) -> str:
        kind = f" ({self.geometry.kind})" if self.geometry.kind else ""
        kind += ", mirrored" if self.mirrored else ""
        return f"{self.inliers.sum()} of {counted(len(self), 'match')} verified{kind}"

    @property
    def xy_a(self) -> NDArray[np.float32]:
        """(M, 2) positions in the first image."""
        return self.a.xy[self.indices[:, 0]]

    @property
    def xy_b(self) -> NDArray[np.float32]:
        """(M, 2) positions in the second image."""
        return self.b.xy[self.indices[:, 1]]

    @property
    def inliers(self) -> NDArray[np.bool_]:
        """(M,) which matches agree with the geometry."""
        return self.geometry.inliers

    @property
    def mirrored(self) -> bool:
        """Whether the second image shows what the first one does as in a mirror."""
        points = (xy[self.inliers].astype(np.float64) for xy in (self.xy_a, self.xy_b))
        return self.geometry.kind is not None and is_mirrored(*points)

    @property
    def all_seconds(self) -> dict[str, float]:
        """Time per stage, from the files on; what is done to both images is added up."""
        first = self.a.seconds
        stages = first | {k: first.get(k, 0.0) + v for k, v in self.b.seconds.items()}
        return {name: round(value, 4) for name, value in (stages | self.seconds).items()}

    def to_json(self) -> dict[str, Any]:
        """As JSON values; positions in pixels of the upright original images."""
        matrix = self.geometry.model
        rows = np.hstack([self.xy_a, self.xy_b]).tolist()
        return {
            "images": [
                {"path": f.path, "size": list(f.image_size), "keypoints": len(f)}
                for f in (self.a, self.b)
            ],
            "orientation": self.a.orientation,
            "geometry": {
                "kind": self.geometry.kind,
                "model": None if matrix is None else matrix.tolist(),
                "mirrored": self.mirrored,
            },
            "matches": [[round(value, 3) for value in row] for row in rows],
            "inliers": self.inliers.tolist(),
            "seconds": self.all_seconds,
        }

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of both photos and the inliers between them (.png, .jpg, ...)."""
        images = self.a.read_pixels(), self.b.read_pixels()
        points = self.xy_a[self.inliers], self.xy_b[self.inliers]
        caption = f"{self.a.descriptor}: {self._summary()}"
        write_image(path, draw_matches(*images, *points, caption))


def match(
    a: Features | Source,
    b: Features | Source,
    model: Model = "auto",
    ratio: float | None = None,
    strategy: Strategy | Literal["default", "mods"] = "default",
    cameras: Cameras | None = None,
    *,
    detector: str | Detector = "dog",
    descriptor: str | Descriptor = descriptors.DEFAULT,
    keypoints: int = KEYPOINTS,
    max_size: int | None = MAX_SIZE,
    orientation: Orientation = "auto",
    upright: bool = False,
    spread: bool = False,
) -> Matches:
    """Match two images and verify the matches.

    Photographs are tried the right way up first, which distinguishes more keypoints. If that
    verifies few matches, or one photo is rotated against the other, both are described again with
    dominant orientations, and the result with more inliers is returned.

    Args:
        a: an image (path or array), or its features.
        b: the same, for the other image.
        model: "homography" (planes, panoramas), "fundamental" (scenes with depth), "auto" for the
            better of these two, or "essential" (as fundamental, for cameras that are known).
        ratio: of the ratio test: smaller is stricter, 1 switches it off; default: the strategy's.
        strategy: how matches are found and verified: "default", "mods", or a Strategy.
        cameras: (3, 3) intrinsics of both images, in original pixels; "essential" needs them.
        detector: how images are described, as for :func:`hardnet.extract`, like all the following.
            Features are described already: for two of them these must not be given.
            An image beside features is described as they were.
        descriptor: see there.
        keypoints: see there.
        max_size: see there.
        orientation: see there.
        upright: see there.
        spread: see there.

    Returns:
        Matches; ``geometry.kind`` is None if they do not support any geometry.
    """
    if isinstance(strategy, str):
        if strategy not in STRATEGIES:
            raise InputError(f"no strategy {strategy!r}: choose default, mods, or give a Strategy")
        strategy = STRATEGIES[strategy]
    if ratio is not None:
        strategy = replace(strategy, ratio=ratio)
    intrinsics = check_model(model, strategy.estimator, cameras)
    how = DescribeSettings(detector, descriptor, keypoints, max_size, orientation, upright, spread)

    a, b = _same_way_up(*_described(a, b, how))
    found = _match_features(a, b, model, strategy, intrinsics)
    if a.turned and b.turned and not level(found):
        again = _match_features(a.turned(), b.turned(), model, strategy, intrinsics)
        if again.inliers.sum() > found.inliers.sum():
            return again
    return found


def _described(
    a: Features | Source, b: Features | Source, how: DescribeSettings
) -> tuple[Features, Features]:
    """The features of both sides, which can be compared."""
    if isinstance(a, Features):
        if not isinstance(b, Features):
            (b,) = extract_together([b], _like(how, a))
        elif how != DescribeSettings(orientation="auto"):
            raise InputError(
                "detector, descriptor, keypoints, max_size, orientation, upright and spread are "
                "for images: features are described already"
            )
    elif isinstance(b, Features):
        (a,) = extract_together([a], _like(how, b))
    else:
        a, b = extract_together([a, b], how)
    if not are_alike(a.descriptor, a.weights, b.descriptor, b.weights):
        both = (described_by(each.descriptor, each.weights) for each in (a, b))
        raise InputError(f"cannot match {' with '.join(both)}: describe both images alike")
    return a, b


def _like(how: DescribeSettings, known: Features) -> DescribeSettings:
    """With the descriptor of features, in their form of it, unless another one is asked for."""
    if not isinstance(how.descriptor, str):
        return how
    form = known.descriptor
    if how.descriptor != descriptors.DEFAULT or not descriptors.is_registered(form):
        form = descriptors.for_photos(how.descriptor, form)
    return replace(how, descriptor=descriptors.load(form))


def _same_way_up(a: Features, b: Features) -> tuple[Features, Features]:
    """Features that may be turned are, if those of the other image cannot be upright."""
    if a.turned and b.orientation == "dominant":
        return a.turned(), b
    if b.turned and a.orientation == "dominant":
        return a, b.turned()
    return a, b


def level(found: Matches) -> bool:
    """Whether matches of upright features say that both photos are the same way up, for sure."""
    if found.geometry.kind is None or found.inliers.sum() < SURE_INLIERS:
        return False
    a, b = (xy[found.inliers] @ (1, 1j) for xy in (found.xy_a, found.xy_b))
    # The turn of the similarity that fits best, in the sense of least squares.
    turn = np.angle(np.vdot(a - a.mean(), b - b.mean()))
    return bool(abs(turn) < np.deg2rad(LEVEL_DEGREES))


def _match_features(
    a: Features, b: Features, model: Model, strategy: Strategy, cameras: Intrinsics | None
) -> Matches:
    """Nearest neighbours, then the geometry; in pixels of the originals in the end."""
    start = perf_counter()
    indices, scores = find_matches(a, b, strategy)
    matched = perf_counter()
    to_a, to_b = (np.diag([f.scale, f.scale, 1.0]) for f in (a, b))
    resized = None if cameras is None else (to_a @ cameras[0], to_b @ cameras[1])
    places = _places(a, b, indices)
    geometry = verify(*places, model, strategy.threshold, strategy.estimator, resized)
    found = Matches(indices, scores, geometry, a, b)
    if strategy.guided and geometry.kind is not None:
        found = _look_again(found, strategy)
    if strategy.frame_check and geometry.kind is not None:
        found = _check_frames(found, strategy.threshold)
    geometry = found.geometry
    if (matrix := geometry.model) is not None:
        if geometry.kind == "homography":
            matrix = np.linalg.inv(to_b) @ matrix @ to_a
            matrix = matrix / matrix[2, 2]
        elif geometry.kind == "fundamental":
            matrix = to_b @ matrix @ to_a
            matrix = matrix / np.linalg.norm(matrix)
        geometry = replace(geometry, model=matrix, cameras=cameras)
    seconds = {"match": matched - start, "verify": perf_counter() - matched}
    return replace(found, geometry=geometry, seconds=seconds)


def find_matches(
    a: Features, b: Features, strategy: Strategy
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Tentative matches (M, 2) and their scores (M,), best first, before any verification."""
    fginn = None
    if strategy.fginn is not None:
        fginn = FarSecond(a.xy * a.scale, b.xy * b.scale, strategy.fginn)
    indices, scores = match_descriptors(
        a.descriptors,
        b.descriptors,
        strategy.ratio,
        strategy.mutual,
        symmetric=strategy.symmetric,
        fginn=fginn,
        neighbours=strategy.neighbours,
    )
    if strategy.duplicates is not None:
        keep = without_duplicates(*_places(a, b, indices), strategy.duplicates)
        indices, scores = indices[keep], scores[keep]
    return indices, scores


def _look_again(found: Matches, strategy: Strategy) -> Matches:
    """More matches along a geometry, and the geometry fitted again to all.

    Inliers keep their place. New matches follow; by their descriptors alone they are ambiguous, so
    their score is 0. Outliers that contradict them are dropped.
    """
    a, b, geometry = found.a, found.b, found.geometry
    inliers = found.indices[geometry.inliers]
    known = pair_distances(a.descriptors[inliers[:, 0]], b.descriptors[inliers[:, 1]])
    new, _ = guided_matches(
        a.descriptors,
        b.descriptors,
        a.xy * a.scale,
        b.xy * b.scale,
        geometry,
        strategy.threshold,
        max(GUIDED_RATIO, strategy.ratio),
        float(known.max()),
    )

    def shares(pairs: NDArray[np.intp], others: NDArray[np.intp]) -> NDArray[np.bool_]:
        return np.isin(pairs[:, 0], others[:, 0]) | np.isin(pairs[:, 1], others[:, 1])

    new = new[~shares(new, inliers)]
    keep = geometry.inliers | ~shares(found.indices, new)
    indices = np.concatenate([found.indices[keep], new])
    scores = np.concatenate([found.scores[keep], np.zeros(len(new), np.float32)])
    places = _places(a, b, indices)
    geometry = refit(geometry, *places, strategy.threshold, strategy.estimator)
    return Matches(indices, scores, geometry, a, b)


def _check_frames(found: Matches, threshold: float) -> Matches:
    a, b, geometry, (i, j) = found.a, found.b, found.geometry, found.indices.T
    agree = consistent(a.frames[i] * a.scale, b.frames[j] * b.scale, geometry, threshold)
    geometry = replace(geometry, inliers=geometry.inliers & agree)
    if distinct(*_places(a, b, found.indices[geometry.inliers])) < MIN_INLIERS:
        geometry = Geometry(None, None, np.zeros(len(found), bool))
    return replace(found, geometry=geometry)


def _places(
    a: Features, b: Features, indices: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Positions of matches in the pixels of the resized images.

    So a number of pixels means the same for a photo of 2 and of 40 megapixels.
    """
    xy_a, xy_b = a.xy[indices[:, 0]] * a.scale, b.xy[indices[:, 1]] * b.scale
    return xy_a.astype(np.float64), xy_b.astype(np.float64)


def without_duplicates(
    xy_a: NDArray[np.floating], xy_b: NDArray[np.floating], pixels: float, block: int = 1024
) -> NDArray[np.intp]:
    """(K,) which matches to keep, increasing, if none may repeat a better one.

    A match repeats a better one that is kept if both its ends lie within ``pixels`` of the other's
    ends. A block of matches is compared with those kept so far, then with itself, so memory does
    not grow with the square of their number.
    """
    a, b = np.asarray(xy_a, np.float64), np.asarray(xy_b, np.float64)

    def repeats(matches: NDArray[np.intp], others: NDArray[np.intp]) -> Pairs:
        mine, theirs = Grid(a[others], pixels).near(a[matches])
        close = ((b[matches[mine]] - b[others[theirs]]) ** 2).sum(1) <= pixels**2
        return mine[close], theirs[close]

    kept = np.zeros(0, np.intp)
    for start in range(0, len(a), block):
        here = np.arange(start, min(start + block, len(a)))
        here = np.delete(here, np.unique(repeats(here, kept)[0]))
        first, second = repeats(here, here)
        order = np.argsort(first, kind="stable")
        first, second = first[order], second[order]
        keep = np.ones(len(here), bool)
        # From the best on, each that is kept strikes out those that repeat it.
        for run in np.split(np.arange(len(first)), np.flatnonzero(np.diff(first)) + 1):
            if len(run) and keep[first[run[0]]]:
                keep[second[run][second[run] > first[run]]] = False
        kept = np.concatenate([kept, here[keep]])
    return kept
