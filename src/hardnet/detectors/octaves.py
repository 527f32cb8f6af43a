"""Extrema of the determinant of the Hessian in the octaves of an image.

The response of a scale is sigma^4 (Lxx Lyy - Lxy^2), where L is the image smoothed by sigma. An
octave is searched in strips of rows, so that an image of any size needs the memory of a few
strips, and the strips keep all cores busy.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.quadratic import neighbourhood, refine
from hardnet.detectors.threads import map_threads

SIGMA = 1.6
"""Smoothing of the finest level."""

SCALES = 3
"""Scales per octave at which keypoints are found."""

EDGE_RATIO = 10.0
"""A peak of the response whose one curvature is this many times the other is an edge."""

BORDER = 5
"""No keypoint is this close to the border, in pixels of its octave."""

Level = NDArray[np.uint8] | NDArray[np.float32]
"""The first octave is the photograph itself, the others are smoothed by SIGMA."""

_CAMERA_SIGMA = 0.5  # the blur a photograph is taken to have
_STEP = 2 ** (1 / SCALES)
_SIGMAS = tuple(SIGMA * _STEP**k for k in range(SCALES + 2))
_ROWS = 400  # of a strip at most: few enough for the cache, many enough for cheap margins
_MIN_SIDE = 2 * BORDER + 3
_REACH = 8  # rows beyond a strip that the search for its extrema may look at
_BEFORE = np.arange(27) < 13  # neighbours that come before the centre in memory


def search_octaves(image: NDArray[np.uint8], floor: float) -> NDArray[np.float64]:
    """Extrema in all octaves.

    Args:
        image: (H, W) uint8.
        floor: least absolute response.

    Returns:
        (N, 4) x, y, sigma and response, in no particular order.
    """
    found = [np.zeros((0, 4))]
    source: Level = image
    scale = 1.0
    while min(source.shape) >= _MIN_SIDE:
        table, source = _search_octave(source, floor)
        # Each octave answers for its own scales: at the seam both may see the same keypoint.
        own = (table[:, 2] >= SIGMA * _STEP**0.5) | (scale == 1)
        table = table[own & (table[:, 2] < SIGMA * _STEP ** (SCALES + 0.5))]
        table[:, :3] *= scale  # an octave keeps every second pixel, from pixel 0 on: no shift
        found.append(table)
        scale *= 2
    return np.concatenate(found)


def respond(
    smooth: NDArray[np.float32], sigma: float, room: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """(H, W) determinant of the Hessian of an image smoothed by ``sigma``, times sigma^4.

    Args:
        smooth: (H, W).
        sigma: of the smoothing.
        room: (3, H, W) to work in; the result is the first of the three. Fresh memory costs more
            than the derivatives.
    """
    room = np.empty((3, *smooth.shape), np.float32) if room is None else room
    derivatives = ((2, 0), sigma**2), ((0, 2), sigma**2), ((1, 1), sigma**2 / 4)
    for out, (order, scale) in zip(room, derivatives, strict=True):
        cv2.Sobel(smooth, cv2.CV_32F, *order, dst=out, ksize=1, scale=scale)
    response: NDArray[np.float32] = room[0]
    response *= room[1]
    response -= np.square(room[2], out=room[2])
    return response


def _search_octave(source: Level, floor: float) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
    """Extrema of one octave, in its pixels, and the (H/2, W/2) image of the next."""
    height, width = source.shape
    half = np.empty(((height + 1) // 2, (width + 1) // 2), np.float32)

    # Strips of equal height, and even, as every second row goes to the next octave.
    rows = 2 * int(np.ceil(height / np.ceil(height / _ROWS) / 2))

    def search(start: int) -> NDArray[np.float64]:
        return _search_strip(source, start, min(start + rows, height), floor, half)

    return np.concatenate(map_threads(search, range(0, height, rows))), half


def _search_strip(
    source: Level, start: int, stop: int, floor: float, half: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Extrema in the rows ``start`` to ``stop``; also fills these rows of ``half``."""
    steps = _blurs(source)
    margin = _REACH + sum(_radius(sigma) for sigma in steps)
    top, bottom = max(start - margin, 0), min(stop + margin, len(source))
    smooth = source[top:bottom].astype(np.float32)
    # Each response is worked out in its own place and the two after it.
    responses = np.empty((len(_SIGMAS) + 2, *smooth.shape), np.float32)
    for k, (step, sigma) in enumerate(zip(steps, _SIGMAS, strict=True)):
        if step:
            side = 2 * _radius(step) + 1
            smooth = np.asarray(cv2.GaussianBlur(smooth, (side, side), step), np.float32)
        if k == SCALES:
            half[start // 2 : (stop + 1) // 2] = smooth[start - top : stop - top : 2, ::2]
        respond(smooth, sigma, responses[k : k + 3])
    responses = responses[: len(_SIGMAS)]
    rows = max(start, BORDER) - top, min(stop, len(source) - BORDER) - top
    peaks = refine(responses, _extrema(responses, floor, *rows), EDGE_RATIO)
    peaks = peaks[np.abs(peaks[:, 3]) >= floor]
    return np.column_stack(
        [peaks[:, 2], peaks[:, 1] + top, SIGMA * _STEP ** peaks[:, 0], peaks[:, 3]]
    )


def _blurs(source: Level) -> tuple[float, ...]:
    """By how much each level is smoothed after the one before it."""
    before = (_CAMERA_SIGMA if source.dtype == np.uint8 else SIGMA, *_SIGMAS[:-1])
    return tuple(float(np.sqrt(max(b**2 - a**2, 0))) for a, b in zip(before, _SIGMAS, strict=True))


def _radius(sigma: float) -> int:
    """Pixels a blur looks to either side."""
    return int(np.ceil(4 * sigma))


def _extrema(
    responses: NDArray[np.float32], floor: float, first: int, last: int
) -> NDArray[np.intp]:
    """(N, 3) indices k, y, x of samples beyond all 26 neighbours, in rows ``first`` to ``last``."""
    found = [np.zeros((0, 3), np.intp)]
    if last <= first:
        return found[0]
    width = responses.shape[2]
    box = np.ones((3, 3), np.uint8)
    least = 0.8 * floor  # between the samples an extremum is larger than at them
    for k in range(1, SCALES + 1):
        rows = responses[k, first - 1 : last + 1]
        here = rows[1:-1].reshape(-1)
        for extreme in (cv2.dilate(rows, box), cv2.erode(rows, box)):
            index = np.flatnonzero(here == extreme[1:-1].reshape(-1))
            y, x = np.divmod(index[np.abs(here[index]) >= least], width)
            inner = (x >= BORDER) & (x < width - BORDER)
            found.append(np.column_stack([np.full(len(y), k), y + first, x])[inner])
    cells = np.concatenate(found)
    cube = neighbourhood(responses, cells).reshape(-1, 27)
    cube = cube * np.sign(cube[:, 13:14])
    centre = cube[:, 13:14]
    # Of equal neighbours the first is the extremum: a symmetric blob is one keypoint, not four.
    return cells[np.where(_BEFORE, cube < centre, cube <= centre)[:, np.arange(27) != 13].all(1)]
