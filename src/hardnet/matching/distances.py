"""Distances between descriptors: the type of the array is the metric.

Float vectors are compared by their Euclidean distance, of unit length or not; uint8 rows are packed
bits, compared by the number of bits that differ (Hamming distance). Bits written as the numbers 0
and 1 have their Hamming distance as *squared* Euclidean distance, so one matrix product serves
both, and for bits all sums are whole numbers and exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import InputError

Rows = NDArray[np.float32] | NDArray[np.uint8]
"""(N, D) float32 vectors, or (N, B) uint8 packed bits."""

CHUNK = 4_000_000
"""Distances held at once: 16 MB, whatever the number of descriptors."""

_COLUMNS = 16_384  # rows of b per block: unpacked, 512 bits are 2 KB
_TILE = 256, 4096  # rows and columns of a block that is searched: read several times, so in cache
_PAIRS = 65_536  # pairs whose difference is held at once
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
_ONES = _BITS.sum(1).astype(np.uint8)
_CLOSE = 1e-2  # squared distances below this share of |a|^2 + |b|^2 have lost digits to rounding
_OFFSET = 0.9  # more than this share of |b|^2 lies in the mean: take the mean away first


def pair_distances(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """Distances between the rows of a and the same rows of b: (N, D), (N, D) -> (N,)."""
    a, b = check_rows(a, b)
    if len(a) != len(b):
        raise InputError(f"pairs need as many rows on both sides, got {len(a)} and {len(b)}")
    out = np.empty(len(a), np.float32)
    for start in range(0, len(a), _PAIRS):
        part = slice(start, start + _PAIRS)
        if a.dtype == np.uint8:
            out[part] = _ONES[np.bitwise_xor(a[part], b[part])].sum(1, dtype=np.int64)
        else:
            with np.errstate(invalid="ignore", over="ignore"):  # checked below
                difference = a[part] - b[part]
            out[part] = np.sqrt(_squares(difference))
    if not np.isfinite(out).all():
        raise InputError(_NOT_FINITE)
    return out


def distance_matrix(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """All distances between the rows of a and of b: (N, D), (M, D) -> (N, M).

    Callers with many rows give them in portions.
    """
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        bits_a, bits_b = _vectors(a), _vectors(b)
        return _squared(bits_a, bits_b, _squares(bits_a), _squares(bits_b))
    a, b = centred(a, b)
    a_squares, b_squares = _finite_squares(a), _finite_squares(b)
    out = _squared(_vectors(a), _vectors(b), a_squares, b_squares)
    # |a|^2 + |b|^2 - 2ab cancels where a is close to b; these few are computed directly.
    largest = a_squares.max(initial=0) + b_squares.max(initial=0)
    near = np.flatnonzero(out < _CLOSE * largest)
    i, j = np.unravel_index(near, out.shape)
    close = out.ravel()[near] < _CLOSE * (a_squares[i] + b_squares[j])
    np.sqrt(np.maximum(out, 0, out=out), out=out)
    i, j = i[close], j[close]
    for start in range(0, len(i), _PAIRS):
        at = i[start : start + _PAIRS], j[start : start + _PAIRS]
        out[at] = pair_distances(a[at[0]], b[at[1]])
    return out


def two_nearest(
    a: NDArray[Any], b: NDArray[Any], chunk: int = CHUNK
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The two rows of b nearest to each row of a, exact; never all distances in memory.

    Args:
        a: (N, D) descriptors.
        b: (M, D) descriptors, M >= 1.
        chunk: how many distances to hold at once.

    Returns:
        (N, 2) indices into b and (N, 2) distances, nearest first; of equal distances the lowest
        index wins. With M = 1 the second index is 0 and its distance infinite.
    """
    index, distance, _ = _search(a, b, chunk, both=False)
    return index, distance


