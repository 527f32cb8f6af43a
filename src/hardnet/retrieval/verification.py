"""Spatial verification: do the features that agree also lie where one affine map puts them?

Every correspondence of a query feature with a feature of the image has two frames, and the map
from the one to the other is a hypothesis: one correspondence is enough, so that all hypotheses are
tried and nothing is left to chance (Philbin et al. 2007). The best one is refined by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import comb, log
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval.hypotheses import verify
from hardnet.retrieval.kernels import BITS
from hardnet.retrieval.pairs import gather, sort_terms
from hardnet.retrieval.query import Query
from hardnet.retrieval.store.segment import half_sizes, read_frames, shapes
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.search import ImageFeatures
    from hardnet.retrieval.store.segment import Segment

PUBLISHED_SIZE = 1024
"""Longer side, in pixels, of the photos for which the published threshold is meant."""

PIECE_FEATURES = 5_000
"""A thread's piece of work has at least this many: to wait for it takes time as well."""


@dataclass(frozen=True)
class Verification:
    """How images are verified; the values are those of the published implementation."""

    shortlist: int = 100  # how many of the best images are verified
    # The best of these go first, then the next. If some of them are verified for sure, and none of
    # the last ``patience``, the rest of the shortlist is not looked at: it keeps its order.
    first: int = 16
    patience: int = 12
    # An inlier lies this close to where the transform puts it, there and back (root of the sum of
    # squares), in pixels of a photo of 1024: it grows with the longer side of each image, in the
    # query with that of its box.
    pixels: float = 40.0
    area_ratio: float = 1000**0.5  # the area of an inlier fits the transform up to this factor
    min_inliers: int = 4  # an image with fewer is not verified
    # From this many on a person may be told that the image shows the same, and from more where many
    # pairs are tried, of which one lies on the right spot with this chance. Fewer are enough where
    # chance gives that many in less than this share of all photos. See :meth:`is_sure`.
    verified_inliers: int = 10
    verified_share: float = 0.01
    false_alarms: float = 1e-8
    h_t: int | None = 48  # Hamming distance of correspondences; None: the word is enough
    ma: int = 3  # how many words of each query feature have correspondences
    upright: bool = False  # hypotheses do not turn the image, whatever the angles of the frames
    max_pairs: int = 2048  # correspondences of one image, those of the smallest Hamming distance
    max_hypotheses: int = 512  # at most this many of them are hypotheses; again the nearest ones

    def __post_init__(self) -> None:
        if not self.pixels > 0:
            raise HardnetError(f"pixels is {self.pixels}: give a distance above 0")
        if not self.area_ratio > 1:
            raise HardnetError(f"area_ratio is {self.area_ratio}: give a ratio above 1")
        counts = (
            "shortlist",
            "first",
            "patience",
            "min_inliers",
            "ma",
            "max_pairs",
            "max_hypotheses",
        )
        for name in counts:
            if getattr(self, name) < 1:
                raise HardnetError(f"{name} is {getattr(self, name)}: give at least 1")

    def is_sure(self, verified: Verified) -> bool:
        """Whether an image has more inliers than chance gives.

        By chance a correspondence lies on the right spot with a probability p; a query feature that
        has m of them is an inlier with q = 1 - (1 - p)^m. All count, also those beyond
        ``max_pairs``: in two pages of one font every letter agrees with every other of its kind.
        The numbers were chosen on unrelated photographs, of which four inliers, as re-ranking asks
        for, are common.

        A query of few features, such as a crop of a quiet corner, never has ten inliers. It is
        judged by how many of h hypotheses, each made of one inlier, the other k - 1 are expected to
        agree with by chance: at most h C(n - 1, k - 1) q^(k - 1).

        The a contrario test of :func:`hardnet.match` counts on inliers close to an exact map; an
        affine map of an object with depth has them anywhere within the threshold.
        """
        if verified.transform is None:
            return False
        features = max(verified.features, 1)
        hit: float = 1 - (1 - self.verified_share) ** (verified.tentatives / features)
        if verified.inliers >= self.verified_inliers + features * hit:
            return True
        if not self.min_inliers <= verified.inliers <= min(features, verified.tentatives):
            return False
        others = verified.inliers - 1
        ways = min(verified.tentatives, self.max_hypotheses) * comb(features - 1, others)
        return log(ways) + others * log(hit) < log(self.false_alarms)


