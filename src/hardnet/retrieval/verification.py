"""Spatial verification: do the features that agree also lie where one affine map puts them?

Every correspondence of a query feature with a feature of the image has two frames, and the map
from the one to the other is a hypothesis: one correspondence is enough, so that all hypotheses are
tried and nothing is left to chance (Philbin et al. 2007). The best one is refined by least squares.

A pair is a correspondence of a query feature with a feature of an image: they share a word, and
their signatures are close. Every feature of an image has one word, so that a pair occurs once,
however many words a query feature has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, log
from typing import TYPE_CHECKING, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.hypotheses import verify
from hardnet.retrieval.query import Query
from hardnet.retrieval.store.segment import counting, find_postings, read_words, unpack_frames
from hardnet.retrieval.vocabulary import BITS, distances
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Segment

PUBLISHED_SIZE = 1024
"""Longer side, in pixels, of the photos for which the published threshold is meant."""

PAIRS_AT_ONCE = 1 << 18
"""Pairs whose distances are computed at a time, or more if a single image has more."""

PIECE_FEATURES = 5_000
"""Smallest piece of work for a thread: waiting for a thread takes time as well."""


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
        counts = "shortlist first patience min_inliers ma max_pairs max_hypotheses"
        for name in counts.split():
            if getattr(self, name) < 1:
                raise HardnetError(f"{name} is {getattr(self, name)}: give at least 1")

    def is_sure(self, verified: Verified) -> bool:
        """Whether an image has more inliers than chance gives.

        By chance a correspondence lies on the right spot with a probability p; a query feature that
        has m of them is an inlier with q = 1 - (1 - p)^m. All count, even those beyond
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
    tentatives: int = 0  # all correspondences, including those that were not tried
    features: int = 0  # of the query, which share them


class Correspondences(NamedTuple):
    """Those of one query with several images, one image after the other."""

    totals: NDArray[np.int64]  # (n,) int64, how many each image has in all
    bounds: NDArray[np.int64]  # (n + 1,) int64, where those of each image begin
    features: NDArray[np.int64]  # (m,) int64, query features, ascending within an image
    postings: NDArray[np.int64]  # (m,) int64, ascending within a query feature
    places: NDArray[np.int64]  # (m,) int64, the place of the posting in the image's own list
    distances: NDArray[np.int64]  # (m,) int64, Hamming distances


class WordTable(NamedTuple):
    """The T terms of a query, by word; see :func:`word_table`."""

    numbers: NDArray[np.int32]  # (K,) int32, of each word of the vocabulary: -1, or its number u
    starts: NDArray[np.int64]  # (U + 1,) int64, where the terms of each of U words begin
    features: NDArray[np.int64]  # (T,) int64 and signatures: (T, 2) uint64, of those terms
    signatures: NDArray[np.uint64]


