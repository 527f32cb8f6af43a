"""Nearest neighbours between two sets of descriptors, and which of them to trust."""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hardnet.matching import approximate
from hardnet.matching.distances import CHUNK, Rows, two_nearest, two_nearest_and_back
from hardnet.matching.fginn import Places, far_second, other_nearest

Neighbours = Literal["exact", "flann", "faiss"]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test.

RootSIFT on images 1 to 3 and 1 to 5 of Oxford's five sequences, 1500 keypoints: 0.8 keeps 2707
correct matches and 90% of what it keeps is correct; 0.9: 3057 and 78%; 1 (off): 3309 and 54%.
MAGSAC++ does not need the 90%, so 0.9 takes the larger number."""

_MORE = 8  # approximate neighbours to look for one at another place among; the rest is exact


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

    Args:
        a: (N, D) descriptors, float vectors or packed bits.
        b: (M, D) descriptors of the same kind.
        ratio: keep a match if its distance is below ``ratio`` times the distance to the second
            nearest neighbour in b (Lowe's test); 1 keeps all but exact ties.
        mutual: keep a match only if it is also the nearest one seen from b.
        chunk: how many distances to hold at once.
        symmetric: the ratio test must hold seen from b, too: among the rows of a.
        fginn: places of the descriptors, if the second neighbour has to be at another place.
        neighbours: how they are searched; "flann" and "faiss" may miss some.

    Returns:
        (K, 2) index pairs and (K,) scores, best first: one minus the ratio of the distances (of the
        two ratios the worse, if symmetric), so 0 is ambiguous and 1 is unique. Without a second
        neighbour, as with a single descriptor in b, the score is 1.
    """
    if not len(a) or not len(b):
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    index, distances, rows = _nearest(
        a, b, mutual, chunk, neighbours, 2 if fginn is None else _MORE
    )
    index, distances = index[rows], distances[rows]
    nearest, first = distances[:, 0], index[:, 0]
    if fginn is None:
        second = distances[:, 1]
    else:
        second = far_second(a[rows], b, index, distances, fginn.xy_b, fginn.pixels)
    keep = np.flatnonzero(nearest < ratio * second)
    rows, first, nearest = rows[keep], first[keep], nearest[keep]
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
    """Neighbours (N, K >= 2) of all rows of a, their distances, and which rows to go on with."""
    everyone = np.arange(len(a))
    if neighbours == "exact":
        if not mutual:
            return *two_nearest(a, b, chunk), everyone
        index, distances, back = two_nearest_and_back(a, b, chunk)
        return index, distances, np.flatnonzero(back[index[:, 0]] == everyone)
    index, distances = approximate.nearest(a, b, count, neighbours)
    if len(b) == 1:  # no second neighbour, as in exact search
        index = np.repeat(index, 2, 1)
        distances = np.insert(distances, 1, np.inf, 1)
    if not mutual:
        return index, distances, everyone
    seen, place = np.unique(index[:, 0], return_inverse=True)
    back = approximate.nearest(b[seen], a, 1, neighbours)[0][:, 0]
    return index, distances, np.flatnonzero(back[place] == everyone)
