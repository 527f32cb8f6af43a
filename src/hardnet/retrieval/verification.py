"""Spatial verification: do the features that agree also lie where one affine map puts them?

Every correspondence of a query feature with a feature of the image has two frames, and the map
from the one to the other is a hypothesis: one correspondence is enough, so that all hypotheses are
tried and nothing is left to chance (Philbin et al. 2007). The best one is refined by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval.affine import verify
from hardnet.retrieval.kernels import BITS, compiled, hamming, popcount
from hardnet.retrieval.query import he_terms
from hardnet.retrieval.store.compact_frames import unpack
from hardnet.retrieval.store.segment import lower_bound, read_word
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

        The a contrario test of :func:`hardnet.match` is for exact maps: an affine one of an object
        with depth has inliers anywhere within the threshold, and would fail it.
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


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Those of one query with several images, one image after the other.

    Attributes:
        totals: (n,) int64, how many each image has, also beyond the limit.
        bounds: (n + 1,) int64, where those of each image begin.
        features: (m,) int64, query features, ascending within an image.
        postings: (m,) int64, ascending within a query feature.
        places: (m,) int64, the place of the posting in the image's own list.
        distances: (m,) int64, Hamming distances.
    """

    totals: NDArray[np.int64]
    bounds: NDArray[np.int64]
    features: NDArray[np.int64]
    postings: NDArray[np.int64]
    places: NDArray[np.int64]
    distances: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class WordTable:
    """The terms of a query, by word; see :func:`word_table`.

    Attributes:
        present: (K // 64 + 1,) uint64, a bit for each word of the vocabulary, set for U of them.
        before: (K // 64 + 1,) int64, how many bits are set before each 64.
        starts: (U + 1,) int64, where the terms of each of these words begin.
        features: (T,) int32 and signatures: (T, 2) uint64, of those terms.
        query_features: how many features the query has.
    """

    present: NDArray[np.uint64]
    before: NDArray[np.int64]
    starts: NDArray[np.int64]
    features: NDArray[np.int32]
    signatures: NDArray[np.uint64]
    query_features: int


