"""What two photos are to each other: a copy, a crop, a turned or mirrored one, a burst, a scene.

An edited copy is explained by one exact map: a copy keeps the frame of the other photo, a crop lies
inside it, and laid on each other by the map they look the same. Two exposures never do: something
has moved, and each shows what the other does not.

An edit moves all of a picture by one map. Another exposure does not: depth, a lens and a camera
that was not turned exactly about its axis displace a part of the scene by a fraction of a pixel,
and what is beside it likewise. Compression and resampling displace every spot on its own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

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
Floats = NDArray[np.float64]

POINTS = 24
"""Inliers that are kept to show, at most."""


@dataclass(frozen=True)
class Thresholds:
    """Where one kind ends and the next begins; docs/groups.md says what they were chosen on.

    Lengths are shares of a photo's longer side, but ``precise`` is in pixels of a photo of 1024. A
    pair needs ``least`` precise inliers that are a share ``chance`` of all pairs of features that
    look alike, for letters and tiles are like each other wherever they lie; or a share ``plain`` of
    the features that both photos could share. ``fewest`` do for a copy whose pixels agree. Pixels
    do not tell whether two photos show one scene: that takes more precise inliers, or enough of any
    that are a larger share of the pairs.
    """

    precise: float = 3.0
    least: int = 10
    chance: float = 0.1
    plain: float = 0.25
    fewest: int = 5
    agree: float = 0.5  # a copy: share of its textured blocks that look the same
    agree_part: float = 0.85  # the same of a crop, a turned or a mirrored photo: views of a scene
    drift: float = 0.12  # an edit: pixels by which parts of a photo of 512 lie elsewhere together
    precise_share: float = 0.5  # an edit: precise ones among its inliers
    explained: float = 0.05  # an edit: precise ones among the features that both could share
    spread: float = 0.1  # an edit: share of the overlap that its inliers cover
    edge: float = 0.015  # an edit's border lies this close to the other's, or inside
    turn: float = 3.0  # a copy that is turned by more degrees is rotated
    stretch: float = 1.5  # of the photo by an edit, at most: the ratio of its axes
    scene_least: int = 12
    scene_inliers: int = 15
    scene_share: float = 0.2
    burst_shift: float = 0.15  # of the centre of a burst's photo, at most
    burst_scale: float = 1.1  # of what a burst shows, at most
    burst_turn: float = 15.0  # degrees, of the camera of a burst or of a sweep, at most
    sweep_scale: float = 1.35
    burst_share: float = 0.35  # precise inliers of two photos of a burst, at least
    sweep_share: float = 0.7  # inliers that a turning camera explains, of two photos of a sweep


@dataclass(frozen=True, eq=False)
class Evidence:
    """What is measured of two photos, a and b."""

    transform: Floats  # (2, 3), pixels of a to pixels of b
    sizes: tuple[Size, Size]
    inliers: int  # pairs of features that agree with the map
    precise: int  # how many of them do so precisely
    tentatives: int  # pairs of features that look alike, wherever they lie
    explained: float  # share of the features that could be in both that are precise inliers
    spread: float  # share of the overlap that the precise ones cover
    points: NDArray[np.float32]  # (n, 4) some of the precise ones: x and y in a, x and y in b
    bordered: bool = False  # what the one shows beyond the other is a border of one colour
    agreed: bool = False  # the inliers are few, but pixel by pixel it is the same picture
    alike: float = 1.0  # see :class:`Laid`; 1 of what is not looked at: no edit
    drift: float = 0.0  # the same
    turning: float = 0.0  # share of the inliers that a camera which only turns explains, precisely

    @property
    def mirrored(self) -> bool:
        return bool(np.linalg.det(self.transform[:, :2]) < 0)

    @property
    def overlap(self) -> tuple[float, float]:
        """The share of a that b shows, and the share of b that a shows."""
        return overlap(self.transform, *self.sizes)

    @property
    def shift(self) -> float:
        """How far the centre moves, as a share of the longer side."""
        centre, to = ((np.array(size) - 1) / 2 for size in self.sizes)
        there = moved(centre[None], self.transform)[0]
        return float(np.linalg.norm(there - to) / max(self.sizes[1]))

    @property
    def turned(self) -> float:
        """Degrees, 0 to 180, by which the map turns."""
        return abs(turn_of(self.transform))


def corners(size: Size) -> Floats:
    """(4, 2) of an image, clockwise from the top left one."""
    width, height = size[0] - 0.5, size[1] - 0.5
    return np.array([(-0.5, -0.5), (width, -0.5), (width, height), (-0.5, height)])


def moved(points: NDArray[Any], transform: Floats) -> Floats:
    """(n, 2) points after a (2, 3) map."""
    out: Floats = points @ transform[:, :2].T + transform[:, 2]
    return out


def inverse(transform: Floats) -> Floats:
    """The (2, 3) map back."""
    linear = np.linalg.inv(transform[:, :2])
    return np.column_stack([linear, -linear @ transform[:, 2]])


def turn_of(transform: Floats) -> float:
    """Degrees, -180 to 180, by which a map turns; of one that mirrors, after its mirroring."""
    (a, b), (c, d) = transform[:, :2]
    if a * d < b * c:
        a, c = -a, -c
    return math.degrees(math.atan2(c - b, a + d))


def overlap(transform: Floats, a: Size, b: Size) -> tuple[float, float]:
    """The share of a that lies in b, and the share of b that lies in a, by a map from a to b."""
    shape = moved(corners(a), transform).astype(np.float32)
    common, _ = cv2.intersectConvexConvex(shape, corners(b).astype(np.float32))
    area = abs(float(np.linalg.det(transform[:, :2]))) * a[0] * a[1]
    return min(common / max(area, 1e-9), 1.0), min(common / (b[0] * b[1]), 1.0)


def measure(
    transform: Floats,
    a: tuple[Size, NDArray[Any], NDArray[Any]],
    b: tuple[Size, NDArray[Any], NDArray[Any]],
    precise: float,
    tentatives: int = 0,
) -> Evidence:
    """Fit the map of verification to the inliers that it fits best, and say how well it does.

    ``a`` and ``b`` are the size of a photo, (n, 2) centres of its inliers and (N, 2) centres of all
    its features.
    """
    (size_a, xy_a, all_a), (size_b, xy_b, all_b) = a, b
    xy_a, xy_b = xy_a.astype(np.float64), xy_b.astype(np.float64)

    def errors() -> Floats:
        """(n,) in pixels of a photo of 1024, of the two the one that shows less detail.

        A crop shows a spot with more pixels than its source does, which cannot place it so well.
        """
        there = np.linalg.norm(moved(xy_a, transform) - xy_b, axis=1) / max(size_b)
        back = np.linalg.norm(moved(xy_b, inverse(transform)) - xy_a, axis=1) / max(size_a)
        out: Floats = np.minimum(there, back) * PUBLISHED_SIZE
        return out

    for limit in (4 * precise, 2 * precise, precise, precise):
        near = errors() < limit
        fitted = _fit(xy_a[near], xy_b[near])
        if fitted is None or np.linalg.det(fitted[:, :2]) * np.linalg.det(transform[:, :2]) <= 0:
            break
        transform = fitted
    near = errors() < precise
    count = int(near.sum())
    chosen = np.flatnonzero(near)[np.linspace(0, count - 1, min(count, POINTS)).astype(int)]
    # A feature can be in both photos if its place is.
    able = min(
        _inside(moved(all_a, transform), size_b), _inside(moved(all_b, inverse(transform)), size_a)
    )
    shared = overlap(transform, size_a, size_b)[1] * size_b[0] * size_b[1]
    covered = turning = 0.0
    if count >= 3:
        covered = cv2.contourArea(cv2.convexHull(xy_b[near].astype(np.float32)[:, None]))
    if len(xy_a) >= 8:
        reach = precise * max(size_b) / PUBLISHED_SIZE
        _, kept = cv2.findHomography(xy_a, xy_b, cv2.RANSAC, reach, maxIters=500)
        turning = float(np.mean(kept)) if kept is not None else 0.0
    return Evidence(
        transform,
        (size_a, size_b),
        len(xy_a),
        count,
        tentatives,
        count / max(able, 1),
        float(min(covered / max(shared, 1.0), 1.0)),
        np.column_stack([xy_a[chosen], xy_b[chosen]]).astype(np.float32).reshape(-1, 4),
        turning=turning,
    )


def _fit(xy_a: Floats, xy_b: Floats) -> Floats | None:
    """Least squares over centres; None where they do not decide a map."""
    if len(xy_a) < 4:
        return None
    middle = xy_a.mean(0), xy_b.mean(0)
    source = xy_a - middle[0]
    if np.linalg.matrix_rank(source, tol=1.0) < 2:
        return None
    linear = np.linalg.lstsq(source, xy_b - middle[1], rcond=None)[0].T
    return np.column_stack([linear, middle[1] - linear @ middle[0]])


def _inside(points: NDArray[Any], size: Size) -> int:
    x, y = points.T
    return int(np.sum((x > -0.5) & (y > -0.5) & (x < size[0] - 0.5) & (y < size[1] - 0.5)))


def kind_of(e: Evidence, t: Thresholds) -> Kind | None:
    """What two photos are to each other; None if that is not sure.

    Two neighbours of a sweep are "panorama"; whether the sweep is one is seen on the group only.
    """
    if _is_more_than_chance(e, t) and is_edit(e, t):
        if e.mirrored:
            return "mirrored"
        if e.turned > t.turn:
            return "rotated"
        same = e.bordered or min(e.overlap) > (1 - 2 * t.edge) ** 2
        return "copy" if same else "crop"
    many = e.inliers >= max(t.scene_inliers, t.scene_share * e.tentatives)
    is_one_scene = many or (e.precise >= t.scene_least and _is_distinct(e, t))
    if e.mirrored or not is_one_scene:  # a facade is like itself in the mirror
        return None
    scale = math.sqrt(np.linalg.det(e.transform[:, :2])) * max(e.sizes[0]) / max(e.sizes[1])
    change = max(scale, 1 / scale)
    if e.turned >= t.burst_turn:
        return "scene"
    if e.shift < t.burst_shift:
        steady = change < t.burst_scale and e.precise >= t.burst_share * e.inliers
        return "burst" if steady else "scene"
    sweeps = change < t.sweep_scale and e.turning >= t.sweep_share
    return "panorama" if sweeps else "scene"


def _is_more_than_chance(e: Evidence, t: Thresholds) -> bool:
    """Whether two photos may be edits of one: pixels are looked at as well."""
    return e.agreed or (e.precise >= t.least and _is_distinct(e, t))


def _is_distinct(e: Evidence, t: Thresholds) -> bool:
    return e.precise >= t.chance * e.tentatives or e.explained >= t.plain


def is_edit(e: Evidence, t: Thresholds) -> bool:
    """Whether one exact map explains all that two photos share, and the one lies in the other."""
    if e.agreed:
        return True
    if e.alike < (t.agree if _keeps_frame(e, t) else t.agree_part) or e.drift > t.drift:
        return False
    if e.precise < t.precise_share * e.inliers or e.explained < t.explained or e.spread < t.spread:
        return False
    axes = np.linalg.svd(e.transform[:, :2], compute_uv=False)
    if axes[0] > t.stretch * axes[1]:
        return False
    if any(_in_other(e, t.edge)):
        return True
    turned = e.turned % 90
    # Turned in a frame of its own size, a photo loses its corners and keeps its centre.
    return min(turned, 90 - turned) > t.turn and e.shift <= t.edge


def may_be_copy(e: Evidence, t: Thresholds) -> bool:
    """Whether few inliers, or in few places, say that two photos have one frame: pixels decide."""
    if e.precise < t.fewest or (is_edit(e, t) and _is_more_than_chance(e, t)):
        return False
    return _keeps_frame(e, t)


def _keeps_frame(e: Evidence, t: Thresholds) -> bool:
    return not e.mirrored and e.turned <= t.turn and all(_in_other(e, t.edge))


def _in_other(e: Evidence, edge: float) -> tuple[bool, bool]:
    a, b = e.sizes
    return lies_inside(e.transform, a, b, edge), lies_inside(inverse(e.transform), b, a, edge)


def lies_inside(transform: Floats, a: Size, b: Size, edge: float) -> bool:
    """Whether all of a lies in b, but for a share ``edge`` of b's longer side."""
    there, limits = moved(corners(a), transform), corners(b)
    outside = np.maximum(limits[0] - there, there - limits[2])
    return bool(outside.max() <= edge * max(b))


