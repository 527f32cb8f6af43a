"""Two photos laid on each other: do they look the same, and does each spot lie on its like.

An edit moves all of a picture by one map. Another exposure does not: depth, a lens and a camera
that was not turned exactly about its axis displace a part of the scene by a fraction of a pixel,
and what is beside it likewise. Compression and resampling displace, too, but each spot elsewhere.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.images import Pixels
from hardnet.retrieval.kinds import inverse, moved

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
