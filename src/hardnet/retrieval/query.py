"""A query: words and signatures of one or several images, how similar others are, and the hits.

Images are scored by bag of words or by Hamming embedding. Both are sums over the postings of the
query's words. An image's sum is made in the order of the query's terms and nothing else enters it,
so a score does not depend on the other images, on how images are divided among segments, or on the
number of threads: not in the last bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import are_alike, described_by
from hardnet.errors import HardnetError, counted
from hardnet.features import Features
from hardnet.frames import Frames
from hardnet.images import Pixels
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.store.segment import counting, lower_bounds
from hardnet.retrieval.vocabulary import BITS, Vocabulary, distances

if TYPE_CHECKING:
    from hardnet.retrieval.store.segment import Alive, Segment

Box = tuple[float, float, float, float]
"""x, y, width, height in pixels; the centre of the top-left pixel is (0, 0)."""

MA = 3
"""Words per query feature (multiple assignment); features of the index have one."""


@dataclass(frozen=True, eq=False)
class Query:
    """What is searched for; several images of one object are the views of one query."""

    words: NDArray[np.int32]  # (N, MA) int32, nearest words of each feature, nearest first
    signatures: NDArray[np.uint64]  # (N, MA, 2) uint64, the feature seen from each of its words
    frames: Frames  # (N, 2, 3) in pixels of the view
    view: NDArray[np.int32]  # (N,) int32, which view each feature lies in
    view_sizes: tuple[tuple[int, int], ...]  # (width, height) of each view
    boxes: tuple[Box | None, ...]  # the region of each view that was asked for; None for all of it

    def __len__(self) -> int:
        return len(self.words)

    def region(self, view: int) -> Box:
        """The box of a view; without one, all of the view."""
        # The border of an image runs half a pixel outside the centres of its outermost pixels.
        return self.boxes[view] or (-0.5, -0.5, *self.view_sizes[view])

    def nearest(self, ma: int) -> Query:
        """The same query with the ``ma`` nearest words of each feature, at most."""
        return replace(self, words=self.words[:, :ma], signatures=self.signatures[:, :ma])


def make_query(
    features: Features | Sequence[Features],
    vocabulary: Vocabulary,
    ma: int = MA,
    box: Box | Sequence[Box | None] | None = None,
) -> Query:
    """A query of the features of one image, or of several images of one object.

    ``ma`` is words per feature, at most. Of a box (x, y, width, height in pixels of the original;
    for several images, a list with one or None for each) only features whose centres lie strictly
    inside are kept; there may be none.
    """
    if ma < 1:
        raise HardnetError(f"ma is {ma}: a feature needs at least 1 word")
    views = [features] if isinstance(features, Features) else list(features)
    if not views:
        raise HardnetError("a query needs at least one image")
    boxes = view_boxes(box, len(views))
    parts = []
    for one, region in zip(views, boxes, strict=True):
        query, index = (one.descriptor, one.weights), vocabulary.described_by
        if not are_alike(*query, *index):
            raise HardnetError(
                f"the query is described by {described_by(*query)} and the index by "
                f"{described_by(*index)}: describe the query as the index was"
            )
        keep = slice(None) if region is None else inside(one.frames, region)
        descriptors = one.descriptors[keep]
        if not len(descriptors):  # of any length
            descriptors = np.zeros((0, len(vocabulary.mean)), np.float32)
        prepared = vocabulary.prepare(descriptors)
        words = vocabulary.assign(prepared, ma)
        parts.append((words, vocabulary.signatures(prepared, words), one.frames[keep]))
    words, signatures, frames = (np.concatenate(part) for part in zip(*parts, strict=True))
    view = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts])
    return Query(words, signatures, frames, view, tuple(one.image_size for one in views), boxes)


def inside(frames: Frames, box: Box) -> NDArray[np.bool_]:
    """(N,) which centres of frames lie strictly inside a box."""
    x, y, width, height = box
    centre_x, centre_y = frames[:, 0, 2], frames[:, 1, 2]
    return (x < centre_x) & (centre_x < x + width) & (y < centre_y) & (centre_y < y + height)


def view_boxes(box: Box | Sequence[Box | None] | None, views: int) -> tuple[Box | None, ...]:
    """One box, or None, per view; HardnetError for what is no box."""
    if box is None:
        return (None,) * views
    single = isinstance(box[0], int | float | np.number)
    boxes = cast("tuple[Box | None, ...]", (box,) if single else tuple(box))
    if len(boxes) != views:
        both = f"{counted(len(boxes), 'box')} for {counted(views, 'query image')}"
        raise HardnetError(f"{both}: give one for each")
    return tuple(None if one is None else _checked(one) for one in boxes)


def _checked(box: Box) -> Box:
    if len(box) != 4 or not np.isfinite(box).all() or box[2] <= 0 or box[3] <= 0:
        raise HardnetError(
            f"box {','.join(str(value) for value in box)} is not x,y,width,height in pixels "
            "with a width and a height above 0"
        )
    x, y, width, height = (float(value) for value in box)
    return x, y, width, height


@dataclass(frozen=True, eq=False)
class BowTerms:
    """The vector of a bag of words."""

    words: NDArray[np.int32]  # (T,) int32, each word once, ascending
    tf: NDArray[np.float32]  # (T,) float32, how often each occurs

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class HeTerms:
    """The signatures of a Hamming embedding."""

    words: NDArray[np.int32]  # (T,) int32
    signatures: NDArray[np.uint64]  # (T, 2) uint64
    # (T,) int32, ascending: the query feature of each term. The matches of all terms of one feature
    # with one image are a burst.
    feature: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.words)


Terms = BowTerms | HeTerms


def bow_terms(query: Query, ma: int = 1) -> BowTerms:
    """The bag of the ``ma`` nearest words of each feature; each counts as a whole occurrence."""
    words, tf = np.unique(query.words[:, :ma], return_counts=True)
    return BowTerms(words.astype(np.int32), tf.astype(np.float32))


def he_terms(query: Query, ma: int | None = None) -> HeTerms:
    """A term per feature and each of its ``ma`` nearest words (all that it has by default)."""
    words, signatures = query.words[:, :ma], query.signatures[:, :ma]
    feature = np.repeat(np.arange(len(words), dtype=np.int32), words.shape[1])
    return HeTerms(words.ravel(), signatures.reshape(-1, 2), feature)


@dataclass(frozen=True)
class Scoring:
    """How images are scored; the names are those of the papers.

    ``h_t`` and ``sigma`` are for vocabularies of thousands of words, where few of the features that
    share a word are the same: close signatures count for more than the papers' values make of them.
    """

    # "bow", the cosine of tf-idf vectors; "he", Hamming embedding
    method: Literal["bow", "he"] = "he"
    ma: int = MA  # words per query feature (multiple assignment); images of the index have one
    h_t: int = 56  # signatures further apart than this many of 128 bits do not match
    sigma: float = 24.0  # a match at Hamming distance h weighs exp(-(h / sigma)^2)
    # The matches of one query feature with one image count as their sum over the square root of
    # their number
    burstiness: bool = True
    idf: bool = True  # a match weighs idf^2 of its word: that of the query times that of the image
    # Scores are divided by the length of the image's vector (of both vectors for bow)
    normalise: bool = True

    def __post_init__(self) -> None:
        if self.method not in ("bow", "he"):
            raise HardnetError(f"scoring method {self.method!r}: choose bow or he")
        if self.ma < 1:
            raise HardnetError(f"ma is {self.ma}: a feature needs at least 1 word")
        if not self.sigma > 0:
            raise HardnetError(f"sigma is {self.sigma}: give a number above 0")
        if self.normalise and not self.idf:
            raise HardnetError("normalise=True needs idf=True: the lengths are of idf vectors")


def query_terms(query: Query, scoring: Scoring) -> Terms:
    """The terms of a query for a way of scoring."""
    make = bow_terms if scoring.method == "bow" else he_terms
    return make(query, scoring.ma)


class Matching(NamedTuple):
    """What a Hamming embedding adds to the words of its terms."""

    signatures: NDArray[np.uint64]  # (T, 2) uint64
    starts: NDArray[np.int64]  # (G + 1,) int64, where the terms of each query feature begin
    decay: NDArray[np.float64]  # (129,) float64, weight of a match by its Hamming distance
    h_t: int  # largest distance of a match
    burstiness: bool  # whether bursts are divided by the square root of their size


class Lookup(NamedTuple):
    """T terms as they are looked up; the same for every segment."""

    words: NDArray[np.int32]  # (T,) int32, all of them in the vocabulary
    weights: NDArray[np.float64]  # (T,) float64, what a posting of each term counts
    scale: float  # what every score is multiplied by
    normalise: bool  # whether scores are divided by the length of the image's vector
    matching: Any = None  # a Matching; None for bag of words


def prepare_terms(terms: Terms, idf: NDArray[np.float32], scoring: Scoring) -> Lookup:
    """Weigh the terms of a query by the idf (K,) of the whole index; unknown words are left out."""
    if isinstance(terms, BowTerms) != (scoring.method == "bow"):
        raise ValueError(f"{type(terms).__name__} cannot be scored by method {scoring.method!r}")
    known: Any = (terms.words >= 0) & (terms.words < len(idf))
    if known.all():
        known = slice(None)
    # Copies: kernels would be compiled again for what came, read-only, from another process.
    words = np.array(terms.words[known], np.int32)
    rarity = idf[words].astype(np.float64) if scoring.idf else np.ones(len(words))
    if isinstance(terms, BowTerms):
        tf = terms.tf[known].astype(np.float64)
        length = float(np.sqrt(np.sum((tf * rarity) ** 2))) if scoring.normalise else 1.0
        scale = 1 / length if length > 0 else 0.0
        return Lookup(words, tf * rarity**2, scale, scoring.normalise)
    begins = np.diff(terms.feature[known], prepend=-1) != 0
    matching = Matching(
        np.array(terms.signatures[known], np.uint64),
        np.append(np.flatnonzero(begins), len(words)),
        np.exp(-((np.arange(BITS + 1) / scoring.sigma) ** 2)),
        scoring.h_t,
        scoring.burstiness,
    )
    return Lookup(words, rarity**2, 1.0, scoring.normalise, matching)


def score_images(
    lookup: Lookup,
    segment: Segment,
    first: int,
    last: int,
    norms: NDArray[np.float32],
    alive: Alive,
) -> NDArray[np.float32]:
    """The scores (last - first,) of the images ``first`` to ``last`` of a segment.

    ``norms`` (I,) are the lengths of the images' vectors, for this method; ``alive`` (I,) which
    images are in the index, None for all. 0 where nothing matches; -inf for images not alive.
    """
    sums = np.zeros(last - first)
    add = add_bow if lookup.matching is None else add_he
    faster(add)(lookup, segment, first, sums)
    sums *= lookup.scale
    if lookup.normalise:
        # An image whose norm is 0 has no word that tells it from others.
        lengths = norms[first:last].astype(np.float64)
        sums = np.divide(sums, lengths, out=np.zeros(len(sums)), where=lengths > 0)
    scores = sums.astype(np.float32)
    if alive is not None:
        scores[~alive[first:last]] = -np.inf
    return scores


# Each pass over the postings covers len(sums) images starting at ``first``, so that threads can
# share a segment; every image's sum is still made in the order of the terms.


def add_bow(lookup: Lookup, segment: Segment, first: int, sums: NDArray[np.float64]) -> None:
    """Add to ``sums`` (n,) the weight of a term for each of its postings."""
    begins, counts = _find_lists(lookup.words, segment, first, first + len(sums))
    for terms in portions(counts, np.arange(len(counts) + 1)):
        owners = segment.image_ids[counting(begins[terms], counts[terms])].astype(np.int64) - first
        here = (owners >= 0) & (owners < len(sums))  # or the segment is damaged
        np.add.at(sums, owners[here], np.repeat(lookup.weights[terms], counts[terms])[here])


def add_he(lookup: Lookup, segment: Segment, first: int, sums: NDArray[np.float64]) -> None:
    """Add to ``sums`` (n,) the matches of each query feature, a burst per image."""
    begins, counts = _find_lists(lookup.words, segment, first, first + len(sums))
    signatures, starts, decay, h_t, burstiness = lookup.matching
    feature = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    for terms in portions(counts, starts):
        postings = counting(begins[terms], counts[terms])
        term = np.repeat(np.arange(terms.start, terms.stop), counts[terms])
        h = distances(signatures[term], segment.signatures[postings])
        close = np.flatnonzero(h <= h_t)
        owners = segment.image_ids[postings[close]].astype(np.int64) - first
        here = (owners >= 0) & (owners < len(sums))  # or the segment is damaged
        owners, term, h = owners[here], term[close[here]], h[close[here]]
        # A burst is what one feature has in one image; they are added feature by feature.
        bursts, member = np.unique(feature[term] * len(sums) + owners, return_inverse=True)
        totals: Any = np.bincount(member, lookup.weights[term] * decay[h], len(bursts))
        if burstiness:
            totals = totals / np.sqrt(np.bincount(member, minlength=len(bursts)))
        np.add.at(sums, bursts % len(sums), totals)


def _find_lists(
    words: NDArray[np.int32], segment: Segment, first: int, last: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(T,) begin and (T,) length of the postings of each word in the images ``first`` to ``last``.

    Where these begin or end with the images of the segment, no posting is looked at.
    """
    begins = segment.offsets[words].astype(np.int64)
    ends = segment.offsets[words + 1].astype(np.int64)
    if first > 0:
        begins = lower_bounds(segment.image_ids, begins, ends, first)
    if last < len(segment.forward_offsets) - 1:
        ends = lower_bounds(segment.image_ids, begins, ends, last)
    return begins, ends - begins


