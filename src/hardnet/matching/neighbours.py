"""Nearest neighbours between two sets of descriptors, and which of them to trust.

A keypoint found twice (at two scales, with two orientations) has two descriptors that look alike,
each the other's rival in the ratio test. So its second neighbour may have to be the first
geometrically inconsistent one (Mishkin et al., 2015), some pixels away from the nearest.

The type of an array is its metric: Euclidean for float vectors, Hamming for uint8 rows of packed
bits. Bits as the numbers 0 and 1 have their Hamming distance as *squared* Euclidean distance, so
one matrix product serves both.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import InputError
from hardnet.matching.geometry import Grid

Rows = NDArray[np.float32] | NDArray[np.uint8]
"""(N, D) float32 vectors, or (N, B) uint8 packed bits."""

Vectors = NDArray[np.float32]

CHUNK = 4_000_000
"""Distances held at once: 16 MB, whatever the number of descriptors."""

_COLUMNS = 16_384  # rows of b per block: unpacked, 512 bits are 2 KB
_TILE = 256, 4096  # rows and columns of a block that is searched: read several times, so in cache
_PAIRS = 65_536  # pairs whose difference is held at once
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
_ONES = _BITS.sum(1).astype(np.uint8)
_CLOSE = 1e-2  # squared distances below this share of |a|^2 + |b|^2 have lost digits to rounding
_OFFSET = 0.9  # more than this share of |b|^2 lies in the mean: take the mean away first

Neighbours = Literal["exact", "flann"]
Found = tuple[NDArray[np.intp], NDArray[np.float32]]
Places = NDArray[np.floating]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test: MAGSAC++ gains
more from the further correct matches than it loses by the false ones."""

TREES = 4
CHECKS = 128
"""FLANN: randomised kd-trees, and how many leaves are looked at for each query, as MODS does."""

_NOT_FINITE = "descriptors contain NaN, infinity, or values too large to square"
_SEED = 7
_MORE = 8  # approximate neighbours to look for one at another place among; the rest is exact
_OTHERS = CHUNK // 4  # if all keypoints are in one place, every distance has to be struck out


class FarSecond(NamedTuple):
    """Where descriptors are, and how far from the nearest neighbour the second one has to be."""

    xy_a: Places
    xy_b: Places
    pixels: float


