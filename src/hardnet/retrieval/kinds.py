"""What two photos are to each other: a copy, a crop, a turned or mirrored one, a burst, a scene.

An edited copy is explained by one exact map: a copy keeps the frame of the other photo, a crop lies
inside it, and laid on each other by the map they look the same. Two exposures never are: something
has moved, and each shows what the other does not.

An edit moves all of a picture by one map. Another exposure does not: depth, a lens and a camera
that was not turned exactly about its axis displace a part of the scene by a fraction of a pixel,
and what is beside it likewise. Compression and resampling displace, too, but each spot elsewhere.
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

    transform: NDArray[np.float64]  # (2, 3), pixels of a to pixels of b
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
        """Whether the one is the other seen in a mirror."""
        return bool(np.linalg.det(self.transform[:, :2]) < 0)

    @property
    def overlap(self) -> tuple[float, float]:
        """The share of a that b shows, and the share of b that a shows."""
        return overlap(self.transform, *self.sizes)

    @property
    def shift(self) -> float:
        """How far the centre moves, as a share of the longer side."""
        centre, to = ((np.array(size) - 1) / 2 for size in self.sizes)
        return float(
            np.linalg.norm(moved(centre[None], self.transform)[0] - to) / max(self.sizes[1])
        )

    @property
    def turned(self) -> float:
        """Degrees, 0 to 180, by which the map turns."""
        return abs(turn_of(self.transform))


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
    """The share of a that lies in b, and the share of b that lies in a, by a map from a to b."""
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
    """Fit the map of verification to the inliers that it fits best, and say how well it does.

    ``a`` and ``b`` are the size of a photo, (n, 2) centres of its inliers and (N, 2) centres of all
    its features. At most ``most_points`` inliers are kept to show.
    """
    (size_a, xy_a, all_a), (size_b, xy_b, all_b) = a, b
    xy_a, xy_b = xy_a.astype(np.float64), xy_b.astype(np.float64)

    def errors() -> NDArray[np.float64]:
        """(n,) in pixels of a photo of 1024, of the two the one that shows less detail.

        A crop shows a spot with more pixels than its source does, which cannot place it so well.
        """
        there = np.linalg.norm(moved(xy_a, transform) - xy_b, axis=1) / max(size_b)
        back = np.linalg.norm(moved(xy_b, inverse(transform)) - xy_a, axis=1) / max(size_a)
        out: NDArray[np.float64] = np.minimum(there, back) * PUBLISHED_SIZE
        return out

    for limit in (4 * precise, 2 * precise, precise, precise):
        near = errors() < limit
        fitted = _fit(xy_a[near], xy_b[near])
        if fitted is None or np.linalg.det(fitted[:, :2]) * np.linalg.det(transform[:, :2]) <= 0:
            break
        transform = fitted
    near = errors() < precise
    chosen = np.flatnonzero(near)
    chosen = chosen[np.linspace(0, len(chosen) - 1, min(len(chosen), most_points)).astype(int)]
    # A feature can be in both photos if its place is.
    able = min(
        _inside(moved(all_a, transform), size_b), _inside(moved(all_b, inverse(transform)), size_a)
    )
    shared = overlap(transform, size_a, size_b)[1] * size_b[0] * size_b[1]
    covered = 0.0
    if near.sum() >= 3:
        covered = cv2.contourArea(cv2.convexHull(xy_b[near].astype(np.float32)[:, None]))
    turning = 0.0
    if len(xy_a) >= 8:
        reach = precise * max(size_b) / PUBLISHED_SIZE
        _, kept = cv2.findHomography(xy_a, xy_b, cv2.RANSAC, reach, maxIters=500)
        turning = float(np.mean(kept)) if kept is not None else 0.0
    return Evidence(
        transform,
        (size_a, size_b),
        len(xy_a),
        int(near.sum()),
        tentatives,
        float(near.sum() / max(able, 1)),
        float(min(covered / max(shared, 1.0), 1.0)),
        np.column_stack([xy_a[chosen], xy_b[chosen]]).astype(np.float32).reshape(-1, 4),
        turning=turning,
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


def _inside(points: NDArray[Any], size: Size) -> int:
    x, y = points.T
    return int(np.sum((x > -0.5) & (y > -0.5) & (x < size[0] - 0.5) & (y < size[1] - 0.5)))


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
    if is_more_than_chance(e, t) and is_edit(e, t):
        if e.mirrored:
            return "mirrored"
        if e.turned > t.turn:
            return "rotated"
        same = e.bordered or min(e.overlap) > (1 - 2 * t.edge) ** 2
        return "copy" if same else "crop"
    if e.mirrored or not is_one_scene(e, t):  # a facade is like itself in the mirror
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


def is_more_than_chance(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether two photos may be edits of one: pixels are looked at as well."""
    t, e = thresholds, evidence
    return e.agreed or (e.precise >= t.least and _is_distinct(e, t))


