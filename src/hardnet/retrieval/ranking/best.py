"""The best of many scores, without sorting all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.compiled import compiled


def order(
    images: NDArray[np.int64], scores: NDArray[np.float32], limit: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Images (n,) and their scores, best first, equal scores by image number; ``limit`` at most."""
    ranking = np.lexsort((images, -scores))[:limit]
    return images[ranking], scores[ranking]


@compiled
def best(scores: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """(n,) places of the ``limit`` highest scores, in no order; the first of equals; none is -inf.

    A heap whose root is the worst of those kept: of equal scores, the one that came last.
    """
    kept = np.empty(min(limit, len(scores)), np.int64)
    size = 0
    for place in range(len(scores)):
        score = scores[place]
        if score == -np.inf:
            continue
        if size < len(kept):
            child = size
            size += 1
            # Places come ascending: the newcomer is worse than any of equal score.
            while child > 0 and scores[kept[(child - 1) // 2]] >= score:
                kept[child] = kept[(child - 1) // 2]
                child = (child - 1) // 2
            kept[child] = place
        elif size > 0 and score > scores[kept[0]]:
            hole = 0
            while 2 * hole + 1 < size:
                child = 2 * hole + 1
                if child + 1 < size:
                    left, right = kept[child], kept[child + 1]
                    worse = scores[right] < scores[left]
                    worse |= scores[right] == scores[left] and right > left
                    child += worse
                if scores[kept[child]] >= score:
                    break
                kept[hole] = kept[child]
                hole = child
            kept[hole] = place
    return kept[:size]
