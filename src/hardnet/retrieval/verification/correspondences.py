"""Correspondences: pairs of a query feature and a feature of an image that may be the same.

They share a word, and their signatures are close. Every feature of an image has one word, so that
a pair occurs once, however many words a query feature has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.ranking.terms import he_terms

if TYPE_CHECKING:
    from hardnet.retrieval.ranking.query import Query
    from hardnet.retrieval.store.segment import Segment


@dataclass(frozen=True, eq=False)
class Correspondences:
    """Those of one query with several images, one image after the other.

    Attributes:
        bounds: (n + 1,) int64, where those of each image begin.
        features: (m,) int64, query features, ascending within an image.
        postings: (m,) int64, ascending within a query feature.
        places: (m,) int64, the place of the posting in the image's own list.
        distances: (m,) int64, Hamming distances.
    """

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


def word_table(query: Query, vocabulary_size: int, ma: int) -> WordTable:
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
    table: WordTable, segment: Segment, images: NDArray[np.int64], h_t: int, limit: int
) -> Correspondences:
    """Correspondences of a query with some images of a segment, on the caller's thread.

    Args:
        table: the query.
        segment: where the images are.
        images: (n,) numbers of the images in the segment.
        h_t: the largest Hamming distance; 128 if the word is enough.
        limit: an image keeps at most so many, those of the smallest distance; at equal distance
            the lower word, query feature and posting come first.
    """
    from hardnet.retrieval.compiled import readonly
    from hardnet.retrieval.verification.correspondence_kernels import gather

    bounds, found = gather(
        np.ascontiguousarray(images, np.int64),
        readonly(segment.offsets),
        readonly(segment.image_ids),
        readonly(segment.signatures),
        readonly(segment.forward_offsets),
        readonly(segment.forward_words),
        table.present,
        table.before,
        table.starts,
        table.features,
        table.signatures,
        table.query_features,
        h_t,
        limit,
    )
    return Correspondences(bounds, *np.ascontiguousarray(found.T))
