"""Keypoints with affine shape, for strong changes of viewpoint: Hessian-Affine, AffNet and MSER.

A round frame on a slanted surface sees a squeezed pattern, and the second-moment matrix M of its
gradients measures how squeezed (Baumberg 2000; Lindeberg and Garding 1997). Reshaping the frame by
M^(-1/2) until M is isotropic finds the ellipse that a circle on the surface has become. The moments
cover the whole window of a descriptor: smaller ones, as in the literature, are less repeatable.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.hessian import find_places
from hardnet.detectors.orientation import Floats, orient, turn, upright_form
from hardnet.errors import InputError, MissingExtraError
from hardnet.frames import (
    WINDOW_SIGMAS,
    Detected,
    Frames,
    cut_from_pyramid,
    cut_patches,
    empty_frames,
    patch_ticks,
    pyramid,
)
from hardnet.images import Pixels
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from torch import Tensor

ITERATIONS = 16  # frames that have not converged by then are dropped
ISOTROPIC = 0.1
"""A frame has converged when the axes of its next reshaping differ by less than this share."""

MAX_STRETCH = 6.0  # frames whose axes have a larger ratio than this are dropped
_SIDE = 25  # gradients per side of the window
_WEIGHT = 2 / 3  # sigma of the Gaussian weight in half-sizes of the window: 4 sigma of a keypoint
_SMALLEST = 1.0  # in pixels; a shorter axis covers too little
_CHUNK = 2048  # frames per thread at most
_RESERVE = 1.08  # places tried per wanted frame: a few percent do not converge
_BATCH = 256  # patches per network call

_MIN_REGION_SIDE = 8  # a region and its neighbourhood do not fit into a smaller image
_MIN_AREA, _MAX_AREA = 30, 0.05  # of a region: pixels, and share of the image
_MARGIN = 8  # grey levels over which a region must stay nearly the same
_MAX_VARIATION = 1.0  # of its area over the margin; OpenCV's 0.25 keeps far fewer, no better ones

AFFNET = "affnet:"
"""``affnet:AffNet.pth`` or ``affnet:AffNet.pth,OriNet.pth`` names the detector with networks."""


def detect(image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
    """The strongest Hessian keypoints whose affine shape converges; see ``detectors.Detector``.

    ``upright`` frames have the rotation-free form of the shape.
    """
    round_frames, responses = find_places(image)
    frames, scores = [round_frames[:0]], [responses[:0]]
    tried = found = 0
    # Try places beyond the budget only if too many of the first do not converge.
    while found < keypoints and tried < len(round_frames):
        stop = tried + int((keypoints - found) * _RESERVE) + 8
        shaped, settled = adapt(image, round_frames[tried:stop])
        frames.append(shaped[settled])
        scores.append(responses[tried:stop][settled])
        tried, found = stop, found + int(settled.sum())
    chosen = np.concatenate(frames)[:keypoints]
    return chosen if upright else orient(image, chosen), np.concatenate(scores)[:keypoints]


def adapt(image: Pixels, frames: Frames) -> tuple[Frames, NDArray[np.bool_]]:
    """Upright frames of equal area whose pattern is isotropic, and (N,) which of them converged."""
    if not len(frames):
        return frames.copy(), np.zeros(0, bool)
    images = pyramid(image, 32)
    # Frames of one size are cut from one image of the pyramid: few, large reads.
    by_size = np.argsort(np.linalg.det(frames[:, :, :2]), kind="stable")
    count = min(max(cv2.getNumThreads(), len(frames) // _CHUNK + 1), len(frames))
    parts = [frames[part] for part in np.array_split(by_size, count)]
    done = map_threads(lambda part: _adapt(images, part), parts)
    shaped, settled = np.empty_like(frames), np.empty(len(frames), bool)
    shaped[by_size], settled[by_size] = (np.concatenate(x) for x in zip(*done, strict=True))
    return upright_form(shaped), settled


def second_moments(images: list[Pixels], frames: Frames) -> Floats:
    """(N, 3) weighted sums of dx dx, dx dy and dy dy over each frame's patch."""
    side = _SIDE + 2  # central differences need a neighbour on each side
    window = frames.copy()
    window[:, :, :2] *= np.float32(side / _SIDE)
    # A blurred level would hide gradients along the short axis and make the shape rounder.
    short = axes(window[:, :, :2])[0]
    patches = cut_from_pyramid(images, window, short, side).astype(np.float32)
    dx = (patches[:, 1:-1, 2:] - patches[:, 1:-1, :-2]).reshape(len(frames), -1)
    dy = (patches[:, 2:, 1:-1] - patches[:, :-2, 1:-1]).reshape(len(frames), -1)
    bell = np.exp(-(patch_ticks(_SIDE) ** 2) / (4 * _WEIGHT**2))  # a root: it enters squared
    weight = np.outer(bell, bell).astype(np.float32).reshape(-1)
    dx *= weight
    dy *= weight
    products = [np.einsum("ni,ni->n", a, b) for a, b in ((dx, dx), (dx, dy), (dy, dy))]
    return np.stack(products, 1).astype(np.float64)


