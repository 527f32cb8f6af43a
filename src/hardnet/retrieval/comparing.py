"""A photo of an index as a query to the index: which others show the same, and by which map.

The query is what the index knows of the photo. Its mirror image is not known: only for that the
photo is read again, and described as a mirror shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import prepare
from hardnet.frames import rescale
from hardnet.images import Pixels, read_image, shrink, to_colour, to_grey
from hardnet.patches import cut_patches
from hardnet.retrieval.kinds import (
    Evidence,
    Thresholds,
    agreement,
    corners,
    inverse,
    is_border,
    kind_of,
    may_be_copy,
    measure,
    moved,
)
from hardnet.retrieval.photos import path_of
from hardnet.retrieval.query import Query
from hardnet.retrieval.scoring import Scoring, query_terms
from hardnet.retrieval.search import ImageFeatures, LocalShard
from hardnet.retrieval.store.compact_frames import unpack
from hardnet.retrieval.verification import Verification, Verified

if TYPE_CHECKING:
    from hardnet.retrieval.index import Index

SHORTLIST = 50
"""Photos that each photo is compared with: the most similar ones."""

BORDER_FEATURES, BORDER_SIZE = 0.1, 512
"""A border has no more than this share of a photo's features; it is looked at in this size."""

AHEAD = 4
"""Photos that are read while others are compared; they are all that is in memory."""


