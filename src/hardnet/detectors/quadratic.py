"""Where the extremum of sampled values lies between the samples: a quadratic in x, y and scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 5
_MOVE = 0.6  # an extremum this far from its sample belongs to the next one
_FARTHEST = 1.0  # beyond its neighbours the quadratic says nothing

_STRIDES = (9, 3, 1)  # of k, y and x in a flat cube of 27 samples
_PLANES = ((9, 3), (9, 1), (3, 1))


def refine(
    values: NDArray[np.float32], cells: NDArray[np.intp], edge_ratio: float
) -> NDArray[np.float64]:
    """Extrema of quadratics fitted to the 3 x 3 x 3 samples around each cell.

    A fit whose extremum lies nearer to a neighbour is repeated there. Cells that end at the same
    sample, that lie on an edge or whose extremum stays out of reach are dropped.

    Args:
        values: (K, H, W) samples.
        cells: (N, 3) indices k, y, x, none on the border of ``values``.
        edge_ratio: largest ratio of the two curvatures in x and y.

    Returns:
        (M, 4) k, y, x and the value of each extremum, M <= N.
    """
    cells = cells.copy()
    last = np.array(values.shape) - 2
    moving = np.arange(len(cells))
    for _ in range(_ROUNDS):
        offset = _fit(neighbourhood(values, cells[moving]))[0]
        move = np.where(np.abs(offset) > _MOVE, np.sign(offset), 0).astype(np.intp)
        target = np.clip(cells[moving] + move, 1, last)
        moved = (target != cells[moving]).any(1)
        cells[moving] = target
        moving = moving[moved]
        if not len(moving):
            break
    order = np.unique(np.ravel_multi_index(tuple(cells.T), values.shape))
    cells = np.column_stack(np.unravel_index(order, values.shape))
    cube = neighbourhood(values, cells)
    offset, slope, hessian = _fit(cube)
    peak = cube[:, 1, 1, 1] + 0.5 * (slope * offset).sum(1)
    yy, xx, xy = hessian[:, 1], hessian[:, 2], hessian[:, 5]
    det = xx * yy - xy * xy
    good = (det > 0) & ((xx + yy) ** 2 * edge_ratio < (edge_ratio + 1) ** 2 * det)
    good &= (np.abs(offset) <= _FARTHEST).all(1)
    return np.column_stack([cells + offset, peak])[good]


def neighbourhood(values: NDArray[np.float32], cells: NDArray[np.intp]) -> NDArray[np.float64]:
    """(N, 3, 3, 3) samples around each of (N, 3) cells."""
    _, height, width = values.shape
    step = np.arange(-1, 2)
    around = (step[:, None, None] * height + step[:, None]) * width + step
    centre = (cells[:, 0] * height + cells[:, 1]) * width + cells[:, 2]
    samples = values.reshape(-1)[centre[:, None, None, None] + around]
    return np.asarray(samples, np.float64)


def _fit(
    cube: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
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


def _solve(hessian: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
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
