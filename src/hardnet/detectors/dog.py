"""Difference-of-Gaussians keypoints (Lowe 2004), by OpenCV's SIFT detector; large images in tiles.

OpenCV's detector holds eleven floating point images of four times the image's pixels. Large images
are searched octave by octave in tiles, with margins as wide as the area a keypoint depends on; each
tile writes every second pixel of its third level to the image of the next octave. Thresholds, order
of steps and borders are those of OpenCV: a keypoint can differ only by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.hessian import fit, neighbourhood
from hardnet.detectors.orientation import Floats, Indices
from hardnet.frames import Detected, empty_frames, from_similarity
from hardnet.images import Pixels
from hardnet.threads import map_threads

Keys = NDArray[np.float64]
"""(N, 5) negative response, y, x, size and angle in degrees, as OpenCV's."""

CONTRAST = 0.005
"""Eight times below OpenCV's default.

The budget keeps the strongest keypoints in any case, so this matters only where the default finds
too few, as in blurred photos. A lower value starts to find JPEG blocks."""

_EAGER = 0.024  # the lowest contrast at which OpenCV examines far fewer pixels
_AMPLE = 500  # pixels per keypoint of a photo that most likely has enough of that contrast

LARGE = 6_000_000
"""Pixels: larger images are searched in tiles."""

SIGMA = 1.6
"""Smoothing of the finest level of an octave, in its pixels."""

SCALES = 3
"""Scales per octave at which keypoints are found."""

EDGE_RATIO = 10.0
"""A keypoint is an edge if the ratio of its curvatures exceeds this."""

BORDER = 5
"""No keypoint is this close to the border, in pixels of its octave."""

SIDE = 1024
"""Of a tile in pixels of its octave, without margins."""

_REACH = 16  # how far a fit may move; the gradients of an orientation are within it
_MARGIN = 52 + _REACH  # plus the reach of the blurs of an octave; even
_ROUNDS = 5
_NOISE = 1e-3  # grey levels; less is rounding, which would make extrema of flat regions
_STEP = 2 ** (1 / SCALES)
_SIGMAS = tuple(SIGMA * _STEP**k for k in range(SCALES + 3))
_DOUBLED_SIGMA = 1.0  # assumed blur of a photograph, in pixels of the doubled image

_BINS = 36
_WEIGHT_SIGMAS = 1.5  # of the Gaussian weight of the gradients, in scales of the keypoint
_RADIUS = 3 * _WEIGHT_SIGMAS
_SECOND = 0.8  # a peak of this share of the highest is an orientation, too
_SMOOTHING = np.array([1, 4, 6, 4, 1]) / 16
_CHUNK = 512  # keypoints oriented at once
_ORIENTATIONS = 2  # per place, more than usual


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
    """Keys of the strongest keypoints, sorted; of all if the budget is 0."""
    if budget and image.size >= _AMPLE * budget:
        found = _opencv_keypoints(image, budget, _EAGER)
        if len(found) >= budget:  # weaker ones would not be among the strongest
            return sorted_keys(found)
    return sorted_keys(_opencv_keypoints(image, budget, CONTRAST))


def _opencv_keypoints(image: Pixels, budget: int, contrast: float) -> Sequence[cv2.KeyPoint]:
    # Without precise upscaling OpenCV reports every keypoint a quarter of a pixel too far right
    # and down, because its doubled image is not centred.
    sift = cv2.SIFT.create(
        nfeatures=budget, contrastThreshold=contrast, enable_precise_upscale=True
    )
    found: Sequence[cv2.KeyPoint] = sift.detect(image, None)
    return found


def sorted_keys(found: Sequence[cv2.KeyPoint]) -> Keys:
    """OpenCV's keypoints as a table, strongest first; equal ones by position."""
    keys = np.array([(-k.response, k.pt[1], k.pt[0], k.size, k.angle) for k in found])
    keys = keys.reshape(-1, 5)
    return keys[np.lexsort(keys.T[::-1])]


def _strongest(keys: Keys, keypoints: int, upright: bool) -> Detected:
    if not len(keys):
        return empty_frames(), np.zeros(0, np.float32)
    angle = keys[:, 4]
    if upright:
        keys = keys[is_new_place(keys)]
        angle = np.zeros(len(keys))
    keys, angle = keys[:keypoints], angle[:keypoints]
    frames = from_similarity(keys[:, [2, 1]], keys[:, 3] / 2, np.deg2rad(angle))
    return frames, (-keys[:, 0]).astype(np.float32)


