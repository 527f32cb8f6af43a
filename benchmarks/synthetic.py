"""Simulated collections of any size that an index cannot tell from photos.

Images are sampled from four statistics of a real index: how many features an image has, how
unevenly words are used, how often a word is repeated within an image, and which share of the
features of one word have close signatures.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import comb, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.frames import from_similarity
from hardnet.retrieval.query import Query, Scoring
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import Snapshot
from hardnet.retrieval.vocabulary import BITS, Vocabulary, distances, pack_bits

TICKETS = 1 << 22
"""A word is drawn by picking one of this many tickets; popular words have more tickets."""
NOISES = 1 << 17
"""Number of different signature disturbances."""
SIZE = (1024, 768)


@dataclass(frozen=True, eq=False)
class Shape:
    """The statistics of a real index.

    (I,) features of its images; (W,) how often its words are used, 1 on average; (R,) how often
    each word of each image occurs in it; ``close``: the share of pairs of features of one word,
    from two images, that match.
    """

    features: NDArray[np.int64]
    popularity: NDArray[np.float64]
    repeats: NDArray[np.int64]
    close: float

    def facts(self) -> dict[str, Any]:
        """Summary numbers, as JSON values."""
        often = np.sort(self.popularity)[::-1]
        return {
            "images": len(self.features),
            "features_mean": float(self.features.mean()),
            "features_std": float(self.features.std()),
            "words": len(self.popularity),
            "share_of_top_percent_of_words": float(often[: len(often) // 100].sum() / often.sum()),
            "words_never_used": float((self.popularity == 0).mean()),
            "repeats_mean": float(self.repeats.mean()),
            "matching_pairs": self.close,
        }


def measure_shape(snapshot: Snapshot, pairs: int = 200_000, seed: int = 0) -> Shape:
    """Measure a real index."""
    rng = np.random.default_rng(seed)
    features, repeats = [], []
    used = np.zeros(snapshot.words)
    near = total = 0
    for segment in snapshot.segments:
        postings = segment.offsets[1:].astype(np.int64) - segment.offsets[:-1]
        used += postings
        for image in range(segment.images):
            words = segment.words_of(image)
            features.append(len(words))
            repeats.append(np.unique(words, return_counts=True)[1])
        word = np.repeat(np.arange(snapshot.words), postings)
        one = rng.integers(0, segment.features, pairs)
        low, high = segment.offsets[word[one]], segment.offsets[word[one] + 1]
        other = low + (rng.random(pairs) * (high - low)).astype(np.int64)
        apart = segment.image_ids[one] != segment.image_ids[other]
        h = distances(segment.signatures[one[apart]], segment.signatures[other[apart]])
        near, total = near + int((h <= Scoring().h_t).sum()), total + len(h)
    counts = np.array(features, np.int64)
    return Shape(counts[counts > 0], used / used.mean(), np.concatenate(repeats), near / total)


class Collection:
    """Images by number, reproducible by seed.

    Each of the ``words`` is as popular as one of the real words; an image has ``features`` on
    average.
    """

    def __init__(self, shape: Shape, words: int, features: float, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.words, self.seed = words, seed
        self.counts = np.maximum(shape.features * (features / shape.features.mean()), 1).round()
        self.repeats = shape.repeats
        popularity = rng.choice(shape.popularity, words)
        self.tickets = rng.choice(words, TICKETS, p=popularity / popularity.sum()).astype(np.int32)
        self.prototypes = rng.integers(0, 2**64, (words, 2), dtype=np.uint64)
        flipped = rng.random((NOISES, BITS), np.float32) < flip_rate(shape.close)
        self.noises = pack_bits(flipped)

    def vocabulary(self) -> Vocabulary:
        """Words of the right number and size; nothing is ever assigned to them."""
        rng = np.random.default_rng(self.seed)
        return Vocabulary(
            words=rng.standard_normal((self.words, BITS), np.float32),
            mean=np.zeros(BITS, np.float32),
            projection=np.eye(BITS, dtype=np.float32),
            thresholds=np.zeros((self.words, BITS), np.float16),
            descriptor="synthetic",
        )

    def images(self, first: int, last: int) -> list[IndexedImage]:
        """The images of these numbers."""
        rng = np.random.default_rng([self.seed, first])
        counts = rng.choice(self.counts, last - first).astype(np.int64)
        edges = np.concatenate([[0], np.cumsum(counts)])
        total = int(edges[-1])
        repeats = rng.choice(self.repeats, total)
        runs = self.tickets[rng.integers(0, TICKETS, total)]
        enough = int(np.searchsorted(np.cumsum(repeats), total)) + 1
        words = np.repeat(runs[:enough], repeats[:enough])[:total]
        signatures = self._signatures(rng, words)
        geometry = rng.integers(0, 2**16, (total, 3), dtype=np.uint16)
        return [
            IndexedImage(f"{first + i:08d}.jpg", SIZE, words[a:b], signatures[a:b], geometry[a:b])
            for i, (a, b) in enumerate(pairwise(edges))
        ]

    def query(self, image: IndexedImage, ma: int) -> Query:
        """Another photo of the same subject: half of its signatures are slightly disturbed.

        The other words of a feature, beyond the first, are drawn like those of images.
        """
        rng = np.random.default_rng([self.seed, len(image), 1])
        others = self.tickets[rng.integers(0, TICKETS, (len(image), ma - 1))]
        words = np.column_stack([image.words, others]).astype(np.int32)
        signatures = self._signatures(rng, words)
        seen = rng.random(len(image)) < 0.5
        little = pack_bits(rng.random((len(image), BITS)) < 0.15)
        signatures[seen, 0] = (image.signatures ^ little)[seen]
        count = len(image)
        return Query(
            words=words,
            signatures=signatures,
            frames=from_similarity(rng.uniform(0, SIZE, (count, 2)), rng.uniform(1, 8, count)),
            view=np.zeros(len(image), np.int32),
            view_sizes=(SIZE,),
            boxes=(None,),
        )

    def _signatures(self, rng: np.random.Generator, words: NDArray[np.int32]) -> NDArray[np.uint64]:
        """(..., 2) a disturbance of the signature that stands for each word."""
        return self.prototypes[words] ^ self.noises[rng.integers(0, NOISES, words.shape)]


def flip_rate(close: float) -> float:
    """How often each bit flips, if this share of the pairs of two disturbances is to match.

    Two bits differ if one of the two flipped: at flip rate p, with rate q = 2 p (1 - p).
    """
    low, high = 0.0, 0.5
    for _ in range(40):
        q = (low + high) / 2
        few = (comb(BITS, h) * q**h * (1 - q) ** (BITS - h) for h in range(Scoring().h_t + 1))
        low, high = (q, high) if sum(few) > close else (low, q)
    return (1 - sqrt(1 - 2 * q)) / 2
