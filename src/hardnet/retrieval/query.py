"""A query: the features of one or several images, as words and signatures; and what it finds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import are_alike, described_by
from hardnet.errors import HardnetError, counted
from hardnet.features import Features
from hardnet.frames import Frames, empty_frames
from hardnet.images import Pixels

if TYPE_CHECKING:
    from hardnet.retrieval.vocabulary import Vocabulary


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
    parts = [_view(view, vocabulary, ma, region) for view, region in zip(views, boxes, strict=True)]
    words, signatures, frames = (np.concatenate(part) for part in zip(*parts, strict=True))
    view = np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts])
    return Query(words, signatures, frames, view, tuple(one.image_size for one in views), boxes)


def inside(frames: Frames, box: Box) -> NDArray[np.bool_]:
    """(N,) which centres of frames lie strictly inside a box."""
    x, y, width, height = box
    centre_x, centre_y = frames[:, 0, 2], frames[:, 1, 2]
    return (x < centre_x) & (centre_x < x + width) & (y < centre_y) & (centre_y < y + height)


def _view(
    features: Features, vocabulary: Vocabulary, ma: int, box: Box | None
) -> tuple[NDArray[np.int32], NDArray[np.uint64], Frames]:
    """Words (n, MA), signatures (n, MA, 2) and frames (n, 2, 3) of one view."""
    query, index = (features.descriptor, features.weights), vocabulary.described_by
    if not are_alike(*query, *index):
        raise HardnetError(
            f"the query is described by {described_by(*query)} and the index by "
            f"{described_by(*index)}: describe the query as the index was"
        )
    keep = slice(None) if box is None else inside(features.frames, box)
    frames, descriptors = features.frames[keep], features.descriptors[keep]
    if not len(frames):
        width = min(ma, len(vocabulary))
        none = np.zeros((0, width), np.int32), np.zeros((0, width, 2), np.uint64)
        return *none, empty_frames()
    prepared = vocabulary.prepare(descriptors)
    words = vocabulary.assign(prepared, ma)
    return words, vocabulary.signatures(prepared, words), frames


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

        def rows(array: NDArray[np.float64] | None) -> Any:
            return None if array is None else array.tolist()

        return {
            "index": os.fspath(index),
            "images": images,
            "mode": mode,
            "query": [
                {"path": one.path, "size": one.size, "features": one.features, "box": one.box}
                for one in self.query
            ],
            "hits": [
                {
                    "path": hit.path,
                    "score": hit.score,
                    "inliers": hit.inliers,
                    "verified": hit.verified,
                    "transform": rows(hit.transform),
                    "region": rows(hit.region),
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


def region_of(
    box: Box | None, size: tuple[int, int], transform: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(4, 2) corners of a box of the query, or of its whole image, in the photo that was found."""
    # The border of an image runs half a pixel outside the centres of its outermost pixels.
    x, y, width, height = box if box is not None else (-0.5, -0.5, *size)
    corners = np.array([(x, y), (x + width, y), (x + width, y + height), (x, y + height)])
    moved: NDArray[np.float64] = corners @ transform[:, :2].T + transform[:, 2]
    return moved