def is_new_place(keys: Keys) -> NDArray[np.bool_]:
    """(N,) which of sorted keys differ from the one before in more than their orientation."""
    new = np.ones(len(keys), bool)
    new[1:] = (keys[1:, :4] != keys[:-1, :4]).any(1)
    return new


class _Tile(NamedTuple):
    """A part of an octave.

    It reports keypoints in ``own`` and reads ``seen``, rows and columns; ``sure`` (2, 2) are the
    first and one past the last row and column whose responses equal those of the whole octave.
    """

    own: tuple[slice, slice]
    seen: tuple[slice, slice]
    sure: Indices


@dataclass(frozen=True, eq=False)
class _Octave:
    """The image of an octave; the first is the photograph itself, doubled tile by tile."""

    source: Pixels | NDArray[np.float32]
    shape: tuple[int, int]
    pixel: float  # its size in pixels of the photograph

    def tiles(self, side: int) -> Iterator[_Tile]:
        height, width = self.shape
        for y in range(0, height, side):
            for x in range(0, width, side):
                own, seen, sure = [], [], []
                for start, length in ((y, height), (x, width)):
                    stop = min(start + side, length)
                    first, last = max(start - _MARGIN, 0), min(stop + _MARGIN, length)
                    own.append(slice(start, stop))
                    seen.append(slice(first, last))
                    sure.append((max(BORDER, start - _REACH), min(length - BORDER, stop + _REACH)))
                yield _Tile((own[0], own[1]), (seen[0], seen[1]), np.array(sure).T)

    def levels(self, tile: _Tile) -> NDArray[np.float32]:
        """(K, h, w) the seen part of the octave, smoothed by each of its sigmas."""
        rows, columns = tile.seen
        out = np.empty(
            (len(_SIGMAS), rows.stop - rows.start, columns.stop - columns.start), np.float32
        )
        if self.source.dtype == np.uint8:
            part = self.source[
                rows.start // 2 : (rows.stop + 1) // 2, columns.start // 2 : (columns.stop + 1) // 2
            ]
            doubled = cv2.warpAffine(
                part.astype(np.float32),
                np.array([[0.5, 0, 0], [0, 0.5, 0]], np.float32),
                out.shape[:0:-1],
                flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
                borderMode=cv2.BORDER_REFLECT,
            )
            cv2.GaussianBlur(doubled, (0, 0), _added(_DOUBLED_SIGMA, SIGMA), dst=out[0])
        else:
            out[0] = self.source[rows, columns]
        for k in range(1, len(_SIGMAS)):
            cv2.GaussianBlur(out[k - 1], (0, 0), _added(_SIGMAS[k - 1], _SIGMAS[k]), dst=out[k])
        return out


def find_keys(image: Pixels, contrast: float, budget: int, side: int = SIDE) -> Keys:
    """The strongest keypoints of a grey image (H, W), sorted: those of ``budget`` places.

    A place has a row for each of its orientations. The ``side`` of tiles is even.
    """
    best = _Strongest(budget)
    octave = _Octave(image, (2 * image.shape[0], 2 * image.shape[1]), 0.5)
    for _ in range(round(float(np.log2(min(octave.shape))) - 2) + 1):
        octave = _search(octave, contrast, best, side)
    return best.keys


