"""A photo of an index as a query to the index: which others show the same, and by which map.

The query is what the index knows of the photo. Its mirror image is not known: only for that the
photo is read again, and described as a mirror shows it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import prepare
from hardnet.frames import rescale
from hardnet.images import Pixels, read_image, shrink, to_colour, to_grey
from hardnet.patches import cut_for
from hardnet.retrieval.kinds import (
    Evidence,
    Size,
    Thresholds,
    corners,
    inverse,
    is_edit,
    kind_of,
    may_be_copy,
    measure,
    moved,
)
from hardnet.retrieval.overlay import Laid, is_border, lay
from hardnet.retrieval.photos import path_of
from hardnet.retrieval.query import Query
from hardnet.retrieval.scoring import Scoring, query_terms
from hardnet.retrieval.search import ImageFeatures, LocalShard
from hardnet.retrieval.store.segment import unpack_frames
from hardnet.retrieval.verification import Verification, Verified

if TYPE_CHECKING:
    from hardnet.retrieval.index import Index

SHORTLIST = 50
"""Photos that each photo is compared with: the most similar ones."""

LOOK_SIZE, LOOKED_AT = 512, 256
"""Longer side of photos whose pixels are looked at, and how many of them stay in memory."""

BORDER_FEATURES = 0.1
"""A border has no more than this share of a photo's features."""

AHEAD = 4
"""Photos that are read while others are compared; they are all that is in memory."""

Seen = tuple[NDArray[np.uint8], Query]