@dataclass(frozen=True, eq=False)
class Verified:
    """What geometry says about one image."""

    image: int  # its number
    inliers: int  # correspondences that agree with the transform; 0 if it is not verified
    transform: NDArray[np.float64] | None  # (2, 3), pixels of the query's view to the image's
    view: int  # which image of the query the transform starts from
    pairs: NDArray[np.int64]  # (inliers, 2) query feature and posting of its segment, one to one
    tentatives: int = 0  # correspondences, also those that were not looked at
    features: int = 0  # of the query, which share them


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Those of one query with several images, one image after the other."""

    totals: NDArray[np.int64]  # (n,) int64, how many each image has, also beyond the limit
    bounds: NDArray[np.int64]  # (n + 1,) int64, where those of each image begin
    features: NDArray[np.int64]  # (m,) int64, query features, ascending within an image
    postings: NDArray[np.int64]  # (m,) int64, ascending within a query feature
    places: NDArray[np.int64]  # (m,) int64, the place of the posting in the image's own list
    distances: NDArray[np.int64]  # (m,) int64, Hamming distances


@dataclass(frozen=True, eq=False)
class WordTable:
    """The terms of a query, by word; see :func:`word_table`."""

    # (K // 64 + 1,) uint64, a bit for each word of the vocabulary, set for U of them
    present: NDArray[np.uint64]
    before: NDArray[np.int64]  # (K // 64 + 1,) int64, how many bits are set before each 64
    starts: NDArray[np.int64]  # (U + 1,) int64, where the terms of each of these words begin
    features: NDArray[np.int32]  # (T,) int32 and signatures: (T, 2) uint64, of those terms
    signatures: NDArray[np.uint64]
    query_features: int  # how many features the query has


def word_table(query: Query, vocabulary_size: int, ma: int | None = None) -> WordTable:
    """The terms of a query, ordered by word, then by feature; unknown words are left out."""
    words, signatures = query.words[:, :ma], query.signatures[:, :ma]
    present, before, starts, features, by_word = sort_terms(
        np.ascontiguousarray(words, np.int32),
        np.ascontiguousarray(signatures, np.uint64),
        vocabulary_size,
    )
    return WordTable(present, before, starts, features, by_word, len(query.words))


def find_correspondences(
    table: WordTable,
    segment: Segment,
    images: NDArray[np.int64],
    h_t: int,
    limit: int = 1 << 62,
) -> Correspondences:
    """Correspondences of a query with some images (n,) of a segment, on the caller's thread.

    They are at most ``h_t`` bits apart: 128 if the word is enough. An image keeps ``limit`` of the
    smallest distance; at equal distance those of the lower word, query feature and posting.
    """
    arrays = (
        *(segment.offsets, segment.image_ids, segment.signatures),
        *(segment.forward_offsets, segment.forward_words),
        *(table.present, table.before, table.starts, table.features, table.signatures),
    )
    numbers = np.ascontiguousarray(images, np.int64)
    totals, bounds, found = gather(numbers, *arrays, table.query_features, h_t, limit)
    return Correspondences(totals, bounds, *np.ascontiguousarray(found.T))


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
    """A query as all segments need it."""

    table: WordTable  # its terms by word
    frames: NDArray[np.float64]  # (N, 6), see :func:`_comparable`
    view: NDArray[np.int64]  # (N,) int64, the view of each feature
    scales: NDArray[np.float64]  # (V,) longer side of each view over the published one


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
    frames = read_frames(
        pairs.bounds,
        pairs.postings,
        segment.geometry,
        sizes.max(axis=1).astype(np.float32),
        half_sizes(),
        shapes(),
    )
    owner_scales = np.repeat(image_scales, np.diff(pairs.bounds))
    counts, views, models, inliers = verify(
        pairs.bounds,
        pairs.features,
        pairs.places,
        pairs.distances,
        asked.view,
        asked.frames,
        _comparable(frames, owner_scales, verification.upright),
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
    found = []
    for model, (image, count, view, tried, last) in zip(
        models, np.stack(columns, 1).tolist(), strict=True
    ):
        transform, own = model if count else None, chosen[last - count : last]
        found.append(Verified(image, count, transform, view, own, tried, features))
    return found


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

    (n,) positions in ``images``: verified ones first, those with more inliers before those with
    fewer, then by score and number; the others follow in the order they had.
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
    parts = ("words", "signatures", "frames")
    return replace(image, **{part: getattr(image, part)[keep] for part in parts})