def _search(octave: _Octave, contrast: float, best: _Strongest, side: int) -> _Octave:
    """Add the keypoints of an octave to the best; return the next octave."""
    half = np.empty((octave.shape[0] // 2, octave.shape[1] // 2), np.float32)

    def search(tile: _Tile) -> None:
        levels = octave.levels(tile)
        origin = np.array([0, tile.seen[0].start, tile.seen[1].start])
        own = tuple(
            slice(own.start - first, own.stop - first)
            for own, first in zip(tile.own, origin[1:], strict=True)
        )
        room = half[tuple(slice(own.start // 2, own.stop // 2) for own in tile.own)]
        room[:] = levels[SCALES][own][::2, ::2][: room.shape[0], : room.shape[1]]
        cells, offset, response = _places(levels, tile.sure - origin[1:], contrast)
        mine = response >= best.least
        for axis in (0, 1):
            mine &= (cells[:, axis + 1] >= own[axis].start) & (cells[:, axis + 1] < own[axis].stop)
        cells, offset, response = cells[mine], offset[mine], response[mine]
        scale = SIGMA * _STEP ** (cells[:, 0] + offset[:, 0])
        row, angle = _orientations(levels, cells, scale, origin, octave.shape)
        # In single precision, as OpenCV's.
        y, x = (cells[:, 1:] + origin[1:] + offset[:, 1:]).astype(np.float32).T
        keys = [-response, y * octave.pixel, x * octave.pixel, np.float32(scale * 2 * octave.pixel)]
        best.add(np.column_stack([*(key[row] for key in keys), angle]))

    map_threads(search, list(octave.tiles(side)))
    return _Octave(half, half.shape, 2 * octave.pixel)


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


def _added(before: float, after: float) -> float:
    return float(np.sqrt(after**2 - before**2))


def _places(
    levels: NDArray[np.float32], sure: Indices, contrast: float
) -> tuple[Indices, Floats, NDArray[np.float32]]:
    """Extrema of the differences: cells (N, 3) k, y, x, their offsets (N, 3) and contrast (N,)."""
    values = levels[1:] - levels[:-1]
    first, last = np.column_stack([(1, SCALES + 1), sure])
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
    # Extrema that converge to the same sample are the same.
    order = np.unique(np.ravel_multi_index(tuple(np.concatenate(settled).T), values.shape))
    cells = np.column_stack(np.unravel_index(order, values.shape))
    cube = neighbourhood(values, cells)
    offset, slope, hessian = fit(cube)
    peak = np.abs(cube[:, 1, 1, 1] + 0.5 * (slope * offset).sum(1)) / 255
    yy, xx, xy = hessian[:, 1], hessian[:, 2], hessian[:, 5]
    det = xx * yy - xy * xy
    good = (det > 0) & ((xx + yy) ** 2 * EDGE_RATIO < (EDGE_RATIO + 1) ** 2 * det)
    good &= peak * SCALES >= contrast
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
    levels: NDArray[np.float32],
    cells: Indices,
    scale: Floats,
    origin: Indices,
    shape: tuple[int, int],
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
        angle = np.float32(360 - 360 / _BINS * np.mod(position, _BINS))
        angles.append(np.mod(angle, 360).astype(np.float64))
    return np.concatenate(rows), np.concatenate(angles)


def _histograms(
    levels: NDArray[np.float32],
    cells: Indices,
    scale: Floats,
    origin: Indices,
    shape: tuple[int, int],
) -> Floats:
    """(N, 36) weighted gradients around each cell by direction, counterclockwise, smoothed."""
    width = levels.shape[2]
    radius = np.rint(_RADIUS * scale)
    reach = int(radius.max())
    y, x = (ticks.reshape(-1) for ticks in np.mgrid[-reach : reach + 1, -reach : reach + 1])
    counts = (np.abs(y) <= radius[:, None]) & (np.abs(x) <= radius[:, None])
    for axis, tick in ((1, y), (2, x)):
        place = cells[:, axis, None] + origin[axis] + tick
        counts &= (place > 0) & (place < shape[axis - 1] - 1)
    row, tick = np.nonzero(counts)
    index = np.ravel_multi_index(
        (cells[row, 0], cells[row, 1] + y[tick], cells[row, 2] + x[tick]), levels.shape
    )
    flat = levels.reshape(-1)
    dx, dy = flat[index + 1] - flat[index - 1], flat[index - width] - flat[index + width]
    magnitude, angle = (part.reshape(-1) for part in cv2.cartToPolar(dx, dy, angleInDegrees=True))
    distance = y[tick] ** 2 + x[tick] ** 2
    weight = np.exp(-distance / (2 * (_WEIGHT_SIGMAS * scale[row]) ** 2))
    number = np.rint(angle * np.float32(_BINS / 360)).astype(np.intp) % _BINS
    votes = np.bincount(row * _BINS + number, magnitude * weight, len(cells) * _BINS)
    votes = votes.reshape(-1, _BINS)
    shifted = [np.roll(votes, i, 1) for i in range(-2, 3)]
    return np.asarray(np.tensordot(_SMOOTHING, shifted, 1))