class Comparing:
    """The photos of an index, as it is now: of one snapshot, whatever is added meanwhile."""

    def __init__(self, index: Index, thresholds: Thresholds) -> None:
        self.index, self.thresholds = index, thresholds
        self.shard = LocalShard(index.snapshot)
        self._verification = Verification(shortlist=SHORTLIST)
        self._look = lru_cache(LOOKED_AT)(self._read)

    def plain(self, image: int) -> dict[int, Evidence]:
        """The photos that show what a photo shows, by number; nothing is read again."""
        features = self._features(image)
        return self._found(features, features.as_query(), None)

    def mirrored(self, image: int, query: Query) -> dict[int, Evidence]:
        """The same for a photo seen in a mirror; the query is of :func:`mirror_queries`."""
        features = self._features(image)
        mirror = np.array([[-1.0, 0.0, features.size[0] - 1], [0.0, 1.0, 0.0]])
        return self._found(features, query, mirror)

    def see_mirrored(self, image: int) -> Seen:
        """(N, S, S) what the features of a photo see in a mirror; a query of mirrored frames.

        Raises:
            HardnetError: the file cannot be read any more.
        """
        features, settings = self._features(image), self.index.settings
        path = path_of(self.shard.snapshot.name(image), self.index.folder)
        prepared = prepare(path, settings.max_size)
        if prepared.image_size != features.size:
            raise HardnetError(f"{path} was changed: add it to the index again")
        # A dominant direction, the x axis of a patch, turns with the mirror; an upright x axis
        # does not. So it is the patch's y axis that is turned round, or its x axis.
        seen = features.frames.copy()
        seen[:, :, :2] *= np.array([-1, 1] if settings.upright else [1, -1], np.float32)
        patches = cut_for(self.index.describer, prepared.grey, rescale(seen, prepared.factors))
        seen[:, 0] *= -1
        seen[:, 0, 2] += features.size[0] - 1
        return patches, replace(features.as_query(), frames=seen)

    def describe(self, patches: NDArray[np.uint8], query: Query) -> Query:
        """The query with words and signatures of its patches."""
        vocabulary = self.shard.snapshot.vocabulary
        if not len(patches):
            return query
        vectors = vocabulary.prepare(self.index.describer(patches))
        words = vocabulary.assign(vectors, self._verification.ma)
        return replace(query, words=words, signatures=vocabulary.signatures(vectors, words))

    def _features(self, image: int) -> ImageFeatures:
        (features,) = self.shard.features_of(np.array([image], np.int64))
        return features

    def _found(
        self, features: ImageFeatures, query: Query, before: NDArray[np.float64] | None
    ) -> dict[int, Evidence]:
        """Verified photos; ``before`` maps pixels of the photo to those of the query."""
        if not len(query):
            return {}
        scoring = Scoring()
        images, scores = self.shard.score(query_terms(query, scoring), scoring, SHORTLIST + 1)
        candidates = images[(images != features.image) & (scores > 0)][:SHORTLIST]
        verified = self.shard.verify(query, candidates, self._verification)
        found: dict[int, Evidence] = {}
        likely = [one for one in verified if one.inliers >= self.thresholds.fewest]
        others = self.shard.features_of(np.array([one.image for one in likely], np.int64))
        for one, other in zip(likely, others, strict=True):
            evidence = self._evidence(features, query, other, one, before)
            if may_be_copy(evidence, self.thresholds):
                laid = self._lay(features, other, _same_frame(features.size, other.size))
                if laid.alike >= self.thresholds.agree and laid.drift <= self.thresholds.drift:
                    found[one.image] = replace(evidence, agreed=True, **laid._asdict())
                    continue
            if not self._verification.is_sure(one):
                continue
            if is_edit(evidence, self.thresholds):
                laid = self._lay(features, other, evidence.transform)
                evidence = replace(evidence, **laid._asdict())
            crop = kind_of(evidence, self.thresholds) == "crop"
            bordered = crop and self._is_bordered(features, other, evidence)
            found[one.image] = replace(evidence, bordered=bordered)
        return found

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
        xy_b = unpack_frames(np.asarray(geometry), other.size)[:, :, 2]
        xy_a = query.frames[verified.pairs[:, 0], :, 2].astype(np.float64)
        transform = verified.transform
        assert transform is not None
        if before is not None:
            xy_a = moved(xy_a, inverse(before))
            shift = moved(before[None, :, 2], transform)[0]
            transform = np.column_stack([transform[:, :2] @ before[:, :2], shift])
        return measure(
            transform,
            (features.size, xy_a, features.frames[:, :, 2]),
            (other.size, xy_b, other.frames[:, :, 2]),
            self.thresholds.precise,
            verified.tentatives,
        )

    def _lay(self, a: ImageFeatures, b: ImageFeatures, transform: NDArray[np.float64]) -> Laid:
        """Two photos on each other, by a map from a to b; not alike if one cannot be read."""
        try:
            (one, to_one), (other, to_other) = self._look(a.image), self._look(b.image)
        except HardnetError:
            return Laid(0.0, 0.0)
        shown = to_other @ np.vstack([transform, (0, 0, 1)]) @ np.linalg.inv(to_one)
        return lay(to_grey(one), to_grey(other), shown[:2])

    def _is_bordered(self, a: ImageFeatures, b: ImageFeatures, found: Evidence) -> bool:
        """Whether the larger of two photos is the other with a border; it is read if it may be."""
        outer, inner, transform = b, a, found.transform
        if found.overlap[0] < found.overlap[1]:
            outer, inner, transform = a, b, inverse(found.transform)
        edges = moved(corners(inner.size), transform)
        hull = cv2.convexHull(edges.astype(np.float32))
        within = [cv2.pointPolygonTest(hull, xy.tolist(), False) > 0 for xy in outer.frames[..., 2]]
        if np.mean(within) < 1 - BORDER_FEATURES:
            return False
        try:
            small, to_small = self._look(outer.image)
        except HardnetError:
            return False
        return is_border(small, moved(edges, to_small[:2]))

    def _read(self, image: int) -> tuple[Pixels, NDArray[np.float64]]:
        """A photo as small as it is looked at, and the (3, 3) map of its pixels to these."""
        path = path_of(self.shard.snapshot.name(image), self.index.folder)
        small, (x, y) = shrink(to_colour(read_image(path)), LOOK_SIZE)
        return small, np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])


def _same_frame(a: Size, b: Size) -> NDArray[np.float64]:
    """The (2, 3) map that lays a photo on all of another."""
    x, y = b[0] / a[0], b[1] / a[1]
    return np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5]])


def mirror_queries(comparing: Comparing, images: Sequence[int]) -> Iterator[Query | HardnetError]:
    """What each photo asks as a mirror image; an error for one that cannot be read any more.

    The next photos are read meanwhile; describing keeps all cores busy by itself.
    """

    def see(image: int) -> Seen | HardnetError:
        try:
            return comparing.see_mirrored(image)
        except HardnetError as error:
            return error

    rest = iter(images)
    with ThreadPoolExecutor(2) as pool:
        waiting = deque(pool.submit(see, image) for image in islice(rest, AHEAD))
        try:
            while waiting:
                seen = waiting.popleft().result()
                yield seen if isinstance(seen, HardnetError) else comparing.describe(*seen)
                waiting.extend(pool.submit(see, image) for image in islice(rest, 1))
        finally:
            for one in waiting:
                one.cancel()
