"""What a search finds."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from hardnet.images import Pixels, write_image

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
        inliers: correspondences that agree with ``transform``; 0 if none was found.
        verified: there are so many inliers that the photo shows what the query shows; a few agree
            by chance.
        transform: (2, 3) affine map from pixels of the query to pixels of the photo, or None.
        region: (4, 2) corners of the query's box (or of the whole query) in the photo, or None.
        view: which image of the query the transform starts from.
    """

    path: str
    image: int
    score: float
    inliers: int = 0
    verified: bool = False
    transform: NDArray[np.float64] | None = None
    region: NDArray[np.float64] | None = None
    view: int = 0


@dataclass(frozen=True, eq=False)
class QueryImage:
    """One image that was searched for.

    Attributes:
        size: (width, height).
        features: how many of its features were used.
        box: the region that was asked for, or None for all of it.
        path: the file, or None if it was an array.
        pixels: the image if it was an array, None if it can be read from ``path``.
    """

    size: tuple[int, int]
    features: int
    box: Box | None = None
    path: str | None = None
    pixels: Pixels | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Results(Sequence[Hit]):
    """The hits of one search, best first: a list that also knows how it came about.

    Attributes:
        hits: best first.
        seconds: time per stage, in the order of the stages.
        missing: parts of the index that did not answer; their photos cannot be among the hits.
        query: the images that were searched for.
    """

    hits: list[Hit]
    seconds: dict[str, float] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    query: tuple[QueryImage, ...] = ()

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

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the query and the hits, verified regions outlined."""
        from hardnet.retrieval.contact_sheet import contact_sheet

        write_image(path, contact_sheet(self))


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