def match_descriptors(
    a: Rows,
    b: Rows,
    ratio: float = RATIO,
    mutual: bool = True,
    chunk: int = CHUNK,
    *,
    symmetric: bool = False,
    fginn: FarSecond | None = None,
    neighbours: Neighbours = "exact",
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Nearest neighbours that are mutual and clearly nearer than the second nearest.

    The descriptors are (N, D) and (M, D); for the options see ``matches.Strategy``. Returns (K, 2)
    index pairs and (K,) scores, best first: one minus the ratio of the distances to the nearest and
    the second (if symmetric, the worse one), so 0 is ambiguous and 1, also without a rival, unique.
    """
    if not len(a) or not len(b):
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    count = 2 if fginn is None else _MORE
    index, distances, rows = _nearest(a, b, mutual, chunk, neighbours, count)
    index, distances = index[rows], distances[rows]
    second = distances[:, 1]
    if fginn is not None:
        second = far_second(a[rows], b, index, distances, fginn.xy_b, fginn.pixels)
    keep = np.flatnonzero(distances[:, 0] < ratio * second)
    rows, first, nearest = rows[keep], index[keep, 0], distances[keep, 0]
    ratios = nearest / second[keep]
    if symmetric:
        places = (None, 0.0) if fginn is None else (fginn.xy_a, fginn.pixels)
        second = other_nearest(b[first], a, rows, *places)
        keep = np.flatnonzero(nearest < ratio * second)
        rows, first = rows[keep], first[keep]
        ratios = np.maximum(ratios[keep], nearest[keep] / second[keep])
    scores = 1 - ratios
    order = np.argsort(-scores, kind="stable")
    return np.stack([rows, first], 1)[order], scores[order].astype(np.float32)


def _nearest(
    a: Rows, b: Rows, mutual: bool, chunk: int, neighbours: Neighbours, count: int
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """Neighbours (N, K >= 2) of all rows of a, their distances, and which rows to continue with."""
    everyone = np.arange(len(a))
    if neighbours == "exact":
        if not mutual:
            return *two_nearest(a, b, chunk), everyone
        index, distances, back = two_nearest_and_back(a, b, chunk)
        return index, distances, np.flatnonzero(back[index[:, 0]] == everyone)
    index, distances = approximate_nearest(a, b, count)
    if len(b) == 1:  # no second neighbour, as in exact search
        index = np.repeat(index, 2, 1)
        distances = np.insert(distances, 1, np.inf, 1)
    if not mutual:
        return index, distances, everyone
    seen, place = np.unique(index[:, 0], return_inverse=True)
    back = approximate_nearest(b[seen], a, 1)[0][:, 0]
    return index, distances, np.flatnonzero(back[place] == everyone)


def far_second(
    a: Rows,
    b: Rows,
    index: NDArray[np.intp],
    distances: NDArray[np.float32],
    xy_b: Places,
    apart: float,
) -> NDArray[np.float32]:
    """(N,) distances to the first geometrically inconsistent neighbour in b; infinite without.

    ``index`` and ``distances`` (N, K) are the nearest rows of b; the neighbour must be more than
    ``apart`` pixels from the first. The known ones usually hold it; only for rows whose known
    neighbours are all in one place the descriptors are compared again.
    """
    places = np.asarray(xy_b, np.float64)
    offset = places[index] - places[index[:, :1]]
    far = (offset**2).sum(2) > apart**2
    second: NDArray[np.float32] = distances[np.arange(len(a)), far.argmax(1)]
    rest = np.flatnonzero(~far.any(1))
    second[rest] = other_nearest(a[rest], b, index[rest, 0], places, apart)
    return second


def other_nearest(
    a: Rows,
    b: Rows,
    first: NDArray[np.intp],
    xy_b: Places | None = None,
    apart: float = 0.0,
    chunk: int = _OTHERS,
) -> NDArray[np.float32]:
    """(N,) distances of each row of a to the nearest row of b that is not its ``first``, exact.

    With the places ``xy_b`` (M, 2) of the rows of b, those up to ``apart`` pixels from the first do
    not count either. Infinite where no row of b is left.
    """
    index = np.zeros(len(a), np.intp)
    best = np.full(len(a), np.inf, np.float32)
    grid, start = Grid([], 1.0), -1
    for rows, columns, squared in squared_blocks(*centred(a, b), chunk):
        if xy_b is not None:
            if columns.start != start:
                grid, start = Grid(xy_b[columns], apart), columns.start
            squared[grid.near(xy_b[first[rows]])] = np.inf
        here = np.flatnonzero((first[rows] >= columns.start) & (first[rows] < columns.stop))
        squared[here, first[rows][here] - columns.start] = np.inf
        nearest = squared.argmin(1)
        value = squared[np.arange(len(nearest)), nearest]
        closer = value < best[rows]
        best[rows][closer] = value[closer]
        index[rows][closer] = nearest[closer] + columns.start
    distance = np.full(len(a), np.inf, np.float32)
    found = np.flatnonzero(best < np.inf)
    distance[found] = pair_distances(a[found], b[index[found]])
    return distance


def approximate_nearest(a: Rows, b: Rows, count: int) -> Found:
    """Some of the rows of b nearest to each row of a, probably the nearest: indices, distances.

    The same rows give the same neighbours, in any process and on any number of threads. Distances
    are exact; only which of the ``count`` neighbours are found is approximate. A set of no more
    rows than FLANN would check anyway is searched exactly.
    """
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        raise InputError(
            "flann does not search packed bits: match binary descriptors by exact neighbours"
        )
    _finite_squares(a)
    _finite_squares(b)
    count = min(count, len(b))
    if len(b) <= CHECKS:
        return _exact(a, b, count)
    queries, rows = (np.ascontiguousarray(part, np.float32) for part in (a, b))
    index = _flann(queries, rows, count)
    missing = np.flatnonzero((index < 0).any(1))  # too few in the cells that were searched
    if len(missing):
        index[missing] = _exact(a[missing], b, count)[0]
    return _sorted(a, b, index)


def _flann(a: NDArray[np.float32], b: NDArray[np.float32], count: int) -> NDArray[np.intp]:
    def search() -> NDArray[np.intp]:
        cv2.setRNGSeed(_SEED)
        index = cv2.flann.Index(b, {"algorithm": 1, "trees": TREES})
        return np.asarray(index.knnSearch(a, count, params={"checks": CHECKS})[0], np.intp)

    # OpenCV has one random generator per thread: in a thread of its own the seed is ours and the
    # caller's generator is left alone.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(search).result()


def _exact(a: Rows, b: Rows, count: int) -> Found:
    index = np.empty((len(a), count), np.intp)
    height = max(CHUNK // len(b), 1)
    for start in range(0, len(a), height):
        part = slice(start, start + height)
        order = np.argsort(distance_matrix(a[part], b), axis=1, kind="stable")
        index[part] = order[:, :count]
    return _sorted(a, b, index)


def _sorted(a: Rows, b: Rows, index: NDArray[np.intp]) -> Found:
    """Exact distances, nearest first; of equal ones the lowest index wins, as in exact search."""
    columns = range(index.shape[1])
    distance = np.stack([pair_distances(a, b[index[:, k]]) for k in columns], 1)
    order = np.lexsort((index, distance), axis=1)
    return np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)


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

    Returns (N, 2) indices into b and (N, 2) distances, nearest first; of equal distances the lowest
    index wins. With one row in b the second index is 0 and its distance infinite.
    """
    index, distance, _ = two_nearest_and_back(a, b, chunk, back_too=False)
    return index, distance


def two_nearest_and_back(
    a: NDArray[Any], b: NDArray[Any], chunk: int = CHUNK, back_too: bool = True
) -> tuple[NDArray[np.intp], NDArray[np.float32], NDArray[np.intp]]:
    """As :func:`two_nearest`, and in the same pass (M,) the row of a nearest to each row of b."""
    a, b = check_rows(a, b)
    if not len(b):
        raise InputError("there are no descriptors to find the nearest of")
    index = np.zeros((len(a), 2), np.intp)
    best = np.full((len(a), 2), np.inf, np.float32)
    back = np.zeros(len(b), np.intp)
    back_best = np.full(len(b), np.inf, np.float32)
    tile = _TILE[0] * min(len(b), _TILE[1])
    for rows, columns, squared in squared_blocks(*centred(a, b), min(chunk, tile), _TILE[1]):
        if back_too:
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
    """Rows of a, rows of b, and the squared Euclidean (or Hamming) distances between them.

    Columns advance only after all rows. Rounding may make a value slightly negative. The caller may
    change the block.
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


def _vectors(rows: Rows) -> NDArray[np.float32]:
    """(N, D) float32: the vectors themselves, or the bits as 0 and 1."""
    if rows.dtype == np.uint8:
        return _BITS[rows].reshape(len(rows), -1)
    return np.asarray(rows, np.float32)


def _squared(a: Vectors, b: Vectors, a_squares: Vectors, b_squares: Vectors) -> Vectors:
    """(N, D), (M, D) and their squared lengths (N,), (M,) -> (N, M) squared distances."""
    squared: Vectors = (-2 * a) @ b.T
    squared += b_squares
    squared += a_squares[:, None]
    return squared


def _squares(vectors: Rows) -> NDArray[np.float32]:
    squares: NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors)
    return squares


def _finite_squares(vectors: Rows) -> NDArray[np.float32]:
    squares = _squares(vectors)
    if not np.isfinite(squares).all():
        raise InputError(_NOT_FINITE)
    return squares
