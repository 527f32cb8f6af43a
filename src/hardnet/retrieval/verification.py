"""Spatial verification: do the features that agree also lie where one affine map puts them?

A pair is a correspondence of a query feature with a feature of an image: they share a word, and
their signatures are close. Every feature of an image has one word, so a pair occurs once, however
many words a query feature has.

Every pair has two frames, and the map from one to the other is a hypothesis. One pair is enough, so
all hypotheses are tried and nothing is left to chance (Philbin et al. 2007). The best one is
refined by least squares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import comb, log
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.query import Query, portions
from hardnet.retrieval.store.segment import counting, find_postings, read_words, unpack_frames
from hardnet.retrieval.vocabulary import distances
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Segment

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

PUBLISHED_SIZE = 1024
"""Longer side, in pixels, of the photos for which the published threshold is meant."""

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
    # With this many inliers a person may be told that the image shows the same; with more where
    # many pairs are tried, of which one lies on the right spot with this chance. Fewer are enough
    # if chance gives that many in less than this share of all photos. See :meth:`is_sure`.
    verified_inliers: int = 10
    verified_share: float = 0.01
    false_alarms: float = 1e-8
    h_t: int = 48  # Hamming distance of correspondences, at most
    ma: int = 3  # how many words of each query feature have correspondences
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
        The numbers were chosen on unrelated photographs, where the four inliers that re-ranking
        needs are common.

        A query of few features, such as a crop of a quiet corner, never has ten inliers. It is
        judged by how many of h hypotheses, each made of one inlier, the other k - 1 are expected to
        agree with by chance: at most h C(n - 1, k - 1) q^(k - 1).

        The a contrario test of :func:`hardnet.match` expects inliers close to an exact map; an
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
    transform: Floats | None  # (2, 3), pixels of the query's view to the image's
    view: int  # which image of the query the transform starts from
    pairs: Integers  # (inliers, 2) query feature and posting of its segment, one to one
    tentatives: int = 0  # all correspondences, including those that were not tried
    features: int = 0  # of the query, which share them


class Correspondences(NamedTuple):
    """The pairs of one query with several images, one image after the other."""

    totals: Integers  # (n,) int64, how many each image has in all
    bounds: Integers  # (n + 1,) int64, where those of each image begin
    features: Integers  # (m,) int64, query features, ascending within an image
    postings: Integers  # (m,) int64, ascending within a query feature
    places: Integers  # (m,) int64, the place of the posting in the image's own list
    distances: Integers  # (m,) int64, Hamming distances


class WordTable(NamedTuple):
    """The T terms of a query, ordered by word, then by feature."""

    numbers: NDArray[np.int32]  # (K,) int32, of each word of the vocabulary: -1, or its number u
    starts: Integers  # (U + 1,) int64, where the terms of each of U words begin
    features: Integers  # (T,) int64
    signatures: NDArray[np.uint64]  # (T, 2) uint64


def word_table(query: Query, vocabulary_size: int, ma: int | None = None) -> WordTable:
    """The terms of a query; unknown words are left out."""
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


NO_LIMIT = 1 << 62


def find_correspondences(
    table: WordTable, segment: Segment, images: Integers, h_t: int, limit: int
) -> Correspondences:
    """Correspondences of a query with some images (n,) of a segment, on the caller's thread.

    They are at most ``h_t`` bits apart: 128 if the word is enough. An image keeps ``limit`` of the
    smallest distance; at equal distance those of the lower word, query feature and posting.

    An image's own list of words is read, not the posting lists of the query's words: the time does
    not depend on how many other images the segment holds.
    """
    starts = segment.forward_offsets[images].astype(np.int64)
    counts = segment.forward_offsets[images + 1] - starts
    rows = counting(starts, counts)
    words = read_words(segment.forward_words[rows])
    numbers = table.numbers[np.minimum(words, len(table.numbers) - 1)]
    # Features of images that share a word with the query, ascending by image and word.
    some = np.flatnonzero((numbers >= 0) & (words < len(table.numbers)))
    owner = np.repeat(np.arange(len(images)), counts)[some]
    words = words[some]
    postings = find_postings(segment, words, images[owner])
    # Of a damaged segment, what is no posting of the image is left out.
    real = np.flatnonzero(postings < segment.offsets[words + 1])
    real = real[segment.image_ids[postings[real]] == images[owner[real]]]
    owner, postings, some = owner[real], postings[real], some[real]
    places, numbers = rows[some] - starts[owner], numbers[some]

    terms = np.diff(table.starts)[numbers]
    edges = np.searchsorted(owner, np.arange(len(images) + 1))  # of the shared words of each image
    found = [np.zeros((3, 0), np.int64)]
    for part in portions(terms, edges):
        shared = np.repeat(np.arange(part.start, part.stop), terms[part])
        term = counting(table.starts[numbers[part]], terms[part])
        near = distances(table.signatures[term], segment.signatures[postings[shared]])
        close = np.flatnonzero(near <= h_t)
        found.append(np.stack([shared[close], term[close], near[close]]))
    shared, term, near = np.concatenate(found, axis=1)
    features, totals = table.features[term], np.bincount(owner[shared], minlength=len(images))
    if (totals > limit).any():
        order = np.lexsort((postings[shared], features, numbers[shared], near, owner[shared]))
        kept = order[counting(np.zeros(len(totals)), totals) < limit]
        shared, features, near = shared[kept], features[kept], near[kept]
    order = np.lexsort((postings[shared], features, owner[shared]))
    shared = shared[order]
    bounds = np.searchsorted(owner[shared], np.arange(len(images) + 1))
    return Correspondences(
        totals, bounds, features[order], postings[shared], places[shared], near[order]
    )


Part = tuple["Segment", int, Integers]
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
    scales = longer / PUBLISHED_SIZE
    # Frames in pixels of a photo of the published size.
    query_frames = (query.frames / scales[query.view, None, None]).reshape(-1, 6)
    rules = Rules(
        float(verification.pixels**2),
        float(np.log(verification.area_ratio)),
        verification.min_inliers,
        verification.max_hypotheses,
    )

    def verify_piece(piece: Part) -> list[Verified]:
        segment, base, images = piece
        h_t, max_pairs = verification.h_t, verification.max_pairs
        pairs = faster(find_correspondences)(table, segment, images, h_t, max_pairs)
        sizes = np.asarray(segment.image_sizes)[images]
        image_scales = sizes.max(axis=1) / PUBLISHED_SIZE
        owner = np.repeat(np.arange(len(images)), np.diff(pairs.bounds))
        packed = segment.geometry.take(pairs.postings, axis=0)
        frames = unpack_frames(packed, sizes.take(owner, axis=0))
        theirs = (frames / image_scales[owner, None, None]).reshape(-1, 6)
        # The pairs of each image with each view are a group.
        groups = owner * len(scales) + query.view[pairs.features]
        bounds = np.searchsorted(groups, np.arange(len(images) * len(scales) + 1))
        ours = query_frames.take(pairs.features, axis=0)
        of_group, maps, inliers = faster(best_maps)(bounds, pairs, ours, theirs, rules)
        # The view with most inliers speaks for an image; of equal ones the first.
        views, each = of_group.reshape(-1, len(scales)).argmax(axis=1), np.arange(len(images))
        best = each * len(scales) + views
        counts = np.where(of_group[best] >= rules.min_inliers, of_group[best], 0)
        kept = np.zeros(len(of_group), bool)
        kept[best] = counts > 0
        inliers &= kept[groups]
        chosen = np.stack([pairs.features[inliers], pairs.postings[inliers]], 1)
        # From pixels of photos of the published size to pixels of these.
        models = maps[best].reshape(-1, 2, 3) * image_scales[:, None, None]
        models[:, :, :2] /= scales[views][:, None, None]
        columns = base + images, counts, views, pairs.totals, np.cumsum(counts)
        found = []
        for model, row in zip(models, np.stack(columns, 1).tolist(), strict=True):
            image, count, view, tried, last = row
            transform, own = model if count else None, chosen[last - count : last]
            found.append(Verified(image, count, transform, view, own, tried, len(query)))
        return found

    pieces: list[Part] = []
    for segment, base, images in parts:
        ends, starts = segment.forward_offsets[images + 1], segment.forward_offsets[images]
        features = int((ends - starts).sum())
        count = max(1, min(cv2.getNumThreads(), features // PIECE_FEATURES, len(images)))
        # The best images come first and take longest: deal them out evenly.
        shares = (np.ascontiguousarray(images[start::count]) for start in range(count))
        pieces += [(segment, base, share) for share in shares]
    return {one.image: one for found in map_threads(verify_piece, pieces) for one in found}


# A model is a map and its inverse, (12,): two (2, 3) matrices, row by row.

WIDENINGS = (2**0.5, 2**0.5 - (2**0.5 - 1) / 3, 2**0.5 - (2**0.5 - 1) * 2 / 3, 1.0)
"""Least squares of the local optimisation: the squared threshold shrinks by these factors (Lebeda
et al. 2012)."""

HYPOTHESIS_INLIERS = 3
"""A hypothesis with fewer inliers is not refined."""

NEARLY_ALL = 64
"""If all but one of this many query features agree, no other hypothesis is tried."""

AXES_WEIGHT = 0.1
"""What a frame's axes weigh in least squares, where its centre weighs 1. Axes are short and
imprecise; they decide where centres leave the map open: on a line, or on one spot."""

SLACK = 1.001
"""A quick count may be too high, never too low: its thresholds are wider by this."""

AT_ONCE = 64
"""Hypotheses that are counted at once; of a good image, the first few are enough."""


class Rules(NamedTuple):
    """What makes an inlier, and how much is tried."""

    limit: float  # of the squared transfer error there and back
    log_ratio: float  # of the area of an inlier to that of the model
    min_inliers: int  # groups of fewer query features need not be looked at
    max_hypotheses: int


def best_maps(
    bounds: Integers, pairs: Correspondences, query: Floats, image: Floats, rules: Rules
) -> tuple[Integers, Floats, Flags]:
    """The best affine map of each of G groups of pairs: (G,) inliers, (G, 6) maps, (m,) which.

    The pairs of group g begin at ``bounds[g]``; ``query`` and ``image`` are their frames (m, 6).
    """
    counts, maps = np.zeros(len(bounds) - 1, np.int64), np.zeros((len(bounds) - 1, 6))
    inliers = np.zeros(len(query), bool)
    ours, theirs = area_of(query.T), area_of(image.T)
    with np.errstate(all="ignore"):  # frames without area, which are neither
        growth = np.where(np.minimum(ours, theirs) > 0, np.log(theirs / ours), np.nan)
        models = frame_to_frame(query.T, image.T)
    for number, (first, last) in enumerate(pairwise(bounds.tolist())):
        mine = slice(first, last)
        features, places = pairs.features[mine], pairs.places[mine]
        starts = np.flatnonzero(np.diff(features, prepend=-1))
        if len(starts) >= rules.min_inliers:
            frames = query[mine], image[mine], growth[mine]
            group = _Group(features, places, *frames, models[:, mine], starts, rules)
            nearest = np.argsort(pairs.distances[mine], kind="stable")[: rules.max_hypotheses]
            counts[number], model, inliers[mine] = group.best_map(nearest)
            maps[number] = model[:6]
    return counts, maps, inliers


@dataclass(frozen=True, eq=False)
class _Group:
    """The m pairs of one view of the query with one image."""

    features: Integers  # (m,)
    places: Integers  # (m,)
    query: Floats  # (m, 6) frames
    image: Floats  # (m, 6)
    growth: Floats  # (m,) log of the ratio of areas; NaN is neither a hypothesis nor an inlier
    models: Floats  # (12, m) the models that carry the one frame of each pair onto the other
    starts: Integers  # the first pair of each query feature
    rules: Rules

    def best_map(self, hypotheses: Integers) -> tuple[int, Floats, Flags]:
        """Try the hypotheses in their order and refine those that win: inliers, model, which."""
        best, best_model, best_chosen = 0, np.zeros(12), np.zeros(len(self.features), bool)
        different, limit = len(self.starts), self.rules.limit
        counted = (
            one
            for first in range(0, len(hypotheses), AT_ONCE)
            for one in self._count(hypotheses[first : first + AT_ONCE])
        )
        for i, most in counted:
            if best >= different - different // NEARLY_ALL:  # there cannot be many more
                break
            enough = max(best, HYPOTHESIS_INLIERS - 1)
            if most <= enough:
                continue
            count, chosen = self._select(self.models[:, i], limit)
            if count <= enough:
                continue
            best, best_model, best_chosen = count, self.models[:, i], chosen
            for widening in WIDENINGS:
                model = self._fit(chosen)
                if model is None:
                    break
                count, chosen = self._select(model, limit * widening)
                if count < HYPOTHESIS_INLIERS:
                    break
            else:
                if model is not None and count >= best:
                    best, best_model, best_chosen = count, model, chosen
        # The published threshold is wide: a pair at its edge is right about the object and wrong
        # about where exactly it is. So fit those that fit best, as long as they are half of all.
        while best and limit > 1.0:
            limit /= 2
            near = best_chosen & (self._errors(best_model) < limit)
            if near.sum() < max(HYPOTHESIS_INLIERS, (best + 1) // 2):
                break
            model = self._fit(near)
            if model is None:
                break
            best_model = model
        return best, best_model, best_chosen

    def _errors(self, model: Floats) -> Any:
        """(m,) squared transfer errors there and back; (h, m) of models (12, h, 1)."""
        x, y, u, v = self.query[:, 2], self.query[:, 5], self.image[:, 2], self.image[:, 5]
        there_x = model[0] * x + model[1] * y + model[2] - u
        there_y = model[3] * x + model[4] * y + model[5] - v
        back_x = model[6] * u + model[7] * v + model[8] - x
        back_y = model[9] * u + model[10] * v + model[11] - y
        return there_x**2 + there_y**2 + back_x**2 + back_y**2

    def _count(self, hypotheses: Integers) -> Any:
        """Each hypothesis and how many query features may agree with it; 0 if it is none."""
        with np.errstate(all="ignore"):
            fits = self._errors(self.models[:, hypotheses, None]) < self.rules.limit * SLACK
        apart = np.abs(self.growth - self.growth[hypotheses, None])
        fits &= apart < self.rules.log_ratio * SLACK
        counts = np.logical_or.reduceat(fits, self.starts, axis=1).sum(axis=1)
        return zip(hypotheses.tolist(), counts.tolist(), strict=True)

    def _select(self, model: Floats, limit: float) -> tuple[int, Flags]:
        """Inliers of a model, one to one: each query feature takes the nearest free image feature.

        How many, and (m,) which.
        """
        errors = self._errors(model)
        chosen = errors < limit
        chosen &= np.abs(self.growth - np.log(area_of(model))) < self.rules.log_ratio
        fitting = np.flatnonzero(chosen)
        features = self.features[fitting]
        if (features[1:] == features[:-1]).any():  # those of one feature, the nearest first
            fitting = fitting[np.lexsort((errors[fitting], features))]
            features = self.features[fitting]
        served, taken = -1, {}
        columns = (column.tolist() for column in (features, self.places[fitting], fitting))
        for feature, place, j in zip(*columns, strict=True):
            if feature != served and place not in taken:
                served = feature
                taken[place] = j
        if len(taken) == len(fitting):
            return len(taken), chosen
        chosen[:] = False
        chosen[list(taken.values())] = True
        return len(taken), chosen

    def _fit(self, chosen: Flags) -> Floats | None:
        """Least squares over the centres of the chosen pairs and, weakly, over their axes."""
        if not chosen.any():
            return None
        sides = np.concatenate([self.query[chosen], self.image[chosen]], 1).reshape(-1, 4, 3)
        # Sums in the order of the pairs, so that they are those of any other loop over them.
        x, y, u, v = np.cumsum(sides[:, :, 2], axis=0)[-1] / len(sides)
        sides[:, :, 2] -= (x, y, u, v)
        p, q, r, s = sides.transpose(1, 0, 2).reshape(4, -1)
        weight = np.tile([AXES_WEIGHT, AXES_WEIGHT, 1.0], len(sides))
        wp, wq = weight * p, weight * q
        products = np.stack([wp * p, wp * q, wq * q, wp * r, wq * r, wp * s, wq * s])
        xx, xy, yy, xu, yu, xv, yv = np.cumsum(products, axis=1)[:, -1]
        scale = xx * yy - xy * xy
        with np.errstate(all="ignore"):
            a, b = (xu * yy - yu * xy) / scale, (yu * xx - xu * xy) / scale
            c, d = (xv * yy - yv * xy) / scale, (yv * xx - xv * xy) / scale
        # Also None for NaN. A map that mirrors is none that a camera makes.
        if not a * d - b * c > 0:
            return None
        return model_of(a, b, c, d, u - a * x - b * y, v - c * x - d * y)


def area_of(frame: Any) -> Any:
    """The determinant of a frame: a quarter of the area of its patch; negative if it mirrors."""
    return frame[0] * frame[4] - frame[1] * frame[3]


def frame_to_frame(source: Any, target: Any) -> Floats:
    """(12, m) the models that carry frames (6, m) onto others."""
    area = area_of(source)
    a, b, d, e = source[4] / area, -source[1] / area, -source[3] / area, source[0] / area
    p, q = target[0] * a + target[1] * d, target[0] * b + target[1] * e
    r, s = target[3] * a + target[4] * d, target[3] * b + target[4] * e
    shift_x = target[2] - p * source[2] - q * source[5]
    shift_y = target[5] - r * source[2] - s * source[5]
    return model_of(p, q, r, s, shift_x, shift_y)


def model_of(a: Any, b: Any, c: Any, d: Any, e: Any, f: Any) -> Floats:
    """(12, ...) a map, rows as in a (2, 3) matrix, and its inverse."""
    area = a * d - b * c
    g, h, k, m = d / area, -b / area, -c / area, a / area
    return np.array([a, b, e, c, d, f, g, h, -(g * e + h * f), k, m, -(k * e + m * f)])