def _adapt(images: list[Pixels], frames: Frames) -> tuple[Frames, NDArray[np.bool_]]:
    out = frames.copy()
    settled = np.zeros(len(frames), bool)
    active = np.arange(len(frames))
    for _ in range(ITERATIONS):
        step, ratio = _reshaping(second_moments(images, out[active]))
        shape = out[active, :, :2] @ step
        short, long = axes(shape)
        alive = (ratio > 0) & (long < MAX_STRETCH * short) & (short > _SMALLEST)
        out[active[alive], :, :2] = shape[alive]
        done = ratio > 1 - ISOTROPIC
        settled[active[alive & done]] = True
        active = active[alive & ~done]
        if not len(active):
            break
    return out, settled


def _reshaping(moments: Floats) -> tuple[NDArray[np.float32], Floats]:
    """M^(-1/2) with determinant 1, and the ratio of its axes (short over long).

    Without gradients, or with gradients of one direction only, they are the identity and 0.
    """
    xx, xy, yy = moments.T
    trace, spread = xx + yy, np.hypot(xx - yy, 2 * xy)
    good = spread < trace * (1 - 1e-6)
    ratio = np.sqrt(np.where(good, trace - spread, 0) / np.where(good, trace + spread, 1))
    # M is trace I + spread S over 2, where S = [[c, s], [s, -c]] is a reflection: S S = I. So a
    # power of M is a sum of I and S too, with eigenvalues exp(+-q) if the determinant is 1.
    q = np.where(good, 0.5 * np.log(np.where(good, ratio, 1)), 0)
    unit = np.maximum(spread, 1e-30)
    c, s = np.sinh(q) * (xx - yy) / unit, np.sinh(q) * 2 * xy / unit
    step = np.stack([np.cosh(q) + c, s, s, np.cosh(q) - c], 1).reshape(-1, 2, 2)
    return step.astype(np.float32), ratio