BLOCK, FLAT, ALIKE = 16, 3.0, 0.7
"""Pixels of a block's side; a block without more contrast tells nothing; the correlation of two
blocks that show the same."""

SOFTENED = 0.8
"""A picture that is laid on another at a smaller scale is made as soft as the other is."""

FARTHEST, FEWEST = 4.0, 6
"""Pixels that a block is followed, and blocks below which nothing is said about them."""


class Laid(NamedTuple):
    """The share of the blocks in common that look the same, and their common displacement.

    ``drift`` is in pixels, after the best edit: 0 where neighbours are displaced independently.
    """

    alike: float
    drift: float


def lay(a: Pixels, b: Pixels, transform: Floats) -> Laid:
    """Compare two grey pictures by a map, (2, 3), of pixels of a to pixels of b.

    They are compared in the frame of the one that shows less detail.
    """
    if abs(np.linalg.det(transform[:, :2])) > 1:
        a, b, transform = b, a, inverse(transform)
    scale = math.sqrt(abs(np.linalg.det(transform[:, :2])))
    if scale < SOFTENED:
        a = np.asarray(cv2.GaussianBlur(a, (0, 0), 0.5 * math.sqrt(1 / scale**2 - 1)))
    size = b.shape[1], b.shape[0]
    laid = np.asarray(cv2.warpAffine(a, transform, size), np.uint8)
    ones, plain = np.full_like(a, 255), cv2.INTER_NEAREST
    common = np.asarray(cv2.warpAffine(ones, transform, size, flags=plain), np.uint8)
    whole = _blocks(common).min(2) > 0
    one, other = (_blocks(p).astype(np.float64) for p in (laid, b))
    one, other = one - one.mean(2, keepdims=True), other - other.mean(2, keepdims=True)
    spread = one.std(2), other.std(2)
    textured = whole & ((spread[0] > FLAT) | (spread[1] > FLAT))
    alike = (one * other).mean(2) > ALIKE * np.maximum(spread[0] * spread[1], 1e-9)
    if not textured.any():
        return Laid(0.0, 0.0)
    both = whole & (spread[0] > FLAT) & (spread[1] > FLAT)
    return Laid(float(alike[textured].mean()), _drift(laid, b, both, transform))