def word_table(query: Query, vocabulary_size: int, ma: int | None = None) -> WordTable:
    """The terms of a query, ordered by word, then by feature; unknown words are left out."""
    words, signatures = query.words[:, :ma], query.signatures[:, :ma].reshape(-1, 2)
    every = words.ravel()
    terms = np.flatnonzero((every >= 0) & (every < vocabulary_size))
    # Numbers of 16 bits are sorted without comparing them, several times faster.
    keys = every[terms].astype(np.uint16 if vocabulary_size <= 1 << 16 else np.int32)
    order = np.argsort(keys, kind="stable")
    terms, known = terms[order], keys[order]
    starts = np.flatnonzero(np.append(True, known[1:] != known[:-1])[: len(known)])
    numbers = np.full(vocabulary_size, -1, np.int32)
    numbers[known[starts]] = np.arange(len(starts))
    ends = np.append(starts, len(terms))
    return WordTable(numbers, ends, terms // words.shape[1], signatures[terms])


def find_correspondences(
    table: WordTable,
    segment: Segment,
    images: NDArray[np.int64],
    h_t: int,
    limit: int | None = None,
) -> Correspondences:
    """Correspondences of a query with some images (n,) of a segment, on the caller's thread.

    They are at most ``h_t`` bits apart: 128 if the word is enough. An image keeps ``limit`` of the
    smallest distance; at equal distance those of the lower word, query feature and posting.

    An image's own list of words is read, not the posting lists of the query's words: the time does
    not depend on how many other images the segment holds.
    """
    owner, places, postings, numbers = _shared_words(table, segment, images)
    terms = np.diff(table.starts)[numbers]
    before = np.append(0, np.cumsum(terms))
    edges = np.searchsorted(owner, np.arange(len(images) + 1))  # of the shared words of each image
    found = []
    first = 0
    while first < len(images):  # as many images as have pairs that fit in memory, at least one
        most = before[edges[first]] + PAIRS_AT_ONCE
        last = max(int(np.searchsorted(before[edges], most, "right")) - 1, first + 1)
        some = np.arange(edges[first], edges[last])
        shared = np.repeat(some, terms[some])
        term = counting(table.starts[numbers[some]], terms[some])
        near = distances(table.signatures[term], segment.signatures[postings[shared]])
        close = np.flatnonzero(near <= h_t)
        found.append((shared[close], term[close], near[close]))
        first = last
    parts = zip(*found, strict=True) if found else [np.zeros((1, 0), np.int64)] * 3
    shared, term, near = (np.concatenate(list(part)) for part in parts)
    totals = np.bincount(owner[shared], minlength=len(images))
    features = table.features[term]
    if limit is not None and (totals > limit).any():
        keys = postings[shared], features, numbers[shared], near, owner[shared]
        order = np.lexsort(keys)
        rank = counting(np.zeros(len(totals)), totals)
        kept = order[rank < limit]
        shared, features, near = shared[kept], features[kept], near[kept]
    order = np.lexsort((postings[shared], features, owner[shared]))
    shared = shared[order]
    bounds = np.searchsorted(owner[shared], np.arange(len(images) + 1))
    return Correspondences(
        totals, bounds, features[order], postings[shared], places[shared], near[order]
    )


def _shared_words(
    table: WordTable, segment: Segment, images: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int32]]:
    """The features of images that share a word with the query, ascending by image and word.

    (n,) which of the images, (n,) their places in its list, (n,) postings, (n,) numbers of words.
    """
    images = np.asarray(images, np.int64)
    starts = segment.forward_offsets[images].astype(np.int64)
    counts = segment.forward_offsets[images + 1] - starts
    rows = counting(starts, counts)
    words = read_words(segment.forward_words[rows])
    numbers = table.numbers[np.minimum(words, len(table.numbers) - 1)]
    shared = np.flatnonzero((numbers >= 0) & (words < len(table.numbers)))
    owner = np.repeat(np.arange(len(images)), counts)[shared]
    places, words = rows[shared] - starts[owner], words[shared]
    postings = find_postings(segment, words, images[owner])
    # Of a damaged segment, what is no posting of the image is left out.
    real = np.flatnonzero(postings < segment.offsets[words + 1])
    real = real[segment.image_ids[postings[real]] == images[owner[real]]]
    if len(real) < len(shared):
        owner, places, postings, shared = owner[real], places[real], postings[real], shared[real]
    return owner, places, postings, numbers[shared]


Part = tuple["Segment", int, NDArray[np.int64]]
"""A segment, the number of its first image, and the numbers of images in the segment."""


def verify_parts(
    query: Query, parts: Sequence[Part], verification: Verification
) -> dict[int, Verified]:
    """Verify images of several segments; the answers by the image's number in all of them."""
    if not parts:
        return {}
    table = word_table(query, parts[0][0].words, verification.ma)
    regions = zip(query.boxes, query.view_sizes, strict=True)
    longer = np.array([max(size if box is None else box[2:]) for box, size in regions])
    scales, views_of = longer / PUBLISHED_SIZE, query.view.astype(np.int64)
    query_frames = _comparable(query.frames, scales[query.view], verification.upright)
    h_t = BITS if verification.h_t is None else verification.h_t

    def verify_piece(piece: Part) -> list[Verified]:
        """Verify some images on one thread."""
        segment, base, images = piece
        pairs = faster(find_correspondences)(table, segment, images, h_t, verification.max_pairs)
        sides = np.asarray(segment.image_sizes)[images].max(axis=1)
        image_scales = sides / PUBLISHED_SIZE
        counts = np.diff(pairs.bounds)
        each = np.repeat(segment.image_sizes[images], counts, axis=0)
        frames = unpack_frames(segment.geometry[pairs.postings], each)
        owner_scales = np.repeat(image_scales, counts)
        counts, views, models, inliers = faster(verify)(
            pairs.bounds,
            pairs.features,
            pairs.places,
            pairs.distances,
            views_of,
            query_frames,
            _comparable(frames, owner_scales, verification.upright),
            verification.pixels**2,
            verification.area_ratio,
            verification.min_inliers,
            verification.max_hypotheses,
        )
        # From pixels of photos of the published size to pixels of these.
        models = models.reshape(-1, 2, 3) * image_scales[:, None, None]
        models[:, :, :2] /= scales[views][:, None, None]
        chosen = np.stack([pairs.features[inliers], pairs.postings[inliers]], 1)
        columns = base + images, counts, views, pairs.totals, np.cumsum(counts)
        found = []
        rows = zip(models, np.stack(columns, 1).tolist(), strict=True)
        for model, (image, count, view, tried, last) in rows:
            transform, own = model if count else None, chosen[last - count : last]
            found.append(Verified(image, count, transform, view, own, tried, len(query)))
        return found

    pieces: list[Part] = []
    for segment, base, images in parts:
        features = int(segment.feature_counts[images].sum())
        count = max(1, min(cv2.getNumThreads(), features // PIECE_FEATURES, len(images)))
        # The best images come first and take longest: deal them out evenly.
        pieces += [(segment, base, images[start::count]) for start in range(count)]
    return {one.image: one for found in map_threads(verify_piece, pieces) for one in found}


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
