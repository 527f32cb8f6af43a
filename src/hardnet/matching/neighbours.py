"""Nearest neighbours between two sets of descriptors, and which of them to trust.

A keypoint found twice (at two scales, with two orientations) has two descriptors that look alike,
each the other's rival in the ratio test. So its second neighbour may have to be the first
geometrically inconsistent one (Mishkin et al., 2015), some pixels away from the nearest.

The type of an array is its metric: Euclidean for float vectors, Hamming for uint8 packed bits. As
numbers 0 and 1, bits have their Hamming distance as *squared* Euclidean distance.
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
from hardnet.threads import interrupts_held

Rows = NDArray[np.float32] | NDArray[np.uint8]
"""(N, D) float32 vectors, or (N, B) uint8 packed bits."""

Vectors = NDArray[np.float32]
Indices = NDArray[np.intp]
Places = NDArray[np.floating]
Neighbours = Literal["exact", "flann"]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test: MAGSAC++ gains
more from the further correct matches than it loses by the false ones."""

CHUNK = 4_000_000  # distances held at once: 16 MB, whatever the number of descriptors
MANY = range(8_000_000, 4_000_000_000)  # distances: integers first decide which ones matter
TREES, CHECKS = 4, 128  # FLANN: randomised kd-trees, and leaves visited for each query, as in MODS
_COLUMNS = 16_384  # rows of b per block: unpacked, 512 bits are 2 KB
_TILE = 256, 4096  # rows and columns of a block that is searched: read several times, so in cache
_PAIRS = 65_536  # pairs whose difference is held at once
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).astype(np.float32)
_ONES = _BITS.sum(1).astype(np.uint8)
_CLOSE = 1e-2  # squared distances below this share of |a|^2 + |b|^2 have lost digits to rounding
_OFFSET = 0.9  # more than this share of |b|^2 lies in the mean: take the mean away first
_NOT_FINITE = "descriptors contain NaN, infinity, or values too large to square"
_MORE = 8  # approximate neighbours among which one at another place is sought
_OTHERS = CHUNK // 4  # if all keypoints are in one place, every distance has to be struck out
_SEED = 7


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
    *,
    symmetric: bool = False,
    fginn: FarSecond | None = None,
    neighbours: Neighbours = "exact",
) -> tuple[Indices, Vectors]:
    """Nearest neighbours that are mutual and clearly nearer than the second nearest.

    The descriptors are (N, D) and (M, D); for the options see ``matches.Strategy``. Returns (K, 2)
    index pairs and (K,) scores, best first: one minus the ratio of the distances to the nearest and
    the second (if symmetric, the worse one), so 0 is ambiguous and 1, also without a rival, unique.
    """
    if not len(a) or not len(b):
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    if neighbours == "flann":
        rows, index, distances = _flann_nearest(a, b, mutual, 2 if fginn is None else _MORE)
    elif fginn is None and len(a) * len(b) in MANY:
        rows, index, distances = _clear_nearest(a, b, ratio, mutual)
    else:
        rows, index, distances = _exact_nearest(a, b, mutual)
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


# Each of these returns rows (K,) of a, their neighbours (K, 2 or more) and the distances to them.


def _exact_nearest(a: Rows, b: Rows, mutual: bool) -> tuple[Indices, Indices, Vectors]:
    index, distances, back = two_nearest_and_back(a, b, back_too=mutual)
    everyone = np.arange(len(a))
    rows = np.flatnonzero(back[index[:, 0]] == everyone) if mutual else everyone
    return rows, index[rows], distances[rows]


def _flann_nearest(a: Rows, b: Rows, mutual: bool, count: int) -> tuple[Indices, Indices, Vectors]:
    index, distances = approximate_nearest(a, b, count)
    if len(b) == 1:  # no second neighbour, as in exact search
        index, distances = np.repeat(index, 2, 1), np.insert(distances, 1, np.inf, 1)
    rows = np.arange(len(a))
    if mutual:
        seen, place = np.unique(index[:, 0], return_inverse=True)
        rows = np.flatnonzero(approximate_nearest(b[seen], a, 1)[0][place, 0] == rows)
    return rows, index[rows], distances[rows]