def _blocks(pixels: Pixels) -> NDArray[np.uint8]:
    """(rows, columns, BLOCK * BLOCK), without what is left over at the right and below."""
    rows, columns = (length // BLOCK for length in pixels.shape)
    tiled = pixels[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
    return tiled.swapaxes(1, 2).reshape(rows, columns, BLOCK**2)


def _drift(laid: Pixels, b: Pixels, chosen: NDArray[np.bool_], transform: Floats) -> float:
    """See :class:`Laid`; ``chosen`` (rows, columns) are the blocks to look at."""
    rows, columns = np.nonzero(chosen)
    middles = BLOCK * np.column_stack([columns, rows]) + BLOCK / 2
    if len(middles) < FEWEST:
        return 0.0
    found, good, _ = cv2.calcOpticalFlowPyrLK(
        _contrast(laid), _contrast(b), middles[:, None].astype(np.float32),
        np.empty(0, np.float32), winSize=(BLOCK + 1, BLOCK + 1), maxLevel=1, minEigThreshold=3e-3,
    )  # fmt: skip
    there = found[:, 0].astype(np.float64)
    near = (good[:, 0] > 0) & (np.linalg.norm(there - middles, axis=1) < FARTHEST)
    if near.sum() < FEWEST:
        return 0.0
    left = np.full((*chosen.shape, 2), np.nan)
    left[rows[near], columns[near]] = _unexplained(middles[near], there[near], transform)
    neighbours = (left[:-1] * left[1:]), (left[:, :-1] * left[:, 1:])
    products = np.concatenate([pairs.sum(-1).ravel() for pairs in neighbours])
    products = products[~np.isnan(products)]
    return math.sqrt(max(float(np.median(products)), 0.0)) if len(products) >= FEWEST else 0.0


def _contrast(pixels: Pixels) -> NDArray[np.uint8]:
    """Without the light and the colours of a photo, in which an edit may differ."""
    values = pixels.astype(np.float32)
    values -= cv2.GaussianBlur(values, (0, 0), 6)
    strength = np.sqrt(cv2.GaussianBlur(values * values, (0, 0), 6))
    return np.clip(128 + 40 * values / (strength + FLAT), 0, 255).astype(np.uint8)


def _unexplained(middles: Floats, there: Floats, transform: Floats) -> Floats:
    """(n, 2) how far from where the best edit puts them the middles of blocks are found.

    An edit turns and scales, or it stretches along the sides; whatever else fits is a view.
    """
    source = moved(middles, inverse(transform))
    if np.linalg.det(transform[:, :2]) < 0:
        source = source * (-1, 1)
    quarters = round(turn_of(transform) / 90) % 4
    source = source @ np.linalg.matrix_power(np.array([[0.0, -1.0], [1.0, 0.0]]), quarters).T
    x, y = (source - source.mean(0)).T
    zero, one = np.zeros_like(x), np.ones_like(x)
    turn = np.array([[x, -y, one, zero], [y, x, zero, one]])
    stretch = np.array([[x, zero, one, zero], [zero, y, zero, one]])
    fitted = (_residuals(model.transpose(2, 0, 1), there) for model in (turn, stretch))
    return min(fitted, key=lambda left: float(np.median(np.linalg.norm(left, axis=1))))


def _residuals(model: Floats, there: Floats) -> Floats:
    """(n, 2) of least squares over the (n, 2, 4) model, without the blocks that fit worst."""
    kept = np.ones(len(there), bool)
    left = there
    for _ in range(4):
        values = np.linalg.lstsq(model[kept].reshape(-1, 4), there[kept].ravel(), rcond=None)[0]
        left = there - model @ values
        errors = np.linalg.norm(left, axis=1)
        kept = errors < max(3 * float(np.median(errors)), 0.3)
    return left


BORDER_TONES, BORDER_SHARE = 12, 0.95
"""A border's colours: this share of its pixels lies this close to their median."""


def is_border(pixels: Pixels, inner: Floats) -> bool:
    """Whether what lies outside a part of a photo, given by its (4, 2) corners, has one colour."""
    mask = np.full(pixels.shape[:2], 255, np.uint8)
    cv2.fillConvexPoly(mask, np.round(inner).astype(np.int32), 0)
    rim = max(round(0.01 * max(pixels.shape)), 1)  # where compression smears the edge
    outside = cv2.erode(mask, np.ones((2 * rim + 1, 2 * rim + 1), np.uint8))
    beyond = pixels[outside > 0].astype(np.float64)
    if not len(beyond):
        return False
    near = np.abs(beyond - np.median(beyond, axis=0)).max(axis=1) <= BORDER_TONES
    return bool(near.mean() >= BORDER_SHARE)
