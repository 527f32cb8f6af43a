"""Blobs and saddles: keypoints of the determinant of the Hessian, with circular frames.

The response of a scale is sigma^4 (Lxx Lyy - Lxy^2), where L is the image smoothed by sigma; a
Gaussian blob of standard deviation s is found at sigma = s. An octave is searched in strips of
rows, so that an image of any size needs the memory of a few strips, and the strips keep all cores
busy. Between the samples an extremum is that of a quadratic in x, y and scale.
"""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.detectors.orientation import Floats, Indices, orient
from hardnet.errors import InputError
from hardnet.frames import Detected, from_similarity
from hardnet.images import Pixels
from hardnet.threads import map_threads

THRESHOLD = 5.33
"""Lowest square root of the response, in grey levels 0..255: the geometric mean of a blob's two
curvatures, times sigma^2. The value used in the literature (16/3)."""

SIGMA = 1.6  # smoothing of the finest level
SCALES = 3  # scales per octave at which keypoints are found
STEP = 2 ** (1 / SCALES)  # from one scale to the next
EDGE_RATIO = 10.0  # A peak of the response is an edge if the ratio of its curvatures exceeds this
BORDER = 5  # no keypoint is this close to the border, in pixels of its octave

Level = Pixels | NDArray[np.float32]
"""The first octave is the photograph itself, the others are smoothed by SIGMA."""

_CAMERA_SIGMA = 0.5  # assumed blur of a photograph
_SIGMAS = tuple(SIGMA * STEP**k for k in range(SCALES + 2))
ROWS = 400  # per strip at most: few enough for the cache, many enough for cheap margins
_MIN_SIDE = 2 * BORDER + 3
_REACH = 8  # rows beyond a strip that the search for extrema may read
_BEFORE = np.arange(27) < 13  # neighbours that come before the centre in memory

_ROUNDS = 5
_MOVE = 0.6  # an extremum this far from its sample belongs to the next one
_FARTHEST = 1.0  # the quadratic is not valid beyond the neighbours

_STRIDES = (9, 3, 1)  # of k, y and x in a flat cube of 27 samples
_PLANES = ((9, 3), (9, 1), (3, 1))


def detect(image: Pixels, keypoints: int = 2048, upright: bool = False) -> Detected:
    """Find the strongest Hessian keypoints of an image; see ``detectors.Detector``."""
    frames, scores = (part[:keypoints] for part in find_places(image))
    return frames if upright else orient(image, frames), scores


def find_places(image: Pixels, threshold: float = THRESHOLD, rows: int = ROWS) -> Detected:
    """All keypoints of an image with a score of at least ``threshold``, strongest first.

    Upright circular frames (N, 2, 3), and scores (N,), the root of the absolute response. Each
    octave is searched in strips of ``rows``.
    """
    if image.ndim != 2 or image.dtype != np.uint8:
        raise InputError(f"image must be (H, W) uint8, got {image.shape} {image.dtype}")
    found = [np.zeros((0, 4))]  # x, y, sigma and response
    source: Level = image
    scale = 1.0
    while min(source.shape) >= _MIN_SIDE:
        table, source = _search_octave(source, threshold**2, rows)
        # Each octave reports scales of one factor of 2: at the seam, both may see a keypoint.
        fine = (table[:, 2] >= SIGMA * STEP**0.5) | (scale == 1)
        table = table[fine & (table[:, 2] < SIGMA * STEP ** (SCALES + 0.5))]
        table[:, :3] *= scale  # an octave keeps every second pixel, from pixel 0 on: no shift
        found.append(table)
        scale *= 2
    table = np.concatenate(found)
    # Order equal responses by place, so that the order is deterministic.
    x, y, sigma, response = table[np.lexsort((*table[:, :3].T, -np.abs(table[:, 3])))].T
    scores = np.sqrt(np.abs(response)).astype(np.float32)
    return from_similarity(np.column_stack([x, y]), sigma), scores


