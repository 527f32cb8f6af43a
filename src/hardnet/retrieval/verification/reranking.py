"""The order of a ranking once geometry has spoken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from hardnet.retrieval.verification.spatial import Verified


def rerank(
    images: NDArray[np.int64], scores: NDArray[np.float32], verified: Sequence[Verified]
) -> NDArray[np.int64]:
    """The order in which ranked images are shown once some of them are verified.

    Verified images come first, those with more inliers before those with fewer; at equal inliers
    the score decides, then the image number. The others follow in the order they had.

    Args:
        images: (n,) numbers, best first.
        scores: (n,) their scores.
        verified: the answers for some of the images, in any order.

    Returns:
        (n,) positions in ``images``.
    """
    inliers = {v.image: v.inliers for v in verified if v.transform is not None}
    counts = np.array([inliers.get(image, 0) for image in images.tolist()], np.int64)
    place = np.arange(len(images))
    moved = counts > 0
    return np.lexsort((np.where(moved, images, place), np.where(moved, -scores, 0), -counts))
