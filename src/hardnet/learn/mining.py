"""Classical hard-negative mining: the closest negatives of the whole training set, once per epoch.

The paper compares with it (table 2) and finds that it overfits: among the nearest of all patches
there are many that do show the same point, under another name.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import DivergedError, HardnetError, MissingExtraError

NEIGHBOURS = 12  # as in the published code; the patch itself is one of them
QUERIES = 16_384  # at a time, so that ctrl-C is answered


def mine(
    descriptors: NDArray[np.float32],
    points: NDArray[np.int64],
    seed: int,
    neighbours: int = NEIGHBOURS,
) -> NDArray[np.int64]:
    """A hard negative of each patch.

    Of the nearest ``neighbours`` of a patch those that show another point are kept, and one of
    them is drawn. Where none is left, any patch of another point is drawn. The exact search takes
    N^2 D multiplications.

    Args:
        descriptors: (N, D) of all patches of the training set.
        points: (N,) 3D point of each patch.
        seed: all that is drawn follows from it.
        neighbours: how many are looked at, the patch itself among them.

    Returns:
        (N,) index of the negative of each patch.
    """
    if len(points) == 0 or (points == points[0]).all():
        raise HardnetError("classical mining needs patches of two 3D points at least")
    if not np.isfinite(descriptors).all():
        raise DivergedError("classical mining: a descriptor is not finite; lower lr")
    rng = np.random.default_rng(seed)
    nearest = _nearest(descriptors, min(neighbours, len(descriptors)))
    other = points[nearest] != points[:, None]
    # The largest of independent uniform numbers is at each place equally often.
    chosen = np.where(other, rng.random(nearest.shape, dtype=np.float32), -1).argmax(axis=1)
    negative = np.take_along_axis(nearest, chosen[:, None], axis=1)[:, 0]
    without = np.flatnonzero(~other.any(axis=1))
    negative[without] = _of_another_point(points, without, rng)
    return negative


def _nearest(descriptors: NDArray[np.float32], neighbours: int) -> NDArray[np.int64]:
    """(N, neighbours) indices of the nearest descriptors, nearest first."""
    try:
        import faiss
    except ImportError:
        raise MissingExtraError("faiss-cpu", "train") from None
    data = np.ascontiguousarray(descriptors, dtype=np.float32)
    index: Any = faiss.IndexFlatL2(data.shape[1])
    index.add(data)
    found = np.empty((len(data), neighbours), np.int64)
    for start in range(0, len(data), QUERIES):
        part = slice(start, start + QUERIES)
        found[part] = index.search(data[part], neighbours)[1]
    return found


def _of_another_point(
    points: NDArray[np.int64], patches: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """For each of ``patches`` any patch that does not show its point, all equally likely."""
    order = np.argsort(points, kind="stable")
    ordered = points[order]
    first = np.searchsorted(ordered, points[patches], side="left")
    same = np.searchsorted(ordered, points[patches], side="right") - first
    place = rng.integers(len(points) - same)
    return order[np.where(place < first, place, place + same)]