def respond(
    smooth: NDArray[np.float32], sigma: float, room: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """(H, W) determinant of the Hessian of an image smoothed by ``sigma``, times sigma^4.

    ``room`` (3, H, W) is working memory, and the result is its first part: allocating memory costs
    more than the derivatives.
    """
    room = np.empty((3, *smooth.shape), np.float32) if room is None else room
    derivatives = ((2, 0), sigma**2), ((0, 2), sigma**2), ((1, 1), sigma**2 / 4)
    for out, (order, scale) in zip(room, derivatives, strict=True):
        cv2.Sobel(smooth, cv2.CV_32F, *order, dst=out, ksize=1, scale=scale)
    response: NDArray[np.float32] = room[0]
    response *= room[1]
    response -= np.square(room[2], out=room[2])
    return response


def _search_octave(source: Level, floor: float, most: int) -> tuple[Floats, NDArray[np.float32]]:
    """Extrema of one octave, in its pixels, and the (H/2, W/2) image of the next."""
    height, width = source.shape
    half = np.empty(((height + 1) // 2, (width + 1) // 2), np.float32)

    # Strips of equal, even height, because every second row goes to the next octave.
    rows = 2 * int(np.ceil(height / np.ceil(height / most) / 2))

    def search(start: int) -> Floats:
        return _search_strip(source, start, min(start + rows, height), floor, half)

    return np.concatenate(map_threads(search, range(0, height, rows))), half


def _search_strip(
    source: Level, start: int, stop: int, floor: float, half: NDArray[np.float32]
) -> Floats:
    """Extrema in the rows ``start`` to ``stop``; also fills these rows of ``half``."""
    before = (_CAMERA_SIGMA if source.dtype == np.uint8 else SIGMA, *_SIGMAS[:-1])
    steps = [float(np.sqrt(max(b**2 - a**2, 0))) for a, b in zip(before, _SIGMAS, strict=True)]
    radii = [int(np.ceil(4 * step)) for step in steps]
    margin = _REACH + sum(radii)
    top, bottom = max(start - margin, 0), min(stop + margin, len(source))
    smooth = source[top:bottom].astype(np.float32)
    # A response is computed in its slot and the two after it.
    responses = np.empty((len(_SIGMAS) + 2, *smooth.shape), np.float32)
    for k, (step, radius, sigma) in enumerate(zip(steps, radii, _SIGMAS, strict=True)):
        if step:
            side = 2 * radius + 1
            smooth = np.asarray(cv2.GaussianBlur(smooth, (side, side), step), np.float32)
        if k == SCALES:
            half[start // 2 : (stop + 1) // 2] = smooth[start - top : stop - top : 2, ::2]
        respond(smooth, sigma, responses[k : k + 3])
    responses = responses[: len(_SIGMAS)]
    rows = max(start, BORDER) - top, min(stop, len(source) - BORDER) - top
    found = refine(responses, _extrema(responses, floor, *rows))
    found = found[np.abs(found[:, 3]) >= floor]
    k, y, x, response = found.T
    return np.column_stack([x, y + top, SIGMA * STEP**k, response])


def _extrema(responses: NDArray[np.float32], floor: float, first: int, last: int) -> Indices:
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


def refine(values: NDArray[np.float32], cells: Indices) -> Floats:
    """Extrema of quadratics fitted to the 3 x 3 x 3 samples around each cell.

    ``values`` are (K, H, W), ``cells`` (N, 3) indices k, y, x, none on the border. A fit whose
    extremum lies nearer to a neighbour is repeated there. Cells on an edge, or whose extremum stays
    out of reach, are dropped: (M, 4) k, y, x and value are left.
    """
    cells = cells.copy()
    last = np.array(values.shape) - 2
    moving = np.arange(len(cells))
    for _ in range(_ROUNDS):
        offset = fit(neighbourhood(values, cells[moving]))[0]
        move = np.where(np.abs(offset) > _MOVE, np.sign(offset), 0).astype(np.intp)
        target = np.clip(cells[moving] + move, 1, last)
        moved = (target != cells[moving]).any(1)
        cells[moving] = target
        moving = moving[moved]
        if not len(moving):
            break
    cells, offset, peak = peaks(values, cells)
    near = (np.abs(offset) <= _FARTHEST).all(1)
    return np.column_stack([cells + offset, peak])[near]


def peaks(values: NDArray[np.float32], cells: Indices) -> tuple[Indices, Floats, Floats]:
    """Different cells that are not on an edge, the offsets (N, 3) of their extrema, the values."""
    order = np.unique(np.ravel_multi_index(tuple(cells.T), values.shape))
    cells = np.column_stack(np.unravel_index(order, values.shape))
    cube = neighbourhood(values, cells)
    offset, slope, hessian = fit(cube)
    peak = cube[:, 1, 1, 1] + 0.5 * (slope * offset).sum(1)
    yy, xx, xy = hessian[:, 1], hessian[:, 2], hessian[:, 5]
    det = xx * yy - xy * xy
    good = (det > 0) & ((xx + yy) ** 2 * EDGE_RATIO < (EDGE_RATIO + 1) ** 2 * det)
    return cells[good], offset[good], peak[good]


def neighbourhood(values: NDArray[np.float32], cells: Indices) -> Floats:
    """(N, 3, 3, 3) samples around each of (N, 3) cells."""
    _, height, width = values.shape
    step = np.arange(-1, 2)
    around = (step[:, None, None] * height + step[:, None]) * width + step
    centre = (cells[:, 0] * height + cells[:, 1]) * width + cells[:, 2]
    samples = values.reshape(-1)[centre[:, None, None, None] + around]
    return np.asarray(samples, np.float64)


def fit(cube: Floats) -> tuple[Floats, Floats, Floats]:
    """Extremum (N, 3), slope (N, 3) and Hessian (N, 6) of cubes, in the order k, y, x.

    The Hessian's columns are kk, yy, xx, ky, kx, yx.
    """
    flat = cube.reshape(len(cube), 27)
    centre = flat[:, 13]
    slope = np.empty((len(cube), 3))
    hessian = np.empty((len(cube), 6))
    for i, step in enumerate(_STRIDES):
        before, after = flat[:, 13 - step], flat[:, 13 + step]
        slope[:, i] = (after - before) / 2
        hessian[:, i] = after + before - 2 * centre
    for i, (one, other) in enumerate(_PLANES, 3):
        along, across = one + other, one - other
        diagonal = flat[:, 13 + along] + flat[:, 13 - along]
        hessian[:, i] = (diagonal - flat[:, 13 + across] - flat[:, 13 - across]) / 4
    return _solve(hessian, -slope), slope, hessian


def _solve(hessian: Floats, right: Floats) -> Floats:
    """Solutions (N, 3) of symmetric systems by cofactors, infinite where there is none."""
    kk, yy, xx, ky, kx, yx = hessian.T
    p, q, r = yy * xx - yx * yx, kx * yx - ky * xx, ky * yx - kx * yy
    s, t, u = kk * xx - kx * kx, kx * ky - kk * yx, kk * yy - ky * ky
    a, b, c = right.T
    numerator = np.stack([p * a + q * b + r * c, q * a + s * b + t * c, r * a + t * b + u * c], 1)
    det = kk * p + ky * q + kx * r
    out = np.full_like(right, np.inf)
    np.divide(numerator, det[:, None], out=out, where=det[:, None] != 0)
    return out