def two_nearest_and_back(
    a: NDArray[Any], b: NDArray[Any], chunk: int = CHUNK
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """As :func:`two_nearest`, and in the same pass (M,) the row of a nearest to each row of b."""
    return _search(a, b, chunk, both=True)


def _search(
    a: NDArray[Any], b: NDArray[Any], chunk: int, both: bool
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    a, b = check_rows(a, b)
    if not len(b):
        raise InputError("there are no descriptors to find the nearest of")
    index = np.zeros((len(a), 2), np.intp)
    best = np.full((len(a), 2), np.inf, np.float32)
    back = np.zeros(len(b), np.intp)
    back_best = np.full(len(b), np.inf, np.float32)
    tile = _TILE[0] * min(len(b), _TILE[1])
    for rows, columns, squared in squared_blocks(*centred(a, b), min(chunk, tile), _TILE[1]):
        if both:
            value = squared.min(0)
            # Strictly: of equal ones the earlier block wins. Where is asked only for the columns
            # that got better, fewer with every block: argmin over columns is slow, min is not.
            closer = np.flatnonzero(value < back_best[columns])
            back[columns][closer] = squared[:, closer].argmin(0) + rows.start
            back_best[columns][closer] = value[closer]
        two, values = _two_smallest(squared)
        # The earlier columns come first and the sort is stable: the lowest index wins.
        values = np.concatenate([best[rows], values], 1)
        two = np.concatenate([index[rows], two + columns.start], 1)
        order = np.argsort(values, axis=1, kind="stable")[:, :2]
        best[rows] = np.take_along_axis(values, order, 1)
        index[rows] = np.take_along_axis(two, order, 1)
    # Squared distances of blocks order well but lose digits where a is close to b.
    distance = np.stack([pair_distances(a, b[index[:, k]]) for k in (0, 1)], 1)
    if len(b) == 1:
        distance[:, 1] = np.inf
    equal = (distance[:, 1] == distance[:, 0]) & (index[:, 1] < index[:, 0])
    swap = ((distance[:, 1] < distance[:, 0]) | equal)[:, None]
    index = np.where(swap, index[:, ::-1], index)
    return index, np.where(swap, distance[:, ::-1], distance), back


def _two_smallest(squared: NDArray[np.float32]) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Columns (N, 2) and values (N, 2) of the two smallest of each row; *squared* is used up."""
    index = np.zeros((len(squared), 2), np.intp)
    value = np.full((len(squared), 2), np.inf, np.float32)
    here = np.arange(len(squared))
    for k in range(2):
        index[:, k] = squared.argmin(1)
        value[:, k] = squared[here, index[:, k]]
        squared[here, index[:, k]] = np.inf
    return index, value


def squared_blocks(
    a: Rows, b: Rows, chunk: int = CHUNK, columns: int = _COLUMNS
) -> Iterator[tuple[slice, slice, NDArray[np.float32]]]:
    """The matrix of squared Euclidean (or Hamming) distances, block by block.

    Columns advance only after all rows. Rounding may make a value slightly negative.

    Yields:
        Rows of a, rows of b, and the block of values between them, which the caller may change.
    """
    if not len(a) or not len(b):
        return
    width = min(len(b), columns, chunk)
    height = max(chunk // width, 1)
    for first in range(0, len(b), width):
        across = slice(first, min(first + width, len(b)))
        right = _vectors(b[across])
        right_squares = _finite_squares(right)
        for top in range(0, len(a), height):
            rows = slice(top, min(top + height, len(a)))
            left = _vectors(a[rows])
            yield rows, across, _squared(left, right, _finite_squares(left), right_squares)


def centred(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Both minus the mean of b, where squared distances would drown in rounding otherwise.

    That is for vectors far from the origin and close to each other (1000 +- 1): their squares have
    no digits left for the differences. Unit vectors in many directions are returned as they are.
    """
    if b.dtype == np.uint8 or not len(b):
        return a, b
    mean = b.mean(0, dtype=np.float64)
    if mean @ mean > _OFFSET * _squares(b).mean(dtype=np.float64):
        centre = mean.astype(np.float32)
        return a - centre, b - centre
    return a, b


def check_rows(a: NDArray[Any], b: NDArray[Any]) -> tuple[Rows, Rows]:
    """Both as float32 vectors or both as packed bits, or a HardnetError."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise InputError(f"descriptors must be (N, D) and (M, D), got {a.shape} and {b.shape}")
    if a.dtype == np.uint8 and b.dtype == np.uint8:
        return a, b
    if np.issubdtype(a.dtype, np.floating) and np.issubdtype(b.dtype, np.floating):
        return a.astype(np.float32, copy=False), b.astype(np.float32, copy=False)
    raise InputError(
        f"cannot compare descriptors of {a.dtype} with {b.dtype}: "
        "both must be float vectors, or both uint8 packed bits"
    )


def check_finite(rows: Rows) -> None:
    """A HardnetError if there is something that cannot be compared."""
    if rows.dtype != np.uint8:
        _finite_squares(rows)


_NOT_FINITE = "descriptors contain NaN, infinity, or values too large to square"


def _vectors(rows: Rows) -> NDArray[np.float32]:
    """(N, D) float32: the vectors themselves, or the bits as 0 and 1."""
    if rows.dtype == np.uint8:
        return _BITS[rows].reshape(len(rows), -1)
    return np.asarray(rows, np.float32)


def _squared(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    a_squares: NDArray[np.float32],
    b_squares: NDArray[np.float32],
) -> NDArray[np.float32]:
    """(N, D), (M, D) and their squared lengths (N,), (M,) -> (N, M) squared distances."""
    squared: NDArray[np.float32] = (-2 * a) @ b.T
    squared += b_squares
    squared += a_squares[:, None]
    return squared


def _squares(vectors: Rows) -> NDArray[np.float32]:
    """(N, D) -> (N,) squared lengths."""
    squares: NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors)
    return squares


def _finite_squares(vectors: Rows) -> NDArray[np.float32]:
    squares = _squares(vectors)
    if not np.isfinite(squares).all():
        raise InputError(_NOT_FINITE)
    return squares
