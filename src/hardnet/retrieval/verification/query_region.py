"""Which features of a verified image lie in what the query asks for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames

if TYPE_CHECKING:
    from hardnet.retrieval.ranking.query import Query
    from hardnet.retrieval.ranking.shard import ImageFeatures
    from hardnet.retrieval.verification.spatial import Verified


def in_query_region(query: Query, verified: Verified, frames: Frames) -> NDArray[np.bool_]:
    """Features of an image that the inverse of its transform puts inside the query's region.

    The region is the box of the view that the transform starts from, or all of that view.

    Args:
        query: with the boxes and sizes of its views.
        verified: what geometry says about the image.
        frames: (N, 2, 3) of the image.

    Returns:
        (N,) bool; all False for an image that is not verified.
    """
    if verified.transform is None:
        return np.zeros(len(frames), np.bool_)
    box, size = query.boxes[verified.view], query.view_sizes[verified.view]
    # The border of an image runs half a pixel outside the centres of its outermost pixels.
    x, y, width, height = box if box is not None else (-0.5, -0.5, *size)
    linear, shift = verified.transform[:, :2], verified.transform[:, 2]
    back = np.linalg.solve(linear, (frames[:, :, 2] - shift).T)
    inside: NDArray[np.bool_] = (
        (back[0] > x) & (back[0] < x + width) & (back[1] > y) & (back[1] < y + height)
    )
    return inside


def features_in_region(query: Query, verified: Verified, image: ImageFeatures) -> ImageFeatures:
    """The features of an image that :func:`in_query_region` keeps."""
    keep = in_query_region(query, verified, image.frames)
    return replace(
        image,
        words=image.words[keep],
        signatures=image.signatures[keep],
        frames=image.frames[keep],
    )
