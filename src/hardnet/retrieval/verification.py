"""Spatial verification: do the features that agree also lie where one affine map puts them?

Every correspondence of a query feature with a feature of the image has two frames, and the map
from the one to the other is a hypothesis: one correspondence is enough, so that all hypotheses are
tried and nothing is left to chance (Philbin et al. 2007). The best one is refined by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval.affine import verify
from hardnet.retrieval.correspondences import WordTable, find_correspondences, word_table
from hardnet.retrieval.kernels import BITS
from hardnet.retrieval.store.compact_frames import unpack
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.query import Query
    from hardnet.retrieval.search import ImageFeatures
    from hardnet.retrieval.store.segment import Segment

PUBLISHED_SIZE = 1024
"""Longer side, in pixels, of the photos for which the published threshold is meant."""

PIECE_FEATURES = 10_000
"""A thread's piece of work has at least this many: to wait for it takes time as well."""


@dataclass(frozen=True)
class Verification:
    """How images are verified; the values are those of the published implementation.

    Attributes:
        shortlist: how many of the best images are verified.
        pixels: an inlier's distances from where the transform puts it in the image, and from where
            the inverse puts it in the query, are at most this (root of the sum of squares). It is
            in pixels of a photo whose longer side is 1024; in each of the two images it
            shrinks and grows with the longer side, in the query with that of its box.
        area_ratio: an inlier's area in the image is at most this many times larger or smaller than
            the transform makes it.
        min_inliers: an image with fewer is not verified.
        verified_inliers: from this many on a person may be told that the image shows the same ...
        verified_share: ... and more where many pairs are tried: the chance of one to lie on the
            right spot; see :meth:`is_sure`.
        h_t: correspondences are at most this Hamming distance apart; None: the word is enough.
        ma: how many words of each query feature have correspondences.
        upright: all photos are the right way up: a hypothesis does not turn the image, whatever
            the angles of its two frames.
        max_pairs: at most this many correspondences of one image are looked at, those of the
            smallest Hamming distance.
        max_hypotheses: at most this many of them are hypotheses; again the nearest ones.
    """

    shortlist: int = 100
    pixels: float = 40.0
    area_ratio: float = 1000**0.5
    min_inliers: int = 4
    verified_inliers: int = 10
    verified_share: float = 0.01
    h_t: int | None = 48
    ma: int = 3
    upright: bool = False
    max_pairs: int = 2048
    max_hypotheses: int = 512

    def __post_init__(self) -> None:
        if not self.pixels > 0:
            raise HardnetError(f"pixels is {self.pixels}: give a distance above 0")
        if not self.area_ratio > 1:
            raise HardnetError(f"area_ratio is {self.area_ratio}: give a ratio above 1")
        for name in ("shortlist", "min_inliers", "ma", "max_pairs", "max_hypotheses"):
            if getattr(self, name) < 1:
                raise HardnetError(f"{name} is {getattr(self, name)}: give at least 1")

    def is_sure(self, verified: Verified) -> bool:
        """Whether an image has more inliers than chance gives.

        By chance a correspondence lies on the right spot with a probability p; a query feature that
        has m of them is an inlier with 1 - (1 - p)^m. All count, also those beyond ``max_pairs``:
        in two pages of one font every letter agrees with every other of its kind. The numbers were
        chosen on unrelated photographs, of which four inliers, as re-ranking asks for, are common.

        The a contrario test of :func:`hardnet.match` counts on inliers close to an exact map; an
        affine map of an object with depth has them anywhere within the threshold.
        """
        features = max(verified.features, 1)
        hit = 1 - (1 - self.verified_share) ** (verified.tentatives / features)
        needed = self.verified_inliers + features * hit
        return verified.transform is not None and verified.inliers >= needed


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
        tentatives: correspondences, also those that were not looked at ...
        features: ... and how many features the query has, which share them.
    """

    image: int
    inliers: int
    transform: NDArray[np.float64] | None
    view: int
    pairs: NDArray[np.int64]
    tentatives: int = 0
    features: int = 0


Part = tuple["Segment", int, NDArray[np.int64]]
"""A segment, the number of its first image, and the numbers of images in the segment."""


def verify_parts(
    query: Query, parts: Sequence[Part], verification: Verification
) -> dict[int, Verified]:
    """Verify images of several segments; the answers by the image's number in all of them."""
    if not parts:
        return {}
    asked = _ask(query, parts[0][0].words, verification)
    pieces = []
    for segment, base, images in parts:
        features = int(segment.feature_counts[images].sum())
        count = max(1, min(cv2.getNumThreads(), features // PIECE_FEATURES, len(images)))
        # The best images come first and take longest: every piece has its share of them.
        pieces += [(segment, base, images[start::count]) for start in range(count)]
    answers = map_threads(lambda piece: _verify_piece(asked, *piece, verification), pieces)
    return {one.image: one for piece in answers for one in piece}


@dataclass(frozen=True, eq=False)
class _Asked:
    """A query as all segments need it.

    Attributes:
        table: its terms by word.
        frames: (N, 6), see :func:`_comparable`.
        view: (N,) int64, the view of each feature.
        scales: (V,) longer side of each view over the published one.
    """

    table: WordTable
    frames: NDArray[np.float64]
    view: NDArray[np.int64]
    scales: NDArray[np.float64]


def _ask(query: Query, words: int, verification: Verification) -> _Asked:
    regions = zip(query.boxes, query.view_sizes, strict=True)
    scales = np.array([max(size if box is None else box[2:]) for box, size in regions])
    scales = scales / PUBLISHED_SIZE
    return _Asked(
        word_table(query, words, verification.ma),
        _comparable(query.frames, scales[query.view], verification.upright),
        query.view.astype(np.int64),
        scales,
    )


def _verify_piece(
    asked: _Asked,
    segment: Segment,
    base: int,
    images: NDArray[np.int64],
    verification: Verification,
) -> list[Verified]:
    """Verify some images on one thread."""
    h_t = BITS if verification.h_t is None else verification.h_t
    pairs = find_correspondences(asked.table, segment, images, h_t, verification.max_pairs)
    sizes = np.asarray(segment.image_sizes)[images]
    image_scales = sizes.max(axis=1) / PUBLISHED_SIZE
    tentatives = np.diff(pairs.bounds)
    owner = np.repeat(np.arange(len(images)), tentatives)
    frames = unpack(np.asarray(segment.geometry)[pairs.postings], sizes[owner])
    counts, views, models, inliers = verify(
        pairs.bounds,
        pairs.features,
        pairs.places,
        pairs.distances,
        asked.view[pairs.features],
        asked.frames[pairs.features],
        _comparable(frames, image_scales[owner], verification.upright),
        verification.pixels**2,
        verification.area_ratio,
        verification.min_inliers,
        verification.max_hypotheses,
    )
    # From pixels of photos of the published size to pixels of these.
    models = models.reshape(-1, 2, 3) * image_scales[:, None, None]
    models[:, :, :2] /= asked.scales[views][:, None, None]
    chosen = np.stack([pairs.features[inliers], pairs.postings[inliers]], 1)
    features = asked.table.query_features
    columns = base + images, counts, views, pairs.totals, np.cumsum(counts)
    return [
        Verified(
            image,
            count,
            model if count else None,
            view,
            chosen[last - count : last],
            tried,
            features,
        )
        for model, (image, count, view, tried, last) in zip(
            models, np.stack(columns, 1).tolist(), strict=True
        )
    ]


def _comparable(frames: Frames, scales: NDArray[np.float64], upright: bool) -> NDArray[np.float64]:
    """(N, 6) frames in pixels of a photo of the published size, turned upright if asked for."""
    scaled = frames / scales[:, None, None]
    if upright:
        # The lower triangular L with L L^T = A A^T: the same ellipse.
        row, other = scaled[:, 0, :2], scaled[:, 1, :2]
        length = np.hypot(row[:, 0], row[:, 1])
        area = row[:, 0] * other[:, 1] - row[:, 1] * other[:, 0]
        scaled[:, 1, 0], scaled[:, 1, 1] = (row * other).sum(axis=1) / length, area / length
        scaled[:, 0, 0], scaled[:, 0, 1] = length, 0
    return scaled.reshape(-1, 6)


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


def features_in_region(query: Query, verified: Verified, image: ImageFeatures) -> ImageFeatures:
    """The features of a verified image that its transform's inverse puts in the query's region.

    The region is the box of the view that the transform starts from, or all of that view. None of
    an image that is not verified.
    """
    keep = np.zeros(len(image.frames), np.bool_)
    if verified.transform is not None:
        box, size = query.boxes[verified.view], query.view_sizes[verified.view]
        # The border of an image runs half a pixel outside the centres of its outermost pixels.
        x, y, width, height = box if box is not None else (-0.5, -0.5, *size)
        linear, shift = verified.transform[:, :2], verified.transform[:, 2]
        back = np.linalg.solve(linear, (image.frames[:, :, 2] - shift).T)
        keep = (back[0] > x) & (back[0] < x + width) & (back[1] > y) & (back[1] < y + height)
    return replace(
        image,
        words=image.words[keep],
        signatures=image.signatures[keep],
        frames=image.frames[keep],
    )
