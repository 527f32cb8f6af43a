"""Where the extremum of sampled values lies between the samples: a quadratic in x, y and scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 5
_MOVE = 0.6  # an extremum this far from its sample belongs to the next one
_FARTHEST = 1.0  # beyond its neighbours the quadratic says nothing


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
    cells = np.unique(cells, axis=0)
    cube = neighbourhood(values, cells)
    offset, slope, hessian = _fit(cube)
    peak = cube[:, 1, 1, 1] + 0.5 * (slope * offset).sum(1)
    xx, yy, xy = hessian[:, 2, 2], hessian[:, 1, 1], hessian[:, 1, 2]
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
    """Extremum (N, 3), slope (N, 3) and Hessian (N, 3, 3) in the order k, y, x."""
    centre = cube[:, 1, 1, 1]
    slope = np.empty((len(cube), 3))
    hessian = np.empty((len(cube), 3, 3))
    for i in range(3):
        # The samples along one axis, then those in the plane of two.
        line = cube.swapaxes(i + 1, 3)[:, 1, 1]
        slope[:, i] = (line[:, 2] - line[:, 0]) / 2
        hessian[:, i, i] = line[:, 2] + line[:, 0] - 2 * centre
        for j in range(i + 1, 3):
            plane = np.moveaxis(cube, (i + 1, j + 1), (2, 3))[:, 1]
            mixed = plane[:, 2, 2] + plane[:, 0, 0] - plane[:, 0, 2] - plane[:, 2, 0]
            hessian[:, i, j] = hessian[:, j, i] = mixed / 4
    return _solve(hessian, -slope), slope, hessian


def _solve(matrix: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Solutions (N, 3) of symmetric systems, infinite where there is none."""
    a, b, c = matrix[:, 0], matrix[:, 1], matrix[:, 2]
    cofactors = np.stack([np.cross(b, c), np.cross(c, a), np.cross(a, b)], 1)
    det = (a * cofactors[:, 0]).sum(1)
    numerator = np.einsum("nij,nj->ni", cofactors, right)
    out = np.full_like(right, np.inf)
    np.divide(numerator, det[:, None], out=out, where=det[:, None] != 0)
    return out