def _clear_nearest(
    a: Rows, b: Rows, ratio: float, mutual: bool
) -> tuple[Indices, Indices, Vectors]:
    """As :func:`_exact_nearest`, without rows that fail the ratio test, for large sets."""
    a, b = check_rows(a, b)
    with interrupts_held():  # here, as importing onnxruntime takes as long as matching a few
        from hardnet.matching.integers import largest_products

    products = None if a.dtype == np.uint8 else largest_products(_vectors(a), _vectors(b))
    if products is None:
        return _exact_nearest(a, b, mutual)
    rows, promising = products.candidates(ratio)
    index, distances = _ranked(a[rows], b, _nearest_in(a[rows], b, promising, 2))
    keep = np.flatnonzero(distances[:, 0] < ratio * distances[:, 1])
    if mutual:
        first = index[keep, 0]
        back = _nearest_in(b[first], a, products.places_back(first), 1)[:, 0]
        keep = keep[back == rows[keep]]
    return rows[keep], index[keep], distances[keep]


def _nearest_in(a: Rows, b: Rows, groups: NDArray[np.bool_], count: int) -> Indices:
    """(N, count) the nearest rows of b, of those in the groups (N, G) of b to look at."""
    from hardnet.matching.integers import GROUP

    index = np.zeros((len(a), count), np.intp)
    best = np.full((len(a), count), np.inf, np.float32)
    for group, start in enumerate(range(0, len(b), GROUP)):
        here = np.flatnonzero(groups[:, group])
        squared = _squared_distances(a[here], b[start : start + GROUP])
        index[here], best[here] = _better(index[here], best[here], squared, start)
    return index


def far_second(
    a: Rows, b: Rows, index: Indices, distances: Vectors, xy_b: Places, apart: float
) -> Vectors:
    """(N,) distances to the first geometrically inconsistent neighbour in b; infinite without.

    ``index`` and ``distances`` (N, K) are the nearest rows of b; the neighbour must be more than
    ``apart`` pixels from the first. Usually it is among them; descriptors are compared again only
    for rows whose known neighbours are all in one place.
    """
    places = np.asarray(xy_b, np.float64)
    far = ((places[index] - places[index[:, :1]]) ** 2).sum(2) > apart**2
    second: Vectors = distances[np.arange(len(a)), far.argmax(1)]
    rest = np.flatnonzero(~far.any(1))
    second[rest] = other_nearest(a[rest], b, index[rest, 0], places, apart)
    return second


def other_nearest(
    a: Rows,
    b: Rows,
    first: Indices,
    xy_b: Places | None = None,
    apart: float = 0.0,
    chunk: int = _OTHERS,
) -> Vectors:
    """(N,) distances of each row of a to the nearest row of b that is not its ``first``, exact.

    With the places ``xy_b`` (M, 2) of the rows of b, those up to ``apart`` pixels from the first do
    not count either. Infinite where no row of b is left.
    """
    index = np.zeros(len(a), np.intp)
    best = np.full(len(a), np.inf, np.float32)
    grid, start = Grid([], 1.0), -1
    for rows, columns, squared in _squared_blocks(*_centred(a, b), chunk):
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


