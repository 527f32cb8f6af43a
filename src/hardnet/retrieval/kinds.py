"""What two photos are to each other: a copy, a crop, a turned or mirrored one, a burst, a scene.

An edited copy is explained by one exact map: a copy keeps the frame of the other photo, a crop lies
inside it. Two exposures never are: something has moved, and each shows what the other does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.images import Pixels
from hardnet.retrieval.verification import PUBLISHED_SIZE

Kind = Literal["copy", "crop", "rotated", "mirrored", "burst", "panorama", "scene"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""From the same picture to the same place; "scene" is also the same object."""

EDITS: tuple[Kind, ...] = ("copy", "crop", "rotated", "mirrored")
"""Kinds that are made of one exposure."""

Size = tuple[int, int]


@dataclass(frozen=True)
class Thresholds:
    """Where one kind ends and the next begins; docs/groups.md says what they were chosen on.

    Lengths are shares of a photo's longer side.

    Attributes:
        precise: an inlier this close to the map, in pixels of a photo of 1024, is a precise one.
        least: precise inliers that any pair needs ...
        chance: ... and at least this share of all pairs of features that look alike: letters and
            tiles are like each other wherever they lie. It need not be so if ...
        plain: ... this share of the features that both photos could share are precise inliers.
        fewest: this few do for a copy that keeps the frame, if its pixels agree.
        agree: share of the textured blocks of such a copy that must look the same.
        precise_share: an edit has at least this share of precise ones among its inliers ...
        explained: ... and this share of the features that both photos could share.
        spread: the inliers of an edit cover at least this share of the overlap.
        edge: an edit's border lies this close to the other's, or inside.
        turn: a copy that is turned by more degrees is rotated.
        stretch: how far an edit may stretch the photo, as the ratio of its axes.
        burst_shift: the centre of a burst's photo moves by no more.
        burst_scale: the size of what a burst shows changes by no more than this ratio.
        burst_turn: the camera of a burst, or of a sweep, turns by no more degrees.
        sweep_scale: the same ratio for a sweep.
        sweep_share: share of precise inliers of two photos of a sweep.
    """

    precise: float = 3.0
    least: int = 10
    chance: float = 0.1
    plain: float = 0.25
    fewest: int = 5
    agree: float = 0.6
    precise_share: float = 0.5
    explained: float = 0.05
    spread: float = 0.1
    edge: float = 0.015
    turn: float = 3.0
    stretch: float = 1.5
    burst_shift: float = 0.25
    burst_scale: float = 1.1
    burst_turn: float = 10.0
    sweep_scale: float = 1.35
    sweep_share: float = 0.25


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is measured of two photos.

    Attributes:
        transform: (2, 3) float64, pixels of a to pixels of b.
        sizes: width and height of both.
        inliers: pairs of features that agree with the map.
        precise: how many of them do so precisely.
        tentatives: pairs of features that look alike, wherever they lie.
        explained: share of the features that could be in both photos that are precise inliers.
        spread: share of the overlap that the precise ones cover.
        points: (n, 4) float32, x and y in a, x and y in b, of some of the precise ones.
        bordered: what the one shows beyond the other is a border of one colour.
        agreed: the inliers are few, but pixel by pixel the two are the same picture.
    """

    transform: NDArray[np.float64]
    sizes: tuple[Size, Size]
    inliers: int
    precise: int
    tentatives: int
    explained: float
    spread: float
    points: NDArray[np.float32]
    bordered: bool = False
    agreed: bool = False

    @property
    def mirrored(self) -> bool:
        """The one is seen in a mirror."""
        return bool(np.linalg.det(self.transform[:, :2]) < 0)

    @property
    def overlap(self) -> tuple[float, float]:
        """The share of a that b shows, and the share of b that a shows."""
        return overlap(self.transform, *self.sizes)


def corners(size: Size) -> NDArray[np.float64]:
    """(4, 2) of an image, clockwise from the top left one."""
    width, height = size[0] - 0.5, size[1] - 0.5
    return np.array([(-0.5, -0.5), (width, -0.5), (width, height), (-0.5, height)])


def moved(points: NDArray[Any], transform: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 2) points after a (2, 3) map."""
    out: NDArray[np.float64] = points @ transform[:, :2].T + transform[:, 2]
    return out


def inverse(transform: NDArray[np.float64]) -> NDArray[np.float64]:
    """The map back."""
    linear = np.linalg.inv(transform[:, :2])
    return np.column_stack([linear, -linear @ transform[:, 2]])


def overlap(transform: NDArray[np.float64], a: Size, b: Size) -> tuple[float, float]:
    """The share of a that lies in b, and the share of b that lies in a.

    Args:
        transform: (2, 3), pixels of a to pixels of b.
        a: width and height.
        b: width and height.
    """
    shape = moved(corners(a), transform).astype(np.float32)
    common, _ = cv2.intersectConvexConvex(shape, corners(b).astype(np.float32))
    area = abs(float(np.linalg.det(transform[:, :2]))) * a[0] * a[1]
    return min(common / max(area, 1e-9), 1.0), min(common / (b[0] * b[1]), 1.0)


