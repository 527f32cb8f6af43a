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
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import InputError
from hardnet.matching.geometry import Grid
from hardnet.threads import interrupts_held

Rows = NDArray[np.float32] | NDArray[np.uint8]
"""(N, D) float32 vectors, or (N, B) uint8 packed bits."""

Vectors = NDArray[np.float32]

CHUNK = 4_000_000
"""Distances held at once: 16 MB, whatever the number of descriptors."""

MANY = range(8_000_000, 4_000_000_000)
"""Distances of which integers tell first which ones matter; more would take too much memory."""

_COLUMNS = 16_384  # rows of b per block: unpacked, 512 bits are 2 KB
_TILE = 256, 4096  # rows and columns of a block that is searched: read several times, so in cache
_PAIRS = 65_536  # pairs whose difference is held at once
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
_ONES = _BITS.sum(1).astype(np.uint8)
_CLOSE = 1e-2  # squared distances below this share of |a|^2 + |b|^2 have lost digits to rounding
_OFFSET = 0.9  # more than this share of |b|^2 lies in the mean: take the mean away first

Neighbours = Literal["exact", "flann"]
Found = tuple[NDArray[np.intp], NDArray[np.float32]]
Candidates = tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]
Places = NDArray[np.floating]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test: MAGSAC++ gains
more from the further correct matches than it loses by the false ones."""

_NOT_FINITE = "descriptors contain NaN, infinity, or values too large to square"
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
    if neighbours == "exact" and fginn is None and len(a) * len(b) in MANY:
        rows, index, distances = _clear_nearest(a, b, ratio, mutual, chunk)
    else:
        count = 2 if fginn is None else _MORE
        rows, index, distances = _nearest(a, b, mutual, chunk, neighbours, count)
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
) -> Candidates:
    """Rows (K,) of a, their neighbours (K, 2 or more) and the distances to these."""
    everyone = np.arange(len(a))
    if neighbours == "exact":
        if not mutual:
            return everyone, *two_nearest(a, b, chunk)
        index, distances, back = two_nearest_and_back(a, b, chunk)
        rows = np.flatnonzero(back[index[:, 0]] == everyone)
        return rows, index[rows], distances[rows]
    from hardnet.matching.flann import approximate_nearest  # which needs exact distances from here

    index, distances = approximate_nearest(a, b, count)
    if len(b) == 1:  # no second neighbour, as in exact search
        index = np.repeat(index, 2, 1)
        distances = np.insert(distances, 1, np.inf, 1)
    if not mutual:
        return everyone, index, distances
    seen, place = np.unique(index[:, 0], return_inverse=True)
    back = approximate_nearest(b[seen], a, 1)[0][:, 0]
    rows = np.flatnonzero(back[place] == everyone)
    return rows, index[rows], distances[rows]


def _clear_nearest(a: Rows, b: Rows, ratio: float, mutual: bool, chunk: int) -> Candidates:
    """As exact :func:`_nearest`, less rows that fail the ratio test, for large sets.

    Products of integers say for which rows of a, and where in b, exact distances are needed.
    """
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        return _nearest(a, b, mutual, chunk, "exact", 2)
    # Here: to import onnxruntime takes as long as to match a few descriptors.
    with interrupts_held():
        from hardnet.matching.integers import GROUP, largest_products

    left, right = _vectors(a), _vectors(b)
    largest = largest_products(left, right)
    if largest is None:
        return _nearest(a, b, mutual, chunk, "exact", 2)
    rows, promising = largest.candidates(ratio)
    index = np.zeros((len(rows), 2), np.intp)
    best = np.full((len(rows), 2), np.inf, np.float32)
    for group, start in enumerate(range(0, len(b), GROUP)):
        here = np.flatnonzero(promising[:, group])
        squared = _squared_distances(left[rows[here]], right[start : start + GROUP])
        two, values = _two_smallest(squared)
        index[here], best[here] = _better(index[here], best[here], two + start, values)
    index, distances = _exact_two(a[rows], b, index)
    keep = np.flatnonzero(distances[:, 0] < ratio * distances[:, 1])
    rows, index, distances = rows[keep], index[keep], distances[keep]
    if not mutual:
        return rows, index, distances
    first = index[:, 0]
    promising = largest.places_back(first)
    back, nearest = np.zeros(len(rows), np.intp), np.full(len(rows), np.inf, np.float32)
    for group, start in enumerate(range(0, len(a), GROUP)):
        here = np.flatnonzero(promising[:, group])
        squared = _squared_distances(right[first[here]], left[start : start + GROUP])
        column = squared.argmin(1)
        value = squared[np.arange(len(here)), column]
        closer = np.flatnonzero(value < nearest[here])
        back[here[closer]], nearest[here[closer]] = column[closer] + start, value[closer]
    keep = np.flatnonzero(back == rows)
    return rows[keep], index[keep], distances[keep]


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
        return _squared_distances(_vectors(a), _vectors(b))
    a, b = centred(a, b)
    a_squares, b_squares = finite_squares(a), finite_squares(b)
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
        two += columns.start
        index[rows], best[rows] = _better(index[rows], best[rows], two, values)
    return *_exact_two(a, b, index), back


def _better(
    index: NDArray[np.intp],
    value: NDArray[np.float32],
    later: NDArray[np.intp],
    later_value: NDArray[np.float32],
) -> Found:
    """The two smallest of two and two values of each row; of equal ones the earlier."""
    value = np.concatenate([value, later_value], 1)
    index = np.concatenate([index, later], 1)
    order = np.argsort(value, axis=1, kind="stable")[:, :2]
    return np.take_along_axis(index, order, 1), np.take_along_axis(value, order, 1)


def _exact_two(a: Rows, b: Rows, index: NDArray[np.intp]) -> Found:
    """The two neighbours of each row of a and their distances, nearest first.

    Squared distances of blocks order well but lose digits where a is close to b.
    """
    distance = np.stack([pair_distances(a, b[index[:, k]]) for k in (0, 1)], 1)
    if len(b) == 1:
        distance[:, 1] = np.inf
    equal = (distance[:, 1] == distance[:, 0]) & (index[:, 1] < index[:, 0])
    swap = ((distance[:, 1] < distance[:, 0]) | equal)[:, None]
    return np.where(swap, index[:, ::-1], index), np.where(swap, distance[:, ::-1], distance)


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
        right_squares = finite_squares(right)
        for top in range(0, len(a), height):
            rows = slice(top, min(top + height, len(a)))
            left = _vectors(a[rows])
            yield rows, across, _squared(left, right, finite_squares(left), right_squares)


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


def _squared_distances(a: Vectors, b: Vectors) -> Vectors:
    return _squared(a, b, _squares(a), _squares(b))


def _squares(vectors: Rows) -> NDArray[np.float32]:
    squares: NDArray[np.float32] = np.einsum("ij,ij->i", vectors, vectors)
    return squares


def finite_squares(vectors: Rows) -> NDArray[np.float32]:
    """(N,) squared lengths; a HardnetError if a vector has none."""
    squares = _squares(vectors)
    if not np.isfinite(squares).all():
        raise InputError(_NOT_FINITE)
    return squares