AT_ONCE = 1 << 18
"""Postings or pairs that are looked at together, or more if a single part has more: tens of MB."""


def portions(counts: NDArray[np.int64], starts: NDArray[np.int64]) -> Iterator[slice]:
    """Slices of ``counts`` (T,), cut at ``starts``, whose sums fit in memory."""
    before = np.append(0, np.cumsum(counts))[starts]
    first = 0
    while first < len(starts) - 1:
        last = max(int(np.searchsorted(before, before[first] + AT_ONCE, "right")) - 1, first + 1)
        yield slice(int(starts[first]), int(starts[last]))
        first = last


def order(
    images: NDArray[np.int64], scores: NDArray[np.float32], limit: int | None
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Images (n,) and their scores, best first, equal scores by image number; ``limit`` at most."""
    ranking = np.lexsort((images, -scores))[:limit]
    return images[ranking], scores[ranking]


def best(scores: NDArray[np.float32], limit: int) -> NDArray[np.int64]:
    """(n,) places of the ``limit`` highest scores, in no order; the first of equals; none is -inf.

    The best scores of parts tell which of all are worth sorting.
    """
    if limit < 1 or not len(scores):
        return np.zeros(0, np.int64)
    part = max(len(scores) // (8 * limit), 1)
    tops = np.maximum.reduceat(scores, np.arange(0, len(scores), part))
    last = max(len(tops) - limit, 0)
    least = np.partition(tops, last)[last]
    places = np.flatnonzero((scores >= least) & (scores > -np.inf))
    return places[np.argsort(-scores[places], kind="stable")[:limit]]


@dataclass(frozen=True, eq=False)
class Hit:
    """One photo that was found."""

    # The photo, as the index names it; :class:`~hardnet.retrieval.index.Index` gives a path that
    # can be opened from here
    path: str
    image: int  # its number in the snapshot that was searched
    score: float  # similarity by visual words; comparable within one search only
    inliers: int = 0  # correspondences that agree with ``transform``; 0 if none was found
    # There are more inliers than chance gives: the photo shows what the query shows
    verified: bool = False
    # (2, 3) affine map from pixels of the query to pixels of the photo, or None
    transform: NDArray[np.float64] | None = None
    # (4, 2) corners of the query's box (or of the whole query) in the photo, or None
    region: NDArray[np.float64] | None = None
    view: int = 0  # which image of the query the transform starts from

    @property
    def verdict(self) -> str:
        """What geometry says, in a word or two."""
        return "verified" if self.verified else "unsure" if self.inliers else "not verified"


@dataclass(frozen=True, eq=False)
class QueryImage:
    """One image that was searched for."""

    size: tuple[int, int]  # (width, height)
    features: int  # how many of its features were used
    box: Box | None = None  # the region that was asked for, or None for all of it
    path: str | None = None  # the file, or None if it was an array
    # The image if it was an array, None if it can be read from ``path``
    pixels: Pixels | None = field(default=None, repr=False)


@dataclass(frozen=True, eq=False)
class Results(Sequence[Hit]):
    """The hits of one search, best first: a list that also knows how it came about."""

    hits: list[Hit]  # best first
    # Time per stage, in the order of the stages
    seconds: dict[str, float] = field(default_factory=dict)
    # Parts of the index that did not answer; their photos cannot be among the hits
    missing: list[str] = field(default_factory=list)
    query: tuple[QueryImage, ...] = ()  # the images that were searched for

    @overload
    def __getitem__(self, at: int) -> Hit: ...

    @overload
    def __getitem__(self, at: slice) -> list[Hit]: ...

    def __getitem__(self, at: int | slice) -> Hit | list[Hit]:
        return self.hits[at]

    def __len__(self) -> int:
        return len(self.hits)

    @property
    def verified(self) -> list[Hit]:
        """The hits that are verified."""
        return [hit for hit in self.hits if hit.verified]

    def to_json(self, index: str | os.PathLike[str], images: int, mode: str) -> dict[str, Any]:
        """As JSON values, with the folder of the index and how many images it has."""
        asked, found = ("path", "size", "features", "box"), ("path", "score", "inliers", "verified")
        return {
            "index": os.fspath(index),
            "images": images,
            "mode": mode,
            "query": [{name: getattr(one, name) for name in asked} for one in self.query],
            "hits": [
                {name: getattr(hit, name) for name in found}
                | {
                    "transform": None if hit.transform is None else hit.transform.tolist(),
                    "region": None if hit.region is None else hit.region.tolist(),
                    "view": hit.view,
                }
                for hit in self.hits
            ],
            "seconds": {stage: round(time, 6) for stage, time in self.seconds.items()},
            "missing": self.missing,
        }

    def draw(self, path: str | os.PathLike[str]) -> None:
        """Write a picture of the query and the hits, verified regions outlined."""
        from hardnet.retrieval.draw import draw_results

        draw_results(path, [self])


def region_of(box: Box, transform: NDArray[np.float64]) -> NDArray[np.float64]:
    """(4, 2) corners of a box of the query in the photo that was found."""
    x, y, width, height = box
    corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
    moved: NDArray[np.float64] = corners @ transform[:, :2].T + transform[:, 2]
    return moved