def approximate_nearest(a: Rows, b: Rows, count: int) -> tuple[Indices, Vectors]:
    """Probably the ``count`` rows of b nearest to each row of a, by FLANN: indices, distances.

    The same rows give the same neighbours, in any process and on any number of threads. Distances
    are exact; only which neighbours are found is approximate. A set of no more rows than FLANN
    would check anyway is searched exactly.
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
        return _ranked(a, b, _nearest_of_all(a, b, count))
    queries, trained = (np.ascontiguousarray(part, np.float32) for part in (a, b))

    def search() -> Indices:
        cv2.setRNGSeed(_SEED)
        trees = cv2.flann.Index(trained, {"algorithm": 1, "trees": TREES})
        return np.asarray(trees.knnSearch(queries, count, params={"checks": CHECKS})[0], np.intp)

    # OpenCV has one random generator per thread: here the seed is ours, and that of the caller's
    # thread is left alone.
    with ThreadPoolExecutor(1) as thread:
        index = thread.submit(search).result()
    missing = np.flatnonzero((index < 0).any(1))  # too few in the leaves that were visited
    index[missing] = _nearest_of_all(a[missing], b, count)
    return _ranked(a, b, index)


def _nearest_of_all(a: Rows, b: Rows, count: int) -> Indices:
    index = np.empty((len(a), count), np.intp)
    height = max(CHUNK // len(b), 1)
    for start in range(0, len(a), height):
        part = slice(start, start + height)
        order = np.argsort(distance_matrix(a[part], b), axis=1, kind="stable")
        index[part] = order[:, :count]
    return index


def pair_distances(a: NDArray[Any], b: NDArray[Any]) -> Vectors:
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
                out[part] = np.sqrt(_squares(a[part] - b[part]))
    if not np.isfinite(out).all():
        raise InputError(_NOT_FINITE)
    return out


def distance_matrix(a: NDArray[Any], b: NDArray[Any]) -> Vectors:
    """All distances between the rows of a and of b: (N, D), (M, D) -> (N, M)."""
    a, b = check_rows(a, b)
    if a.dtype == np.uint8:
        return _squared_distances(_vectors(a), _vectors(b))
    a, b = _centred(a, b)
    a_squares, b_squares = _finite_squares(a), _finite_squares(b)
    out = _squared_distances(a, b, a_squares, b_squares)
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


def two_nearest(a: NDArray[Any], b: NDArray[Any], chunk: int = CHUNK) -> tuple[Indices, Vectors]:
    """The two rows of b nearest to each row of a, exact; never all distances in memory.

    Returns (N, 2) indices into b and (N, 2) distances, nearest first; of equal distances the lowest
    index wins. With one row in b the second index is 0 and its distance infinite.
    """
    return two_nearest_and_back(a, b, chunk, back_too=False)[:2]


def two_nearest_and_back(
    a: NDArray[Any], b: NDArray[Any], chunk: int = CHUNK, back_too: bool = True
) -> tuple[Indices, Vectors, Indices]:
    """As :func:`two_nearest`, and in the same pass (M,) the row of a nearest to each row of b."""
    a, b = check_rows(a, b)
    if not len(b):
        raise InputError("there are no descriptors to find the nearest of")
    index = np.zeros((len(a), 2), np.intp)
    best = np.full((len(a), 2), np.inf, np.float32)
    back = np.zeros(len(b), np.intp)
    back_best = np.full(len(b), np.inf, np.float32)
    tile = _TILE[0] * min(len(b), _TILE[1])
    for rows, columns, squared in _squared_blocks(*_centred(a, b), min(chunk, tile), _TILE[1]):
        if back_too:
            value = squared.min(0)
            # Of equal ones the earlier block wins. Argmin over columns is slow: not for all.
            closer = np.flatnonzero(value < back_best[columns])
            back[columns][closer] = squared[:, closer].argmin(0) + rows.start
            back_best[columns][closer] = value[closer]
        index[rows], best[rows] = _better(index[rows], best[rows], squared, columns.start)
    return *_ranked(a, b, index), back


def _better(
    index: Indices, value: Vectors, squared: Vectors, start: int
) -> tuple[Indices, Vectors]:
    """The C smallest of C values (N, C) and a block (N, K), which is used up; ties: the first.

    ``start`` is the index of the block's first column.
    """
    here, count = np.arange(len(squared)), index.shape[1]
    for _ in range(count):
        column = squared.argmin(1)
        value = np.column_stack([value, squared[here, column]])
        index = np.column_stack([index, column + start])
        squared[here, column] = np.inf
    order = np.argsort(value, axis=1, kind="stable")[:, :count]
    return np.take_along_axis(index, order, 1), np.take_along_axis(value, order, 1)


def _ranked(a: Rows, b: Rows, index: Indices) -> tuple[Indices, Vectors]:
    """Neighbours (N, K) and their exact distances, nearest first; of equal ones the lowest index.

    Squared distances of blocks order well but lose digits where a is close to b.
    """
    distance = np.stack([pair_distances(a, b[column]) for column in index.T], 1)
    if len(b) == 1:
        distance[:, 1:] = np.inf
    order = np.lexsort((index, distance), axis=1)
    return np.take_along_axis(index, order, 1), np.take_along_axis(distance, order, 1)


def _squared_blocks(
    a: Rows, b: Rows, chunk: int, columns: int = _COLUMNS
) -> Iterator[tuple[slice, slice, Vectors]]:
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
            yield (
                rows,
                across,
                _squared_distances(left, right, _finite_squares(left), right_squares),
            )


def _centred(a: Rows, b: Rows) -> tuple[Rows, Rows]:
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


def _vectors(rows: Rows) -> Vectors:
    if rows.dtype == np.uint8:
        return _BITS[rows].reshape(len(rows), -1)
    return np.asarray(rows, np.float32)


def _squared_distances(
    a: Rows, b: Rows, a_squares: Vectors | None = None, b_squares: Vectors | None = None
) -> Vectors:
    """Vectors (N, D), (M, D), and their squared lengths if known -> (N, M)."""
    squared = np.asarray((-2 * a) @ b.T, np.float32)
    squared += _squares(b) if b_squares is None else b_squares
    squared += (_squares(a) if a_squares is None else a_squares)[:, None]
    return squared


def _squares(vectors: Rows) -> Vectors:
    return np.asarray(np.einsum("ij,ij->i", vectors, vectors))


def _finite_squares(vectors: Rows) -> Vectors:
    squares = _squares(vectors)
    if not np.isfinite(squares).all():
        raise InputError(_NOT_FINITE)
    return squares
