"""Exact nearest neighbours between two sets of descriptors, and which of them to trust."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.matching.distances import CHUNK, Rows, two_nearest_and_back

Neighbours = Literal["exact", "flann", "faiss"]

RATIO = 0.9
"""Default of the ratio test, on Euclidean distances, together with the mutual test.

RootSIFT on images 1 to 3 and 1 to 5 of Oxford's five sequences, 1500 keypoints: 0.8 keeps 2707
correct matches and 90% of what it keeps is correct; 0.9: 3057 and 78%; 1 (off): 3309 and 54%.
MAGSAC++ does not need the 90%, so 0.9 takes the larger number."""


def match_descriptors(
    a: Rows, b: Rows, ratio: float = RATIO, mutual: bool = True, chunk: int = CHUNK
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """Nearest neighbours that are mutual and clearly nearer than the second nearest.

    Args:
        a: (N, D) descriptors, float vectors or packed bits.
        b: (M, D) descriptors of the same kind.
        ratio: keep a match if its distance is below ``ratio`` times the distance to the second
            nearest neighbour in b (Lowe's test); 1 keeps all but exact ties.
        mutual: keep a match only if it is also the nearest one seen from b.
        chunk: how many distances to hold at once.

    Returns:
        (K, 2) index pairs and (K,) scores, best first: one minus the ratio of the distances, so 0
        is ambiguous and 1 is unique. With a single descriptor in b there is no second neighbour,
        and the score is 1.
    """
    if not len(a) or not len(b):
        return np.zeros((0, 2), np.intp), np.zeros(0, np.float32)
    index, distances, back = two_nearest_and_back(a, b, chunk)
    first = index[:, 0]
    keep = distances[:, 0] < ratio * distances[:, 1]
    if mutual:
        keep &= back[first] == np.arange(len(a))
    rows = np.flatnonzero(keep)
    scores = 1 - distances[rows, 0] / distances[rows, 1]
    order = np.argsort(-scores, kind="stable")
    indices = np.stack([rows, first[rows]], 1)
    return indices[order], scores[order].astype(np.float32)