def is_one_scene(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether two photos show the same, whatever that is."""
    t, e = thresholds, evidence
    many = e.inliers >= max(t.scene_inliers, t.scene_share * e.tentatives)
    return many or (e.precise >= t.scene_least and _is_distinct(e, t))


def _is_distinct(evidence: Evidence, thresholds: Thresholds) -> bool:
    t, e = thresholds, evidence
    return e.precise >= t.chance * e.tentatives or e.explained >= t.plain


def is_edit(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether one exact map explains all that two photos share, and the one lies in the other."""
    t, e = thresholds, evidence
    if e.agreed:
        return True
    if e.alike < (t.agree if _keeps_frame(e, t) else t.agree_part) or e.drift > t.drift:
        return False
    if e.precise < t.precise_share * e.inliers or e.explained < t.explained or e.spread < t.spread:
        return False
    axes = np.linalg.svd(e.transform[:, :2], compute_uv=False)
    if axes[0] > t.stretch * axes[1]:
        return False
    if any(is_in_other(e, t.edge)):
        return True
    turned = e.turned % 90
    # Turned in a frame of its own size, a photo loses its corners and keeps its centre.
    return min(turned, 90 - turned) > t.turn and e.shift <= t.edge


def may_be_copy(evidence: Evidence, thresholds: Thresholds) -> bool:
    """Whether few inliers, or in few places, say that two photos have one frame: pixels decide."""
    t, e = thresholds, evidence
    if e.precise < t.fewest or (is_edit(e, t) and is_more_than_chance(e, t)):
        return False
    return _keeps_frame(e, t)


def _keeps_frame(evidence: Evidence, thresholds: Thresholds) -> bool:
    t, e = thresholds, evidence
    return not e.mirrored and e.turned <= t.turn and all(is_in_other(e, t.edge))


def is_in_other(evidence: Evidence, edge: float) -> tuple[bool, bool]:
    """Whether a lies in b, and whether b lies in a."""
    a, b = evidence.sizes
    there, back = evidence.transform, inverse(evidence.transform)
    return lies_inside(there, a, b, edge), lies_inside(back, b, a, edge)


def lies_inside(transform: NDArray[np.float64], a: Size, b: Size, edge: float) -> bool:
    """Whether all of a lies in b, but for a share ``edge`` of b's longer side."""
    outside = np.maximum(corners(b)[0] - (m := moved(corners(a), transform)), m - corners(b)[2])
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


def lay(a: Pixels, b: Pixels, transform: NDArray[np.float64]) -> Laid:
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


def _drift(
    laid: Pixels, b: Pixels, chosen: NDArray[np.bool_], transform: NDArray[np.float64]
) -> float:
    """See :class:`Laid`; ``chosen`` (rows, columns) are the blocks to look at."""
    rows, columns = np.nonzero(chosen)
    middles = BLOCK * np.column_stack([columns, rows]) + BLOCK / 2
    if len(middles) < FEWEST:
        return 0.0
    one, other = _contrast(laid), _contrast(b)
    found, good, _ = cv2.calcOpticalFlowPyrLK(
        one, other, middles[:, None].astype(np.float32), np.empty(0, np.float32),
        winSize=(BLOCK + 1, BLOCK + 1), maxLevel=1, minEigThreshold=3e-3,
    )  # fmt: skip
    there = found[:, 0].astype(np.float64)
    near = (good[:, 0] > 0) & (np.linalg.norm(there - middles, axis=1) < FARTHEST)
    if near.sum() < FEWEST:
        return 0.0
    left = np.full((*chosen.shape, 2), np.nan)
    left[rows[near], columns[near]] = _unexplained(middles[near], there[near], transform)
    products = np.concatenate(
        [(left[:-1] * left[1:]).sum(-1).ravel(), (left[:, :-1] * left[:, 1:]).sum(-1).ravel()]
    )
    products = products[~np.isnan(products)]
    if len(products) < FEWEST:
        return 0.0
    return math.sqrt(max(float(np.median(products)), 0.0))


def _contrast(pixels: Pixels) -> NDArray[np.uint8]:
    """Without the light and the colours of a photo, in which an edit may differ."""
    values = pixels.astype(np.float32)
    values -= cv2.GaussianBlur(values, (0, 0), 6)
    strength = np.sqrt(cv2.GaussianBlur(values * values, (0, 0), 6))
    return np.clip(128 + 40 * values / (strength + FLAT), 0, 255).astype(np.uint8)


def _unexplained(
    middles: NDArray[np.float64], there: NDArray[np.float64], transform: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(n, 2) how far from where the best edit puts them the middles of blocks are found.

    An edit turns and scales, or it stretches along the sides; whatever else fits is a view.
    """
    source, linear = moved(middles, inverse(transform)), transform[:, :2]
    if np.linalg.det(linear) < 0:
        source, linear = source * (-1, 1), linear @ np.diag([-1, 1])
    (a, b), (c, d) = linear
    quarters = round(math.atan2(c - b, a + d) / (math.pi / 2)) % 4
    source = source @ np.linalg.matrix_power(np.array([[0.0, -1.0], [1.0, 0.0]]), quarters).T
    x, y = (source - source.mean(0)).T
    zero, one = np.zeros_like(x), np.ones_like(x)
    turn = np.array([[x, -y, one, zero], [y, x, zero, one]])
    stretch = np.array([[x, zero, one, zero], [zero, y, zero, one]])
    fitted = (_residuals(model.transpose(2, 0, 1), there) for model in (turn, stretch))
    return min(fitted, key=lambda left: float(np.median(np.linalg.norm(left, axis=1))))


def _residuals(model: NDArray[np.float64], there: NDArray[np.float64]) -> NDArray[np.float64]:
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


def is_border(pixels: Pixels, inner: NDArray[np.float64]) -> bool:
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
