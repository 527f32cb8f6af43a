"""A part of an index that answers queries: here, or on another machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.frames import Frames
from hardnet.retrieval.query import Query, Terms, he_terms
from hardnet.retrieval.scoring import Lookup, Scoring, prepare_terms, score_images
from hardnet.threads import map_threads

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot
    from hardnet.retrieval.store.statistics import Statistics
    from hardnet.retrieval.verification import Verification, Verified


POSTINGS_PER_PIECE = 1_000_000
"""Work below this, some two milliseconds, is not worth another thread."""
LIST_POSTINGS = 64
"""To find a list in memory takes as long as to read so many postings."""

Ranking = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Image numbers (n,) and their scores (n,)."""


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """What the index knows of one image.

    Attributes:
        image: its number.
        words: (n,) int32, ascending.
        signatures: (n, 2) uint64.
        frames: (n, 2, 3) in pixels of the image, rounded as the index stores them.
        size: (width, height) of the image.
    """

    image: int
    words: NDArray[np.int32]
    signatures: NDArray[np.uint64]
    frames: Frames
    size: tuple[int, int]

    def __len__(self) -> int:
        return len(self.words)


class Shard(Protocol):
    """What a search asks of an index or of a part of it. Images have their numbers in the index."""

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """The ``limit`` best images (None: all), best first, equal scores by image number."""

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        """Spatial verification of each of ``images``, in their order."""

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        """(n,) correspondences of the query with each image within Hamming distance ``h``."""

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        """The features of each of ``images``, in their order."""

    def names(self, images: NDArray[np.int64]) -> list[str]:
        """The name of each of ``images``, in their order."""


class LocalShard:
    """Segments of a snapshot, mapped into this process; any number of threads may ask."""

    def __init__(
        self,
        snapshot: Snapshot,
        positions: Sequence[int] | None = None,
        statistics: Statistics | None = None,
    ) -> None:
        """Take up some segments.

        Args:
            snapshot: of the index.
            positions: which of its segments; None for all.
            statistics: of the whole index; None for those of the snapshot.
        """
        self.snapshot = snapshot
        self.positions = tuple(range(len(snapshot.segments)) if positions is None else positions)
        self.statistics = snapshot.statistics if statistics is None else statistics

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """The ``limit`` best images (None: all), best first, equal scores by image number.

        Images that match nothing score 0 and are in the ranking all the same.
        """
        from hardnet.retrieval.scoring import best, order

        lookup = prepare_terms(terms, self.statistics.idf, scoring)
        bow = scoring.method == "bow"
        norms = self.statistics.bow_norms if bow else self.statistics.he_norms

        def piece(part: tuple[int, int, int]) -> Ranking:
            position, first, last = part
            segment, alive = self.snapshot.segments[position], self.snapshot.alive[position]
            scores = score_images(lookup, segment, first, last, norms[position], alive)
            kept = best(scores, len(scores) if limit is None else limit)
            return kept + (self.snapshot.bases[position] + first), scores[kept]

        parts = self._pieces(lookup)
        if self._work(lookup, self.positions) > POSTINGS_PER_PIECE:
            rankings = map_threads(piece, parts)
        else:
            rankings = [piece(part) for part in parts]
        images = np.concatenate([np.zeros(0, np.int64), *(images for images, _ in rankings)])
        scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in rankings)])
        return order(images, scores, limit)

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        """Spatial verification of each of ``images``, in their order."""
        from hardnet.retrieval.verification import verify_parts

        snapshot = self.snapshot
        parts = [
            (snapshot.segments[position], snapshot.bases[position], local)
            for position, local in self._by_segment(images)
        ]
        found = verify_parts(query, parts, verification)
        return [found[image] for image in images.tolist()]

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        """(n,) correspondences of the query with each image within Hamming distance ``h``."""
        from hardnet.retrieval.kernels import readonly
        from hardnet.retrieval.scoring import count_close

        terms = he_terms(query)
        ascending = np.argsort(terms.words, kind="stable")
        words, signatures = terms.words[ascending], terms.signatures[ascending]
        found: dict[int, int] = {}
        for position, local in self._by_segment(images):
            segment, base = self.snapshot.segments[position], self.snapshot.bases[position]
            counts = np.zeros(len(local), np.int64)
            count_close(
                words,
                signatures,
                h,
                local,
                readonly(segment.offsets),
                readonly(segment.image_ids),
                readonly(segment.signatures),
                readonly(segment.forward_offsets),
                readonly(segment.forward_words),
                counts,
            )
            found |= zip((base + local).tolist(), counts.tolist(), strict=True)
        return np.array([found[int(image)] for image in images], np.int64)

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        """The features of each of ``images``, in their order."""
        from hardnet.retrieval.store.compact_frames import unpack

        found, packed, sizes = [], [np.zeros((0, 3), np.uint16)], []
        for image in images.tolist():
            position, local = self.snapshot.locate(image)
            segment = self.snapshot.segments[position]
            postings, size = segment.postings_of(local), segment.size(local)
            found.append((image, segment.words_of(local), segment.signatures[postings], size))
            packed.append(segment.geometry[postings])
            sizes.append(size)
        # All frames at once: for those of one image alone, the calls take longer than the work.
        counts = [len(rows) for rows in packed]
        each = np.repeat(np.array(sizes, np.int64).reshape(-1, 2), counts[1:], axis=0)
        frames, ends = unpack(np.concatenate(packed), each), np.cumsum(counts)
        return [
            ImageFeatures(image, words, signatures, frames[first:last], size)
            for (image, words, signatures, size), (first, last) in zip(
                found, pairwise(ends.tolist()), strict=True
            )
        ]

    def names(self, images: NDArray[np.int64]) -> list[str]:
        """The name of each of ``images``, in their order."""
        return [self.snapshot.name(int(image)) for image in images]

    def _by_segment(self, images: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
        """Positions of segments, and which of their images are among ``images``."""
        numbers = np.asarray(images, np.int64)
        bases = np.asarray(self.snapshot.bases, np.int64)
        position = np.searchsorted(bases, numbers, side="right") - 1
        return [(int(one), numbers[position == one] - bases[one]) for one in np.unique(position)]

    def _work(self, lookup: Lookup, positions: Sequence[int]) -> int:
        """About how long a query takes, in postings: all words are taken as equally frequent."""
        features: int = sum(self.snapshot.segments[position].features for position in positions)
        each = features // max(len(self.statistics.idf), 1) + LIST_POSTINGS * len(positions)
        return each * len(lookup.words)

    def _pieces(self, lookup: Lookup) -> list[tuple[int, int, int]]:
        """Ranges of images (position of the segment, first, last) that share the work.

        What the pieces are changes no score. There are no more than needed: each finds where the
        lists of all words begin, which takes a tenth of the time of a whole segment.
        """
        wanted = max(cv2.getNumThreads(), 1)
        share = max(-(-self._work(lookup, self.positions) // wanted), POSTINGS_PER_PIECE)
        pieces = []
        for position in self.positions:
            images = self.snapshot.segments[position].images
            count = max(min(-(-self._work(lookup, [position]) // share), images), 1)
            edges = np.linspace(0, images, count + 1).astype(int).tolist()
            pieces += [(position, first, last) for first, last in pairwise(edges)]
        return pieces
