"""Difference-of-Gaussians keypoints (Lowe 2004), by OpenCV's SIFT detector; large images in tiles.

OpenCV's detector holds eleven floating point images of four times the image's pixels. Large images
are searched octave by octave in tiles, with margins as wide as the area a keypoint depends on.
Thresholds, order of steps and borders are those of OpenCV: keypoints differ only by rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Lock

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.hessian import BORDER, SCALES, SIGMA, STEP, fit, neighbourhood, peaks
from hardnet.detectors.orientation import BINS, Floats, Indices, smoothed
from hardnet.frames import Detected, from_similarity
from hardnet.images import Pixels
from hardnet.threads import map_threads

Keys = NDArray[np.float64]
"""(N, 5) negative response, y, x, size and angle in degrees, as OpenCV's."""

CONTRAST = 0.005
"""Eight times below OpenCV's default.

The budget keeps the strongest keypoints in any case, so this matters only where the default finds
too few, as in blurred photos. A lower value starts to find JPEG blocks."""

LARGE = 6_000_000  # pixels: larger images are searched in tiles
SIDE = 1024  # of a tile in pixels of its octave, without margins
_EAGER = 0.024  # the lowest contrast at which OpenCV examines far fewer pixels
_AMPLE = 500  # pixels per keypoint of a photo that most likely has enough of that contrast
_ORIENTATIONS = 2  # per place, more than usual

_REACH = 16  # how far a fit may move; the gradients of an orientation are within it
_MARGIN = 52 + _REACH  # plus the reach of the blurs of an octave; even
_ROUNDS = 5
_NOISE = 1e-3  # grey levels; less is rounding, which would make extrema of flat regions
_SIGMAS = tuple(SIGMA * STEP**k for k in range(SCALES + 3))
_DOUBLED_SIGMA = 1.0  # assumed blur of a photograph, in pixels of the doubled image
_WEIGHT_SIGMAS = 1.5  # of the Gaussian weight of the gradients, in scales of the keypoint
_RADIUS = 3 * _WEIGHT_SIGMAS
_SECOND = 0.8  # a peak of this share of the highest is an orientation, too
_CHUNK = 512  # keypoints oriented at once


def detect(image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
    """Find the strongest keypoints of an image; see ``detectors.Detector``.

    A position with two strong orientations gives two frames, as in Lowe's paper. The score is the
    absolute DoG contrast; equal scores are ordered by position, so the result does not depend on
    threads.
    """
    return _strongest(_keys(image, keypoints, places=upright), keypoints, upright)


def detect_both(image: Pixels, keypoints: int = 2048) -> tuple[Detected, Detected]:
    """The results of :func:`detect` with and without ``upright``, in the time of one."""
    keys = _keys(image, keypoints, places=True)
    return _strongest(keys, keypoints, upright=True), _strongest(keys, keypoints, upright=False)


def _keys(image: Pixels, keypoints: int, places: bool) -> Keys:
    """Keys, sorted.

    There are enough for the strongest keypoints or, with ``places``, for that many places.
    """
    if image.size > LARGE:
        return find_keys(image, CONTRAST, keypoints)
    # Avoid creating Python objects for tens of thousands of weak keypoints: OpenCV keeps the
    # budget and all ties with its last one. It counts each orientation of a place.
    budget = _ORIENTATIONS * keypoints if places else keypoints
    keys = _opencv_keys(image, budget)
    if places and len(keys) >= budget and is_new_place(keys).sum() < keypoints:
        keys = _opencv_keys(image, 0)
    return keys


def _opencv_keys(image: Pixels, budget: int) -> Keys:
    is_ample = budget and image.size >= _AMPLE * budget
    found: Sequence[cv2.KeyPoint] = []
    for contrast in (_EAGER, CONTRAST) if is_ample else (CONTRAST,):
        # Without precise upscaling OpenCV reports every keypoint a quarter of a pixel too far right
        # and down, because its doubled image is not centred.
        sift = cv2.SIFT.create(
            nfeatures=budget, contrastThreshold=contrast, enable_precise_upscale=True
        )
        found = sift.detect(image, None)
        if len(found) >= budget:  # weaker ones would not be among the strongest
            break
    return sorted_keys(found)


def sorted_keys(found: Sequence[cv2.KeyPoint]) -> Keys:
    """OpenCV's keypoints as a table, strongest first; equal ones by position."""
    keys = np.array([(-k.response, k.pt[1], k.pt[0], k.size, k.angle) for k in found])
    keys = keys.reshape(-1, 5)
    return keys[np.lexsort(keys.T[::-1])]


def _strongest(keys: Keys, keypoints: int, upright: bool) -> Detected:
    if upright:
        keys = keys[is_new_place(keys)] * (1, 1, 1, 1, 0)
    keys = keys[:keypoints]
    frames = from_similarity(keys[:, [2, 1]], keys[:, 3] / 2, np.deg2rad(keys[:, 4]))
    return frames, (-keys[:, 0]).astype(np.float32)


def is_new_place(keys: Keys) -> NDArray[np.bool_]:
    """(N,) which of sorted keys differ from the one before in more than their orientation."""
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:, :4] != keys[:-1, :4]).any(1)
    return new


