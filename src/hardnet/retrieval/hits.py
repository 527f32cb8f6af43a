"""What a search finds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

Box = tuple[float, float, float, float]
"""x, y, width, height in pixels; the centre of the top-left pixel is (0, 0)."""


@dataclass(frozen=True, eq=False)
class Hit:
    """One photo that was found.

    Attributes:
        path: the photo, as the index names it; :class:`~hardnet.retrieval.index.Index` gives a
            path that can be opened from here.
        image: its number in the snapshot that was searched.
        score: similarity by visual words; comparable within one search only.
        inliers: correspondences that agree with ``transform``; 0 if it was not verified.
        transform: (2, 3) affine map from pixels of the query to pixels of the photo, or None.
        region: (4, 2) corners of the query's box (or of the whole query) in the photo, or None.
        view: which image of the query the transform starts from.
    """

    path: str
    image: int
    score: float
    inliers: int = 0
    transform: NDArray[np.float64] | None = None
    region: NDArray[np.float64] | None = None
    view: int = 0


@dataclass(frozen=True, eq=False)
class Results(Sequence[Hit]):
    """The hits of one search, best first: a list that also knows how it came about.

    Attributes:
        hits: best first.
        seconds: time per stage, in the order of the stages.
        missing: parts of the index that did not answer; their photos cannot be among the hits.
        features: how many features the query has.
    """

    hits: list[Hit]
    seconds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    features: int = 0

    @overload
    def __getitem__(self, at: int) -> Hit: ...

    @overload
    def __getitem__(self, at: slice) -> list[Hit]: ...

    def __getitem__(self, at: int | slice) -> Hit | list[Hit]:
        return self.hits[at]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)


def region_of(
    box: Box | None, size: tuple[int, int], transform: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Corners of a box of the query, or of its whole image, in the photo that was found.

    Args:
        box: x, y, width, height; None for the whole image.
        size: (width, height) of the query image.
        transform: (2, 3) from the query to the photo.

    Returns:
        (4, 2), clockwise from the top left one.
    """
    # The border of an image runs half a pixel outside the centres of its outermost pixels.
    x, y, width, height = box if box is not None else (-0.5, -0.5, *size)
    corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
    moved: NDArray[np.float64] = corners @ transform[:, :2].T + transform[:, 2]
    return moved
