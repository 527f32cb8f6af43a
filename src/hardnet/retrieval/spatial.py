"""Spatial verification: do the features that agree also lie where one affine map puts them?

Every correspondence of a query feature with a feature of the image has two frames, and the map
from the one to the other is a hypothesis: one correspondence is enough, so that all hypotheses are
tried and nothing is left to chance (Philbin et al. 2007). The best one is refined by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray


if TYPE_CHECKING:
    from hardnet.retrieval.query import Query

PUBLISHED_SIZE = 1024
"""Longer side, in pixels, of the photos for which the published threshold is meant."""

PIECE_IMAGES = 16
"""So many images are one thread's piece of work, at least."""


@dataclass(frozen=True)
class Verification:
    """How images are verified; the values are those of the published implementation.

    Attributes:
        shortlist: so many of the best images are verified.
        pixels: an inlier's distances from where the transform puts it in the image, and from where
            the inverse puts it in the query, are at most this (root of the sum of squares). It is
            in pixels of a photo whose longer side is 1024; in each of the two images it
            shrinks and grows with the longer side.
        area_ratio: an inlier's area in the image is at most so many times larger or smaller than
            the transform makes it.
        min_inliers: an image with fewer is not verified.
        verified_inliers: from so many on, a person may be told that the image shows the same.
        h_t: correspondences are at most this Hamming distance apart; None: the word is enough.
        ma: so many words of each query feature have correspondences.
        upright: all photos are the right way up: a hypothesis does not turn the image, whatever
            the angles of its two frames.
        max_pairs: of the correspondences of one image, so many are looked at, those of the
            smallest Hamming distance.
        max_hypotheses: so many of them are hypotheses; again those of the smallest distance.
    """

    shortlist: int = 100
    pixels: float = 40.0
    area_ratio: float = 1000**0.5
    min_inliers: int = 4
    verified_inliers: int = 8
    h_t: int | None = 48
    ma: int = 3
    upright: bool = False
    max_pairs: int = 2048
    max_hypotheses: int = 512


@dataclass(frozen=True, eq=False)
class Verified:
    """What geometry says about one image.

    Attributes:
        image: its number.
        inliers: correspondences that agree with the transform; 0 if it is not verified.
        transform: (2, 3) float64, affine map from pixels of the query's view to pixels of the
            image; None if it is not verified.
        view: which image of the query the transform starts from.
        pairs: (inliers, 2) int64, query feature and posting of its segment, one to one.
    """

    image: int
    inliers: int
    transform: NDArray[np.float64] | None
    view: int
    pairs: NDArray[np.int64]


class Postings(Protocol):
    """What is read of a segment here; see :class:`~hardnet.retrieval.segment.Segment`."""

    @property
    def offsets(self) -> NDArray[np.uint32]:
        """(K + 1,) the postings of word w are offsets[w]:offsets[w + 1]."""

    @property
    def image_ids(self) -> NDArray[np.uint16]:
        """(P,) ascending within a word."""

    @property
    def signatures(self) -> NDArray[np.uint64]:
        """(P, 2)."""

    @property
    def geometry(self) -> NDArray[np.uint16]:
        """(P, 3) packed frames."""

    @property
    def image_sizes(self) -> NDArray[np.uint32]:
        """(I, 2) width and height."""

    @property
    def forward_offsets(self) -> NDArray[np.uint32]:
        """(I + 1,) where the words of each image begin."""

    @property
    def forward_words(self) -> NDArray[np.uint8]:
        """(P, 3) words of the images, little endian, ascending within an image."""


def verify_images(
    query: Query,
    segment: Postings,
    images: Sequence[int] | NDArray[np.int64],
    verification: Verification,
) -> list[Verified]:
    """Verify images of one segment.

    Args:
        query: its features, in one or several views.
        segment: where the images are.
        images: numbers of the images in the segment.
        verification: how.

    Returns:
        One answer per image, in order; the same however many threads there are.
    """
    ids = np.asarray(images, np.int64).reshape(-1)
    return [Verified(int(i), 0, None, 0, np.zeros((0, 2), np.int64)) for i in ids]


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