@dataclass(frozen=True, eq=False)
class Comparing:
    """An index whose photos are compared.

    Attributes:
        index: with the photos.
        shard: of one snapshot, whatever is added meanwhile.
        thresholds: of a precise inlier.
        verification: of each of the most similar photos.
    """

    index: Index
    shard: LocalShard
    thresholds: Thresholds
    verification: Verification

    @classmethod
    def of(cls, index: Index, thresholds: Thresholds) -> Comparing:
        """All photos that the index shows now."""
        return cls(index, LocalShard(index.snapshot), thresholds, Verification(shortlist=SHORTLIST))

    def plain(self, image: int) -> dict[int, Evidence]:
        """The photos that show what a photo shows, by number; nothing is read again."""
        (features,) = self.shard.features_of(np.array([image], np.int64))
        return self._found(image, features, features.as_query(), None)

    def mirrored(self, image: int, query: Query) -> dict[int, Evidence]:
        """The same for a photo seen in a mirror: see :meth:`mirrored_patches`."""
        (features,) = self.shard.features_of(np.array([image], np.int64))
        width = features.size[0]
        mirror = np.array([[-1.0, 0.0, width - 1], [0.0, 1.0, 0.0]])
        return self._found(image, features, query, mirror)

    def mirrored_patches(self, image: int) -> tuple[NDArray[np.uint8], ImageFeatures]:
        """(N, 32, 32) what the features of a photo see in a mirror, and their mirrored frames.

        Raises:
            HardnetError: the file cannot be read any more.
        """
        (features,) = self.shard.features_of(np.array([image], np.int64))
        settings = self.index.settings
        path = path_of(self.shard.snapshot.name(image), self.index.folder)
        prepared = prepare(path, settings.max_size)
        if prepared.image_size != features.size:
            raise HardnetError(f"{path} was changed: add it to the index again")
        # A dominant direction, the x axis of a patch, turns with the mirror; an upright x axis
        # does not. So it is the patch's y axis that is turned round, or its x axis.
        flip = np.array([-1, 1] if settings.upright else [1, -1], np.float32)
        seen = features.frames.copy()
        seen[:, :, :2] *= flip
        patches = cut_patches(prepared.grey, rescale(seen, prepared.factors))
        seen[:, 0] *= -1
        seen[:, 0, 2] += features.size[0] - 1
        mirrored = ImageFeatures(image, features.words, features.signatures, seen, features.size)
        return patches, mirrored

    def mirrored_query(self, patches: NDArray[np.uint8], mirrored: ImageFeatures) -> Query:
        """What a photo would ask if it were mirrored."""
        vocabulary = self.shard.snapshot.vocabulary
        if not len(patches):
            return mirrored.as_query()
        vectors = vocabulary.prepare(self.index.describer(patches))
        words = vocabulary.assign(vectors, self.verification.ma)
        return Query(
            words=words,
            signatures=vocabulary.signatures(vectors, words),
            frames=mirrored.frames,
            view=np.zeros(len(words), np.int32),
            view_sizes=(mirrored.size,),
            boxes=(None,),
        )

    def _found(
        self,
        image: int,
        features: ImageFeatures,
        query: Query,
        before: NDArray[np.float64] | None,
    ) -> dict[int, Evidence]:
        """Verified photos; ``before`` maps pixels of the photo to those of the query."""
        if not len(query):
            return {}
        scoring = Scoring()
        images, scores = self.shard.score(query_terms(query, scoring), scoring, SHORTLIST + 1)
        candidates = images[(images != image) & (scores > 0)][:SHORTLIST]
        verified = self.shard.verify(query, candidates, self.verification)
        found: dict[int, Evidence] = {}
        likely = [one for one in verified if one.inliers >= self.thresholds.fewest]
        others = self.shard.features_of(np.array([one.image for one in likely], np.int64))
        for one, other in zip(likely, others, strict=True):
            evidence = self._evidence(features, query, other, one, before)
            if may_be_copy(evidence, self.thresholds) and self._agree(image, one.image):
                found[one.image] = replace(evidence, agreed=True)
            elif self.verification.is_sure(one):
                found[one.image] = self._with_border(features, other, evidence)
        return found

    def _agree(self, image: int, other: int) -> bool:
        """Whether two photos of one frame look the same."""
        try:
            a, b = self._read(image, to_grey), self._read(other, to_grey)
        except HardnetError:
            return False
        return agreement(a, b) >= self.thresholds.agree

    def _read(self, image: int, tones: Callable[[Pixels], Pixels]) -> Pixels:
        return tones(read_image(path_of(self.shard.snapshot.name(image), self.index.folder)))

    def _evidence(
        self,
        features: ImageFeatures,
        query: Query,
        other: ImageFeatures,
        verified: Verified,
        before: NDArray[np.float64] | None,
    ) -> Evidence:
        position, _ = self.shard.snapshot.locate(verified.image)
        geometry = self.shard.snapshot.segments[position].geometry[verified.pairs[:, 1]]
        xy_b = unpack(np.asarray(geometry), other.size)[:, :, 2]
        xy_a = query.frames[verified.pairs[:, 0], :, 2].astype(np.float64)
        transform = verified.transform
        assert transform is not None
        if before is not None:
            xy_a = moved(xy_a, inverse(before))
            linear = transform[:, :2]
            transform = np.column_stack(
                [linear @ before[:, :2], moved(before[None, :, 2], transform)[0]]
            )
        return measure(
            transform,
            (features.size, xy_a, features.frames[:, :, 2]),
            (other.size, xy_b, other.frames[:, :, 2]),
            self.thresholds.precise,
            verified.tentatives,
        )

    def _with_border(self, a: ImageFeatures, b: ImageFeatures, found: Evidence) -> Evidence:
        bordered = kind_of(found, self.thresholds) == "crop" and self._is_bordered(a, b, found)
        return replace(found, bordered=bordered)

    def _is_bordered(self, a: ImageFeatures, b: ImageFeatures, found: Evidence) -> bool:
        """Whether the larger of two photos is the other with a border; it is read if it may be."""
        outer, inner, transform = b, a, found.transform
        if found.overlap[0] < found.overlap[1]:
            outer, inner, transform = a, b, inverse(found.transform)
        edges = moved(corners(inner.size), transform)
        beyond = cv2.convexHull(edges.astype(np.float32))
        within = [
            cv2.pointPolygonTest(beyond, xy.tolist(), False) > 0 for xy in outer.frames[:, :, 2]
        ]
        if np.mean(within) < 1 - BORDER_FEATURES:
            return False
        try:
            pixels = self._read(outer.image, to_colour)
        except HardnetError:
            return False
        small, factors = shrink(pixels, BORDER_SIZE)
        return is_border(small, (edges + 0.5) * factors - 0.5)


MirrorQuery = Query | HardnetError


def mirror_queries(comparing: Comparing, images: Sequence[int]) -> Iterator[MirrorQuery]:
    """What each photo asks as a mirror image; an error for one that cannot be read any more.

    The next photos are read meanwhile; describing keeps all cores busy by itself.
    """

    def attempt(image: int) -> tuple[NDArray[np.uint8], ImageFeatures] | HardnetError:
        try:
            return comparing.mirrored_patches(image)
        except HardnetError as error:
            return error

    with ThreadPoolExecutor(2) as pool:
        waiting: deque[Future[tuple[NDArray[np.uint8], ImageFeatures] | HardnetError]] = deque()
        try:
            for position in range(len(images)):
                ahead = images[position + len(waiting) : position + AHEAD]
                waiting.extend(pool.submit(attempt, image) for image in ahead)
                seen = waiting.popleft().result()
                if isinstance(seen, HardnetError):
                    yield seen
                else:
                    yield comparing.mirrored_query(*seen)
        finally:
            for one in waiting:
                one.cancel()
