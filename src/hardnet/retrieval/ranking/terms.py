"""What of a query is looked up in the inverted file: its terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.ranking.query import Query


@dataclass(frozen=True, eq=False)
class BowTerms:
    """The vector of a bag of words.

    Attributes:
        words: (T,) int32, each word once, ascending.
        tf: (T,) float32, how often each occurs.
    """

    words: NDArray[np.int32]
    tf: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.words)


@dataclass(frozen=True, eq=False)
class HeTerms:
    """The signatures of a Hamming embedding.

    Attributes:
        words: (T,) int32.
        signatures: (T, 2) uint64.
        feature: (T,) int32, ascending: the query feature of each term. The matches of all terms of
            one feature with one image are a burst.
    """

    words: NDArray[np.int32]
    signatures: NDArray[np.uint64]
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
