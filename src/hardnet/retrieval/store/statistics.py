"""What scoring must know about a whole index: how rare each word is, how long each image vector is.

The writer computes it at every commit, so that a query reads it and never derives it. It counts
the images that are alive, and no others, whatever segments they lie in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hardnet.threads import map_threads

Alive = NDArray[np.bool_] | None
"""(I,) which images of a segment are in the index; None for all."""

IMAGES_PER_PIECE = 4096
"""So many images are one thread's piece of work."""


class ForwardLists(Protocol):
    """What is read of a segment here; see :class:`~hardnet.retrieval.store.segment.Segment`."""

    @property
    def images(self) -> int:
        """How many images it holds, removed ones too."""

    @property
    def document_counts(self) -> NDArray[np.uint32]:
        """(K,) in how many of its images each word occurs, removed ones too."""

    @property
    def forward_offsets(self) -> NDArray[np.uint32]:
        """(I + 1,) where the words of each image begin."""

    @property
    def forward_words(self) -> NDArray[np.uint8]:
        """(P, 3) words of the images, little endian, ascending within an image."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts and norms over the images that are alive.

    Attributes:
        images: how many there are.
        document_counts: (K,) uint32, in how many of them each word occurs.
        idf: (K,) float32, log(images / count); 0 for words that occur nowhere.
        bow_norms: per segment (I,) float32, length of the vector of tf x idf.
        he_norms: per segment (I,) float32, length of the vector of idf of the image's words, each
            taken once.
    """

    images: int
    document_counts: NDArray[np.uint32]
    idf: NDArray[np.float32]
    bow_norms: tuple[NDArray[np.float32], ...]
    he_norms: tuple[NDArray[np.float32], ...]


def compute(segments: Sequence[ForwardLists], alive: Sequence[Alive], words: int) -> Statistics:
    """The statistics of an index.

    Removing an image and never having added it give the same numbers. The norms of removed images
    are computed like any other and mean nothing.

    Args:
        segments: all of the index.
        alive: for each, which of its images count.
        words: size of the vocabulary, K.
    """
    counts = np.zeros(words, np.int64)
    images = 0
    for segment, living in zip(segments, alive, strict=True):
        counts += segment.document_counts
        images += segment.images
        if living is not None:
            removed = np.flatnonzero(~living)
            counts -= _document_counts(segment, removed, words)
            images -= len(removed)
    document_counts = counts.astype(np.uint32)
    idf = inverse_document_frequency(images, document_counts)
    norms = [_norms(segment, idf) for segment in segments]
    return Statistics(
        images,
        document_counts,
        idf,
        tuple(bow for bow, _ in norms),
        tuple(he for _, he in norms),
    )


def inverse_document_frequency(
    images: int, document_counts: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """(K,) log(images / count); 0 for words that occur in no image."""
    seen = document_counts > 0
    idf = np.zeros(len(document_counts), np.float32)
    idf[seen] = np.log(images / document_counts[seen].astype(np.float64))
    return idf


def _document_counts(
    segment: ForwardLists, images: NDArray[np.int64], words: int
) -> NDArray[np.int64]:
    """(K,) in how many of ``images`` each word occurs."""
    from hardnet.retrieval.kernels import readonly
    from hardnet.retrieval.store.statistics_kernels import count_documents

    counts = np.zeros(words, np.int64)
    offsets, forward = readonly(segment.forward_offsets), readonly(segment.forward_words)
    count_documents(images, offsets, forward, counts)
    return counts


def _norms(
    segment: ForwardLists, idf: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(I,) lengths of the images' vectors: bag of words, Hamming embedding."""
    from hardnet.retrieval.kernels import readonly
    from hardnet.retrieval.store.statistics_kernels import measure_images

    offsets, words = readonly(segment.forward_offsets), readonly(segment.forward_words)
    bow, he = (np.zeros(segment.images, np.float32) for _ in range(2))

    def piece(first: int) -> None:
        last = min(first + IMAGES_PER_PIECE, segment.images)
        measure_images(first, last, offsets, words, idf, bow, he)

    map_threads(piece, range(0, segment.images, IMAGES_PER_PIECE))
    return bow, he