def measure(
    transform: NDArray[np.float64],
    a: tuple[Size, NDArray[Any], NDArray[Any]],
    b: tuple[Size, NDArray[Any], NDArray[Any]],
    precise: float,
    tentatives: int = 0,
    most_points: int = 24,
) -> Evidence:
    """Fit the map to the inliers that it fits best, and say how well it does.

    Args:
        transform: (2, 3), pixels of a to pixels of b, as verification found it.
        a: size of the photo, (n, 2) centres of its inliers, (N, 2) centres of all its features.
        b: the same.
        precise: see :class:`Thresholds`.
        tentatives: see :class:`Evidence`.
        most_points: how many inliers are kept to show.
    """
    (size_a, xy_a, all_a), (size_b, xy_b, all_b) = a, b
    xy_a, xy_b = xy_a.astype(np.float64), xy_b.astype(np.float64)
    for limit in (4 * precise, 2 * precise, precise, precise):
        near = _errors(transform, xy_a, xy_b, size_a, size_b) < limit
        fitted = _fit(xy_a[near], xy_b[near])
        if fitted is None or np.linalg.det(fitted[:, :2]) * np.linalg.det(transform[:, :2]) <= 0:
            break
        transform = fitted
    near = _errors(transform, xy_a, xy_b, size_a, size_b) < precise
    chosen = np.flatnonzero(near)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), most_points)).astype(int)]
    # A feature can be in both photos if its place is.
    able = min(
        _inside(moved(all_a, transform), size_b), _inside(moved(all_b, inverse(transform)), size_a)
    )
    shared = overlap(transform, size_a, size_b)[1] * size_b[0] * size_b[1]
    covered = _hull_area(xy_b[near])
    return Evidence(
        transform,
        (size_a, size_b),
        len(xy_a),
        int(near.sum()),
        tentatives,
        float(near.sum() / max(able, 1)),
        float(min(covered / max(shared, 1.0), 1.0)),
        np.column_stack([xy_a[chosen], xy_b[chosen]]).astype(np.float32).reshape(-1, 4),
    )