def find_keys(image: Pixels, contrast: float, budget: int, side: int = SIDE) -> Keys:
    """The strongest keypoints of a grey image (H, W), sorted: those of ``budget`` places.

    A place has a row for each of its orientations. The ``side`` of tiles is even.
    """
    best = _Strongest(budget)
    source: Pixels | NDArray[np.float32] = image
    pixel = 0.5  # of the octave, in pixels of the photograph
    for _ in range(round(float(np.log2(2 * min(image.shape))) - 2) + 1):
        source = _search(source, pixel, contrast, best, side)
        pixel *= 2
    return best.keys


@dataclass(eq=False)
class _Strongest:
    """The keypoints of the strongest places so far, independent of the order of arrival."""

    budget: int
    keys: Keys = field(default_factory=lambda: np.zeros((0, 5)))
    least: float = 0.0
    _lock: Lock = field(default_factory=Lock)

    def add(self, more: Keys) -> None:
        with self._lock:
            keys = np.concatenate([self.keys, more])
            keys = keys[np.lexsort(keys.T[::-1])]
            place = np.cumsum(is_new_place(keys))
            self.keys = keys[place <= self.budget]
            if len(place) and place[-1] >= self.budget:
                self.least = -self.keys[-1, 0]


def _search(
    source: Pixels | NDArray[np.float32],
    pixel: float,
    contrast: float,
    best: _Strongest,
    side: int,
) -> NDArray[np.float32]:
    """Add the keypoints of an octave to the best; return the image of the next octave.

    The source of the first octave is the photograph itself, which is doubled tile by tile.
    """
    shape = np.array(source.shape) * (2 if source.dtype == np.uint8 else 1)
    half = np.empty(shape // 2, np.float32)

    def search(corner: tuple[int, int]) -> None:
        """The tile from ``start`` to ``stop``, seen with its margins from ``first`` to ``last``."""
        start = np.array(corner)
        stop = np.minimum(start + side, shape)
        first, last = np.maximum(start - _MARGIN, 0), np.minimum(stop + _MARGIN, shape)
        levels = _levels(source, first, last)
        (top, left), (bottom, right) = start - first, stop - first
        room = half[start[0] // 2 : stop[0] // 2, start[1] // 2 : stop[1] // 2]
        every_second = levels[SCALES, top:bottom:2, left:right:2]
        room[:] = every_second[: room.shape[0], : room.shape[1]]
        # Within these, responses equal those of the whole octave.
        sure = np.maximum(start - _REACH, BORDER), np.minimum(stop + _REACH, shape - BORDER)
        cells, offset, response = _places(levels, sure[0] - first, sure[1] - first, contrast)
        place = cells[:, 1:] + first
        mine = (response >= best.least) & ((place >= start) & (place < stop)).all(1)
        cells, place, offset, response = cells[mine], place[mine], offset[mine], response[mine]
        scale = SIGMA * STEP ** (cells[:, 0] + offset[:, 0])
        row, angle = _orientations(levels, cells, scale, first, shape)
        # In single precision, as OpenCV's.
        y, x = (place + offset[:, 1:]).astype(np.float32).T
        keys = [-response, y * pixel, x * pixel, np.float32(scale * 2 * pixel)]
        best.add(np.column_stack([*(key[row] for key in keys), angle]))

    height, width = shape.tolist()
    map_threads(search, [(y, x) for y in range(0, height, side) for x in range(0, width, side)])
    return half


def _levels(
    source: Pixels | NDArray[np.float32], first: Indices, last: Indices
) -> NDArray[np.float32]:
    """(K, h, w) the octave from ``first`` to ``last``, smoothed by each of its sigmas."""
    out = np.empty((len(_SIGMAS), *(last - first)), np.float32)
    if source.dtype == np.uint8:
        (top, left), (bottom, right) = first // 2, (last + 1) // 2
        doubled = cv2.warpAffine(
            source[top:bottom, left:right].astype(np.float32),
            np.array([[0.5, 0, 0], [0, 0.5, 0]], np.float32),
            out.shape[:0:-1],
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REFLECT,
        )
        blur = float(np.sqrt(SIGMA**2 - _DOUBLED_SIGMA**2))
        cv2.GaussianBlur(doubled, (0, 0), blur, dst=out[0])
    else:
        out[0] = source[first[0] : last[0], first[1] : last[1]]
    for k, (before, after) in enumerate(pairwise(_SIGMAS)):
        blur = float(np.sqrt(after**2 - before**2))
        cv2.GaussianBlur(out[k], (0, 0), blur, dst=out[k + 1])
    return out


def _places(
    levels: NDArray[np.float32], start: Indices, stop: Indices, contrast: float
) -> tuple[Indices, Floats, NDArray[np.float32]]:
    """Extrema of the differences: cells (N, 3) k, y, x, their offsets (N, 3) and contrast (N,)."""
    values = levels[1:] - levels[:-1]
    first, last = np.array([1, *start]), np.array([SCALES + 1, *stop])
    cells = _extrema(values, first, last)
    settled = []
    for _ in range(_ROUNDS):
        offset = fit(neighbourhood(values, cells))[0]
        done = (np.abs(offset) < 0.5).all(1)
        settled.append(cells[done])
        cells, offset = cells[~done], offset[~done]
        near = (np.abs(offset) < _MARGIN).all(1)
        cells = cells[near] + np.rint(offset[near]).astype(np.intp)
        cells = cells[((cells >= first) & (cells < last)).all(1)]
    cells, offset, peak = peaks(values, np.concatenate(settled))
    peak = np.abs(peak) / 255
    good = peak * SCALES >= contrast
    return cells[good], offset[good], peak[good].astype(np.float32)


def _extrema(values: NDArray[np.float32], first: Indices, last: Indices) -> Indices:
    """(N, 3) cells k, y, x from ``first`` to before ``last`` that no neighbour exceeds."""
    if (last <= first).any():
        return np.zeros((0, 3), np.intp)
    found = []
    box = np.ones((3, 3), np.uint8)
    inner = tuple(slice(*ends) for ends in zip(first[1:], last[1:], strict=True))
    for k in range(first[0], last[0]):
        here = values[k][inner]
        for sign, most, spread in ((1, np.maximum, cv2.dilate), (-1, np.minimum, cv2.erode)):
            extreme = most(most(values[k - 1], values[k + 1]), values[k])
            y, x = np.nonzero((spread(extreme, box)[inner] == here) & (here * sign > _NOISE))
            found.append(np.column_stack([np.full(len(y), k), y + first[1], x + first[2]]))
    return np.concatenate(found)


def _orientations(
    levels: NDArray[np.float32], cells: Indices, scale: Floats, origin: Indices, shape: Indices
) -> tuple[Indices, Floats]:
    """Peaks of histograms of gradients: (M,) which of the cells (N, 3), and (M,) degrees.

    ``scale`` (N,) is in pixels of the levels, ``origin`` where they lie in the octave of ``shape``.
    """
    rows, angles = [np.zeros(0, np.intp)], [np.zeros(0)]
    for start in range(0, len(cells), _CHUNK):
        part = slice(start, start + _CHUNK)
        histograms = _histograms(levels, cells[part], scale[part], origin, shape)
        before, after = np.roll(histograms, 1, 1), np.roll(histograms, -1, 1)
        peak = (histograms > before) & (histograms > after)
        peak &= histograms >= np.float32(_SECOND) * histograms.max(1, keepdims=True)
        row, number = np.nonzero(peak)
        low, here, high = before[peak], histograms[peak], after[peak]
        position = number + 0.5 * (low - high) / (low - 2 * here + high)
        rows.append(row + start)
        # Clockwise on screen, and in single precision, as OpenCV's.
        angle = np.float32(360 - 360 / BINS * np.mod(position, BINS))
        angles.append(np.mod(angle, 360).astype(np.float64))
    return np.concatenate(rows), np.concatenate(angles)


def _histograms(
    levels: NDArray[np.float32], cells: Indices, scale: Floats, origin: Indices, shape: Indices
) -> Floats:
    """(N, 36) weighted gradients around each cell by direction, counterclockwise, smoothed."""
    width = levels.shape[2]
    radius = np.rint(_RADIUS * scale)
    reach = int(radius.max())
    y, x = (ticks.reshape(-1) for ticks in np.mgrid[-reach : reach + 1, -reach : reach + 1])
    counts = (np.abs(y) <= radius[:, None]) & (np.abs(x) <= radius[:, None])
    for axis, tick in enumerate((y, x)):
        place = cells[:, axis + 1, None] + origin[axis] + tick
        counts &= (place > 0) & (place < shape[axis] - 1)
    row, tick = np.nonzero(counts)
    index = np.ravel_multi_index(
        (cells[row, 0], cells[row, 1] + y[tick], cells[row, 2] + x[tick]), levels.shape
    )
    flat = levels.reshape(-1)
    dx, dy = flat[index + 1] - flat[index - 1], flat[index - width] - flat[index + width]
    magnitude, angle = (part.reshape(-1) for part in cv2.cartToPolar(dx, dy, angleInDegrees=True))
    distance = y[tick] ** 2 + x[tick] ** 2
    weight = np.exp(-distance / (2 * (_WEIGHT_SIGMAS * scale[row]) ** 2))
    number = np.rint(angle * np.float32(BINS / 360)).astype(np.intp) % BINS
    votes = np.bincount(row * BINS + number, magnitude * weight, len(cells) * BINS)
    return smoothed(np.asarray(votes, np.float64).reshape(-1, BINS))
