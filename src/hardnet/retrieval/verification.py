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
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames
from hardnet.retrieval.hypotheses import verify
from hardnet.retrieval.kernels import BITS, compiled, hamming, popcount, prefetch
from hardnet.retrieval.query import Query
from hardnet.retrieval.store.segment import half_sizes, lower_bound, read_frames, read_word, shapes
from hardnet.threads import map_threads

if TYPE_CHECKING:
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
        counts = "shortlist first patience min_inliers ma max_pairs max_hypotheses"
        for name in counts.split():
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


class Correspondences(NamedTuple):
    """Those of one query with several images, one image after the other."""

    totals: NDArray[np.int64]  # (n,) int64, how many each image has, also beyond the limit
    bounds: NDArray[np.int64]  # (n + 1,) int64, where those of each image begin
    features: NDArray[np.int64]  # (m,) int64, query features, ascending within an image
    postings: NDArray[np.int64]  # (m,) int64, ascending within a query feature
    places: NDArray[np.int64]  # (m,) int64, the place of the posting in the image's own list
    distances: NDArray[np.int64]  # (m,) int64, Hamming distances


class WordTable(NamedTuple):
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
    words, signatures = query.words[:, :ma], query.signatures[:, :ma].reshape(-1, 2)
    every = words.ravel()
    terms = np.flatnonzero((every >= 0) & (every < vocabulary_size))
    terms = terms[np.argsort(every[terms], kind="stable")]
    known, starts = np.unique(every[terms], return_index=True)
    present = np.zeros(vocabulary_size // 64 + 1, np.uint64)
    np.bitwise_or.at(present, known >> 6, np.uint64(1) << (known & 63).astype(np.uint64))
    counts = np.bincount(known >> 6, minlength=len(present))
    return WordTable(
        present,
        np.cumsum(counts) - counts,
        np.append(starts, len(terms)),
        (terms // words.shape[1]).astype(np.int32),
        np.ascontiguousarray(signatures[terms]),
        len(words),
    )


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
    table = word_table(query, parts[0][0].words, verification.ma)
    regions = zip(query.boxes, query.view_sizes, strict=True)
    longer = np.array([max(size if box is None else box[2:]) for box, size in regions])
    scales, views_of = longer / PUBLISHED_SIZE, query.view.astype(np.int64)
    query_frames = _comparable(query.frames, scales[query.view], verification.upright)
    h_t = BITS if verification.h_t is None else verification.h_t

    def verify_piece(piece: Part) -> list[Verified]:
        """Verify some images on one thread."""
        segment, base, images = piece
        pairs = find_correspondences(table, segment, images, h_t, verification.max_pairs)
        sides = np.asarray(segment.image_sizes)[images].max(axis=1)
        image_scales = sides / PUBLISHED_SIZE
        where = pairs.bounds, pairs.postings, segment.geometry, sides.astype(np.float32)
        frames = read_frames(*where, half_sizes(), shapes())
        owner_scales = np.repeat(image_scales, np.diff(pairs.bounds))
        counts, views, models, inliers = verify(
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
        # The best images come first and take longest: every piece has its share of them.
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


SIGNATURE_BYTES = BITS // 8


@compiled
def _rank(block: Any, word: Any) -> int:
    """How many bits of a block are set before that of a word."""
    below = (np.uint64(1) << np.uint64(word & 63)) - np.uint64(1)
    rank: int = popcount(block & below)
    return rank


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

    Returns (n,) how many there are, (n + 1,) where those of each image begin, and (m, 4) int64:
    query feature, posting, its place in its image, distance; ascending by feature, then posting.
    """
    totals, bounds = np.zeros(len(images), np.int64), np.zeros(len(images) + 1, np.int64)
    longest = 0
    for image in images:
        longest = max(longest, np.int64(forward_offsets[image + 1]) - forward_offsets[image])
    runs, address = np.empty((longest, 4), np.int64), signatures.ctypes.data
    starts = np.empty(query_features + 1, np.int64)
    found, out = np.empty((1024, 4), np.int64), np.empty((1024, 4), np.int64)
    for at in range(len(images)):
        count = _find_runs(
            images[at], offsets, image_ids, forward_offsets, forward_words, present, before, runs
        )
        most = 0
        for run in runs[:count]:
            prefetch(address + run[1] * SIGNATURE_BYTES)
            most += run[2] * (term_starts[run[0] + 1] - term_starts[run[0]])
        if most > len(found):
            found = np.empty((2 * most, 4), np.int64)
        total = _find_pairs(
            runs[:count], signatures, term_starts, term_features, term_signatures, h_t, found
        )
        totals[at] = total
        kept = min(total, limit)
        if total > limit:
            _keep_nearest(found[:total], limit)
        if bounds[at] + kept > len(out):
            out = _longer(out, 2 * (bounds[at] + kept))
        _sort_by_feature(found[:kept], starts, out[bounds[at] : bounds[at] + kept])
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
        runs[count, 0] = before[word >> 6] + _rank(block, word)
        runs[count, 1], runs[count, 2], runs[count, 3] = low, length, place - begin
        count += 1
        # A word of the list that has no posting, in a damaged segment, must not stop the scan.
        place += max(length, 1)
    return count


@compiled
def _find_pairs(
    runs: Any,
    signatures: Any,
    term_starts: Any,
    term_features: Any,
    term_signatures: Any,
    h_t: int,
    found: Any,
) -> int:
    """Write the pairs of at most the distance ``h_t``, as ``gather`` gives them; how many."""
    count = 0
    for run in range(len(runs)):
        for term in range(term_starts[runs[run, 0]], term_starts[runs[run, 0] + 1]):
            one, two = term_signatures[term, 0], term_signatures[term, 1]
            for k in range(runs[run, 2]):
                posting = runs[run, 1] + k
                h = hamming(one, two, signatures[posting, 0], signatures[posting, 1])
                if h <= h_t:
                    found[count, 0], found[count, 1] = term_features[term], posting
                    found[count, 2], found[count, 3] = runs[run, 3] + k, h
                    count += 1
    return count


@compiled
def _keep_nearest(found: Any, limit: int) -> None:
    """Move the ``limit`` rows of the smallest distance to the front, in their order."""
    histogram = np.zeros(BITS + 1, np.int64)
    for row in range(len(found)):
        histogram[found[row, 3]] += 1
    # All below the distance ``cut`` are kept, and as many at ``cut`` as there is room for.
    cut, room = 0, limit
    while histogram[cut] <= room:
        room -= histogram[cut]
        cut += 1
    count = 0
    for row in range(len(found)):
        h = found[row, 3]
        if h < cut or (h == cut and room > 0):
            room -= h == cut
            for column in range(4):
                found[count, column] = found[row, column]
            count += 1


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