def word_table(query: Query, vocabulary_size: int, ma: int | None = None) -> WordTable:
    """The terms of a query, ordered by word, then by feature."""
    terms = he_terms(query, ma)
    order = np.argsort(terms.words, kind="stable")
    words, starts = np.unique(terms.words[order], return_index=True)
    bits = np.zeros((vocabulary_size // 64 + 1) * 64, np.bool_)
    bits[words] = True
    counts = np.bincount(words >> 6, minlength=vocabulary_size // 64 + 1)
    return WordTable(
        present=np.packbits(bits, bitorder="little").view("<u8").astype(np.uint64, copy=False),
        before=(np.cumsum(counts) - counts).astype(np.int64),
        starts=np.append(starts, len(order)).astype(np.int64),
        features=terms.feature[order].astype(np.int32),
        signatures=np.ascontiguousarray(terms.signatures[order], np.uint64),
        query_features=len(query.words),
    )


def find_correspondences(
    table: WordTable,
    segment: Segment,
    images: NDArray[np.int64],
    h_t: int,
    limit: int = 1 << 62,
) -> Correspondences:
    """Correspondences of a query with some images of a segment, on the caller's thread.

    Args:
        table: the query.
        segment: where the images are.
        images: (n,) numbers of the images in the segment.
        h_t: the largest Hamming distance; 128 if the word is enough.
        limit: an image keeps at most this many, those of the smallest distance; at equal
            distance the lower word, query feature and posting come first.
    """
    totals, bounds, found = gather(
        np.ascontiguousarray(images, np.int64),
        segment.offsets,
        segment.image_ids,
        segment.signatures,
        segment.forward_offsets,
        segment.forward_words,
        table.present,
        table.before,
        table.starts,
        table.features,
        table.signatures,
        table.query_features,
        h_t,
        limit,
    )
    return Correspondences(totals, bounds, *np.ascontiguousarray(found.T))


@compiled
def gather(
    images: Any,
    offsets: Any,
    image_ids: Any,
    signatures: Any,
    forward_offsets: Any,
    forward_words: Any,
    present: Any,
    before: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    query_features: int,
    h_t: int,
    limit: int,
) -> Any:
    """Correspondences of ``images`` (n,) of a segment with the terms of a :class:`WordTable`.

    An image's own list of words is read, not the posting lists of the query's words: the time does
    not depend on how many other images the segment holds.

    Returns:
        (n,) how many there are, (n + 1,) where the correspondences of each image begin, and (m, 4)
        int64: query feature, posting, place of the posting in its image, distance; ascending by
        feature, then posting.
    """
    totals, bounds = np.zeros(len(images), np.int64), np.zeros(len(images) + 1, np.int64)
    longest = 0
    for image in images:
        longest = max(longest, np.int64(forward_offsets[image + 1]) - forward_offsets[image])
    runs = np.empty((longest, 4), np.int64)
    histogram = np.empty(BITS + 1, np.int64)
    starts = np.empty(query_features + 1, np.int64)
    out = np.empty((1024, 4), np.int64)
    for at in range(len(images)):
        count = _find_runs(
            images[at], offsets, image_ids, forward_offsets, forward_words, present, before, runs
        )
        total = _count_distances(
            runs[:count], signatures, term_starts, term_signatures, h_t, histogram
        )
        totals[at] = total
        kept = min(total, limit)
        # All below the distance ``cut`` are kept, and as many at ``cut`` as there is room for.
        cut, room = 0, kept
        while cut <= h_t and histogram[cut] <= room:
            room -= histogram[cut]
            cut += 1
        found = _keep(
            runs[:count],
            signatures,
            term_starts,
            term_features,
            term_signatures,
            min(cut, h_t),
            room if cut <= h_t else kept,
            kept,
        )
        if bounds[at] + kept > len(out):
            out = _longer(out, 2 * (bounds[at] + kept))
        _sort_by_feature(found, starts, out[bounds[at] : bounds[at] + kept])
        bounds[at + 1] = bounds[at] + kept
    return totals, bounds, out[: bounds[-1]]


@compiled
def _find_runs(
    image: int,
    offsets: Any,
    image_ids: Any,
    forward_offsets: Any,
    forward_words: Any,
    present: Any,
    before: Any,
    runs: Any,
) -> int:
    """The words that an image shares with the query.

    Writes a row of ``runs`` for each: the number of the word among those of the query, its first
    posting in this image, how many there are, and the place of the first in the image's list.
    Returns the count.
    """
    count = 0
    begin, end = np.int64(forward_offsets[image]), np.int64(forward_offsets[image + 1])
    place = begin
    while place < end:
        word = read_word(forward_words, place)
        if word >> 6 >= len(present):  # the segment is damaged
            place += 1
            continue
        block, bit = present[word >> 6], np.uint64(word & 63)
        if not (block >> bit) & np.uint64(1):
            place += 1
            continue
        stop, length = np.int64(offsets[word + 1]), 0
        low = lower_bound(image_ids, np.int64(offsets[word]), stop, np.int64(image))
        while low + length < stop and image_ids[low + length] == image:
            length += 1
        below = block & ((np.uint64(1) << bit) - np.uint64(1))
        runs[count, 0] = before[word >> 6] + popcount(below)
        runs[count, 1], runs[count, 2], runs[count, 3] = low, length, place - begin
        count += 1
        # A word of the list that has no posting, in a damaged segment, must not stop the scan.
        place += max(length, 1)
    return count


@compiled
def _count_distances(
    runs: Any, signatures: Any, term_starts: Any, term_signatures: Any, h_t: int, histogram: Any
) -> int:
    """How many correspondences there are at each distance, up to ``h_t``, and in all."""
    total = 0
    for h in range(BITS + 1):
        histogram[h] = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for posting in range(runs[run, 1], runs[run, 1] + runs[run, 2]):
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h <= h_t:
                    histogram[h] += 1
                    total += 1
    return total


@compiled
def _keep(
    runs: Any,
    signatures: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    cut: int,
    room: int,
    kept: int,
) -> Any:
    """The ``kept`` correspondences nearer than ``cut``, and the first ``room`` at ``cut``."""
    found = np.empty((kept, 4), np.int64)
    count = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for k in range(runs[run, 2]):
                if count == kept:
                    return found
                posting = runs[run, 1] + k
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h > cut or (h == cut and room == 0):
                    continue
                if h == cut:
                    room -= 1
                found[count, 0], found[count, 1] = term_features[term], posting
                found[count, 2], found[count, 3] = runs[run, 3] + k, h
                count += 1
    return found


@compiled
def _sort_by_feature(found: Any, starts: Any, out: Any) -> None:
    """A stable counting sort; within a feature the postings ascend already."""
    for feature in range(len(starts)):
        starts[feature] = 0
    for row in range(len(found)):
        starts[found[row, 0] + 1] += 1
    for feature in range(1, len(starts)):
        starts[feature] += starts[feature - 1]
    for row in range(len(found)):
        to = starts[found[row, 0]]
        starts[found[row, 0]] += 1
        for column in range(4):
            out[to, column] = found[row, column]


@compiled
def _longer(rows: Any, length: int) -> Any:
    """The same rows with room for more."""
    longer = np.empty((length, 4), np.int64)
    for row in range(len(rows)):
        for column in range(4):
            longer[row, column] = rows[row, column]
    return longer