def _fit(xy_a: NDArray[np.float64], xy_b: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Least squares over centres; None where they do not decide a map."""
    if len(xy_a) < 4:
        return None
    middle = xy_a.mean(0), xy_b.mean(0)
    source = xy_a - middle[0]
    if np.linalg.matrix_rank(source, tol=1.0) < 2:
        return None
    linear = np.linalg.lstsq(source, xy_b - middle[1], rcond=None)[0].T
    return np.column_stack([linear, middle[1] - linear @ middle[0]])


def _errors(
    transform: NDArray[np.float64],
    xy_a: NDArray[np.float64],
    xy_b: NDArray[np.float64],
    size_a: Size,
    size_b: Size,
) -> NDArray[np.float64]:
    """(n,) distances from where the map puts them, in pixels of the photo that shows less detail.

    A crop shows a spot with more pixels than its source does, which cannot place it so well.
    """
    there = np.linalg.norm(moved(xy_a, transform) - xy_b, axis=1) / max(size_b)
    back = np.linalg.norm(moved(xy_b, inverse(transform)) - xy_a, axis=1) / max(size_a)
    out: NDArray[np.float64] = np.minimum(there, back) * PUBLISHED_SIZE
    return out


def _inside(points: NDArray[Any], size: Size) -> int:
    x, y = points.T
    return int(np.sum((x > -0.5) & (y > -0.5) & (x < size[0] - 0.5) & (y < size[1] - 0.5)))


BLOCKS, FLAT, ALIKE = 12, 3.0, 0.6
"""Blocks per side that are compared; a block without more contrast tells nothing; the correlation
of two blocks that show the same."""


def agreement(a: Pixels, b: Pixels) -> float:
    """The share of the blocks of two grey pictures of one frame that look the same.

    Args:
        a: (h, w).
        b: of any size; it is brought to that of a.
    """
    side = 8 * BLOCKS
    one, other = (
        cv2.resize(p, (side, side), interpolation=cv2.INTER_AREA)
        .reshape(BLOCKS, 8, BLOCKS, 8)
        .swapaxes(1, 2)
        .reshape(-1, 64)
        .astype(np.float64)
        for p in (a, b)
    )
    one, other = one - one.mean(1, keepdims=True), other - other.mean(1, keepdims=True)
    spread = one.std(1), other.std(1)
    textured = (spread[0] > FLAT) | (spread[1] > FLAT)
    alike = (one * other).mean(1) > ALIKE * np.maximum(spread[0] * spread[1], 1e-9)
    return float(alike[textured].mean()) if textured.any() else 0.0


BORDER_TONES, BORDER_SHARE = 12, 0.95
"""A border's colours: so many of its pixels are so close to their median."""


def is_border(pixels: Pixels, inner: NDArray[np.float64]) -> bool:
    """Whether what lies outside a part of a photo is of one colour.

    Args:
        pixels: (H, W, 3).
        inner: (4, 2) corners of the part.
    """
    mask = np.full(pixels.shape[:2], 255, np.uint8)
    cv2.fillConvexPoly(mask, np.round(inner).astype(np.int32), 0)
    rim = max(round(0.01 * max(pixels.shape)), 1)  # where compression smears the edge
    outside = cv2.erode(mask, np.ones((2 * rim + 1, 2 * rim + 1), np.uint8))
    beyond = pixels[outside > 0].astype(np.float64)
    if not len(beyond):
        return False
    near = np.abs(beyond - np.median(beyond, axis=0)).max(axis=1) <= BORDER_TONES
    return bool(near.mean() >= BORDER_SHARE)


def _hull_area(points: NDArray[np.float64]) -> float:
    if len(points) < 3:
        return 0.0
    hull = cv2.convexHull(points.astype(np.float32)[:, None])
    return float(cv2.contourArea(hull))


def turn_of(transform: NDArray[np.float64]) -> float:
    """Degrees, -180 to 180, by which a map turns; of one that mirrors, after its mirroring."""
    (a, b), (c, d) = transform[:, :2]
    if a * d < b * c:
        a, c = -a, -c
    return math.degrees(math.atan2(c - b, a + d))


def kind_of(evidence: Evidence, thresholds: Thresholds) -> Kind | None:
    """What two photos are to each other; None if that is not sure.

    Two neighbours of a sweep are "panorama"; whether the sweep is one is seen on the group only.
    """
    t, e = thresholds, evidence
    if not is_more_than_chance(e, t):
        return None
    if is_edit(e, t):
        if e.mirrored:
            return "mirrored"
        if abs(turn_of(e.transform)) > t.turn:
            return "rotated"
        same = e.bordered or min(e.overlap) > (1 - 2 * t.edge) ** 2
        return "copy" if same else "crop"
    if e.mirrored:  # a facade is like itself in the mirror
        return None
    scale = math.sqrt(np.linalg.det(e.transform[:, :2])) * max(e.sizes[0]) / max(e.sizes[1])
    change, turned = max(scale, 1 / scale), abs(turn_of(e.transform))
    shift = _shift(e)
    share = e.precise / e.inliers
    if change < t.burst_scale and turned < t.burst_turn and shift < t.burst_shift:
        return "burst" if share >= t.sweep_share else "scene"
    if change < t.sweep_scale and turned < t.burst_turn and share >= t.sweep_share:
        return "panorama"
    return "scene"


def is_more_than_chance(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether two photos show the same, whatever that is."""
    t, e = thresholds, evidence
    distinct = e.precise >= t.chance * e.tentatives or e.explained >= t.plain
    return e.agreed or (e.precise >= t.least and distinct)


def is_edit(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether one exact map explains all that two photos share, and the one lies in the other."""
    t, e = thresholds, evidence
    if e.agreed:
        return True
    if e.precise < t.precise_share * e.inliers or e.explained < t.explained or e.spread < t.spread:
        return False
    axes = np.linalg.svd(e.transform[:, :2], compute_uv=False)
    if axes[0] > t.stretch * axes[1]:
        return False
    if any(is_in_other(e, t.edge)):
        return True
    turned = abs(turn_of(e.transform)) % 90
    # Turned in a frame of its own size, a photo loses its corners and keeps its centre.
    return min(turned, 90 - turned) > t.turn and _shift(e) <= t.edge


def may_be_copy(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether few inliers, or in few places, say that two photos have one frame: pixels decide."""
    t, e = thresholds, evidence
    if e.mirrored or e.precise < t.fewest or abs(turn_of(e.transform)) > t.turn:
        return False
    if is_edit(e, t) and is_more_than_chance(e, t):
        return False
    return all(is_in_other(e, t.edge))


def is_in_other(evidence: Evidence, edge: float) -> tuple[bool, bool]:
    """Whether a lies in b, and whether b lies in a."""
    a, b = evidence.sizes
    there, back = evidence.transform, inverse(evidence.transform)
    return lies_inside(there, a, b, edge), lies_inside(back, b, a, edge)


def lies_inside(transform: NDArray[np.float64], a: Size, b: Size, edge: float) -> bool:
    """Whether all of a lies in b, but for a share ``edge`` of b's longer side."""
    outside = np.maximum(corners(b)[0] - (m := moved(corners(a), transform)), m - corners(b)[2])
    return bool(outside.max() <= edge * max(b))


def _shift(evidence: Evidence) -> float:
    """How far the centre moves, as a share of the longer side."""
    centre = (np.array([evidence.sizes[0]]) - 1) / 2
    to = (np.array(evidence.sizes[1]) - 1) / 2
    return float(np.linalg.norm(moved(centre, evidence.transform)[0] - to) / max(evidence.sizes[1]))