def axes(shape: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """(N,) short and (N,) long half-axis of each (N, 2, 2) shape."""
    a, b, c, d = shape.reshape(-1, 4).astype(np.float64).T
    # Sum and difference of the singular values.
    total, difference = np.hypot(a + d, b - c), np.hypot(a - d, b + c)
    return np.abs(total - difference) / 2, (total + difference) / 2


class AffNetDetector:
    """Hessian keypoints whose shape, and optionally orientation, published networks estimate."""

    def __init__(self, shape_weights: Path, orientation_weights: Path | None = None) -> None:
        try:
            import torch
        except ImportError as error:
            raise MissingExtraError("torch", "train") from error
        from hardnet.nets import load_weights
        from hardnet.nets.hardnet import AffNet, OriNet

        self._torch = torch
        self._affnet = load_weights(AffNet(), shape_weights)
        given = orientation_weights
        self._orinet = None if given is None else load_weights(OriNet(), given)

    def __call__(self, image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
        frames, scores = (part[:keypoints] for part in find_places(image))
        if not len(frames):
            return frames, scores
        frames = self.shape(image, frames)
        short, long = axes(frames[:, :, :2])
        good = long < MAX_STRETCH * short
        frames, scores = frames[good], scores[good]
        return frames if upright else self.orient(image, frames), scores

    def shape(self, image: Pixels, frames: Frames) -> Frames:
        """Upright round frames (N, 2, 3) with the shape from AffNet; the area does not change."""
        out = frames.copy()
        out[:, :, :2] = frames[:, :, :2] @ self._ask(self._affnet.shapes, image, frames)
        return out

    def orient(self, image: Pixels, frames: Frames) -> Frames:
        """Frames (N, 2, 3) rotated within their shape by OriNet, or the dominant gradient."""
        if self._orinet is None:
            return orient(image, frames)
        return turn(frames, self._ask(self._orinet.angles, image, frames).astype(np.float64))

    def _ask(
        self, answer: Callable[[Tensor], Tensor], image: Pixels, frames: Frames
    ) -> NDArray[np.float32]:
        patches = self._torch.from_numpy(cut_patches(image, frames)[:, None].astype(np.float32))
        batches = self._torch.split(patches, _BATCH)
        with self._torch.inference_mode():
            return np.concatenate([answer(part).numpy() for part in batches])


def load_affnet_detector(name: str) -> AffNetDetector:
    """The detector called ``affnet:AffNet.pth`` or ``affnet:AffNet.pth,OriNet.pth``."""
    files = name.removeprefix(AFFNET).split(",")
    if len(files) > 2 or not all(files):
        raise InputError(
            f"detector '{name}': write affnet:AffNet.pth or affnet:AffNet.pth,OriNet.pth"
        )
    paths = tuple(Path(file).resolve() for file in files)
    return _opened(paths, tuple(path.stat().st_mtime_ns for path in paths if path.is_file()))


@lru_cache(maxsize=2)
def _opened(paths: tuple[Path, ...], _written: tuple[int, ...]) -> AffNetDetector:
    return AffNetDetector(*paths)


def detect_mser(image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
    """Maximally stable extremal regions (Matas et al. 2002), by OpenCV, as elliptic frames.

    The shape is that of the region's covariance, whose standard deviations stand for a keypoint's
    sigma. Regions at the border are dropped, because their shape depends on where the image ends.
    OpenCV does not report stability, so the score is the square root of the area.
    """
    height, width = image.shape
    nothing = empty_frames(), np.zeros(0, np.float32)
    if min(image.shape) < _MIN_REGION_SIDE:
        return nothing
    largest = max(int(_MAX_AREA * image.size), _MIN_AREA + 1)
    finder = cv2.MSER.create(
        delta=_MARGIN, min_area=_MIN_AREA, max_area=largest, max_variation=_MAX_VARIATION
    )
    regions, boxes = finder.detectRegions(image)
    if not len(regions):
        return nothing
    x, y, w, h = np.asarray(boxes).T
    # OpenCV 4 never includes the outermost pixels in a region.
    inner = (x > 1) & (y > 1) & (x + w < width - 1) & (y + h < height - 1)
    area, centre, covariance = _moments(
        [np.asarray(regions[i], np.int32) for i in np.flatnonzero(inner).tolist()]
    )
    shape = np.linalg.cholesky(covariance) * (WINDOW_SIGMAS / 2)
    short, long = axes(shape)
    order = np.lexsort((centre[:, 0], centre[:, 1], -area))
    chosen = order[(long < MAX_STRETCH * short)[order]][:keypoints]
    frames = np.concatenate([shape, centre[:, :, None]], 2)[chosen].astype(np.float32)
    scores = np.sqrt(area[chosen]).astype(np.float32)
    return frames if upright else orient(image, frames), scores


def _moments(regions: list[NDArray[np.int32]]) -> tuple[Floats, Floats, Floats]:
    """Area (N,), centre (N, 2) and covariance (N, 2, 2) of regions, lists of pixels (n, 2)."""
    area = np.array([len(region) for region in regions], np.float64)
    if not len(area):
        return area, np.zeros((0, 2)), np.zeros((0, 2, 2))
    points = np.concatenate(regions).astype(np.float64)
    first = np.concatenate([[0], np.cumsum(area)[:-1]]).astype(np.intp)
    centre = np.add.reduceat(points, first) / area[:, None]
    points -= np.repeat(centre, area.astype(np.intp), 0)
    products = np.column_stack([points[:, 0] ** 2, points[:, 0] * points[:, 1], points[:, 1] ** 2])
    xx, xy, yy = (np.add.reduceat(products, first) / area[:, None]).T
    # A pixel is a square, not a point: it has a variance.
    xx, yy = xx + 1 / 12, yy + 1 / 12
    return area, centre, np.stack([xx, xy, xy, yy], 1).reshape(-1, 2, 2)
