"""Query expansion: what the first search found is added to the query of a second one.

Hamming query expansion (Tolias and Jegou 2014): words that many reliable images share are added to
the query, and all signatures of a word, those of the query and those of the images, become one by a
majority vote of their bits.

Average query expansion (Chum et al. 2007): the word vectors of the query and of the best verified
images are averaged. Of an image only those words count that lie in the query's region.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.query import BowTerms, HeTerms, bow_terms, he_terms
from hardnet.retrieval.vocabulary import pack_bits, unpack_bits

if TYPE_CHECKING:
    from hardnet.retrieval.query import Query
    from hardnet.retrieval.search import ImageFeatures
    from hardnet.retrieval.verification import Verified
    from hardnet.retrieval.vocabulary import Signatures


CHANCE_SHARES = 0.02, 0.05
"""Least and most of the share of common words that are taken to be close by chance."""
CLUMPING = 2.0
"""Photos of like texture have more chance words than the mean: the share is larger by this."""
FALSE_ALARMS = 1e-3
"""The share of unrelated photos that may be called reliable."""


def are_reliable(
    close: NDArray[np.int64], shared: NDArray[np.int64], least: int
) -> NDArray[np.bool_]:
    """(n,) which images of a shortlist are reliable: closer to the query than chance explains.

    Of the words that the query shares with each image, ``shared`` (n,), some have a close pair,
    ``close`` (n,). Words are counted and not pairs: a pattern that is repeated m times in one photo
    and n times in another makes m n pairs of a single word.

    By chance a share p of the words is close, so their number is at most Poisson with the mean
    p ``shared``. An image is reliable if it has the published number, ``least``, and chance gives
    as many to fewer than :data:`FALSE_ALARMS` of all images, by the bound of Chernoff:
    P(X >= k) <= exp(k - mean - k log(k / mean)).

    p is that of the images that are not reliable, times :data:`CLUMPING`, within the bounds of
    :data:`CHANCE_SHARES`: a shortlist may have no unrelated image at all.
    """
    share, most = CHANCE_SHARES
    while True:
        mean = share * shared
        ratio = np.maximum(close, 1) / np.maximum(mean, 1e-9)
        unlikely = close * np.log(ratio) - close + mean > -np.log(FALSE_ALARMS)
        reliable: NDArray[np.bool_] = (close >= least) & (close > mean) & unlikely
        others = max(int(shared[~reliable].sum()), 1)
        seen = min(CLUMPING * float(close[~reliable].sum()) / others, most)
        if seen <= share:
            return reliable
        share = seen  # fewer are reliable now: the others may show a larger share


def hqe_expansion(
    query: Query,
    reliable: Sequence[ImageFeatures],
    alpha: float = 0.5,
    seed: int = 0,
    ma: int | None = None,
) -> HeTerms:
    """The terms of the second search: one signature per word, each a feature of its own.

    ``reliable`` are features of images that :func:`are_reliable` chose, or that are verified by
    geometry; without any, the terms are the query's own. ``alpha`` is new words as a share of the
    query's, ``ma`` how many words of each query feature are used, and ``seed`` decides ties.
    """
    terms = he_terms(query, ma)
    if not reliable:
        return terms
    known = np.unique(terms.words)
    chosen = reliable_words([image.words for image in reliable], known, int(alpha * len(known)))
    words = np.concatenate([terms.words, *(image.words for image in reliable)])
    signatures = np.concatenate([terms.signatures, *(image.signatures for image in reliable)])
    keep = np.isin(words, chosen)
    keep[: len(terms)] = True
    joined, majority = join_signatures(words[keep], signatures[keep], seed)
    return HeTerms(joined, majority, np.arange(len(joined), dtype=np.int32))


def reliable_words(
    images: Sequence[NDArray[np.int32]], known: NDArray[np.int32], new: int
) -> NDArray[np.int32]:
    """The words of reliable images whose signatures are used.

    Words are ranked by how many images have them (the lower word first at equal counts) and taken
    from the top until ``new`` of them are unknown to the query. A word of the query that ranks
    lower than that keeps its own signatures only. Returns them best first.
    """
    owner = np.repeat(np.arange(len(images), dtype=np.int64), [len(image) for image in images])
    # A word counts once per image.
    both = np.sort(owner << 32 | np.concatenate(images))
    once = both[np.diff(both, prepend=-1) > 0] & 0xFFFFFFFF
    words, counts = np.unique(once.astype(np.int32), return_counts=True)
    ranked: NDArray[np.int32] = words[np.argsort(-counts, kind="stable")]
    unknown = np.flatnonzero(~np.isin(ranked, known))
    if len(unknown) < new:
        return ranked
    return ranked[: unknown[new - 1] + 1 if new else 0]


def join_signatures(
    words: NDArray[np.int32], signatures: Signatures, seed: int
) -> tuple[NDArray[np.int32], Signatures]:
    """One signature per word: each bit as most of the word's signatures have it.

    A tie is decided by chance: by the seed and by nothing but the word and the bit. Returns the
    different words (T,), ascending, and a signature (T, 2) for each.
    """
    order = np.argsort(words, kind="stable")
    joined, starts = np.unique(words[order], return_index=True)
    bits = unpack_bits(signatures[order]).view(np.uint8)
    ones = np.add.reduceat(bits, starts, axis=0, dtype=np.int32)
    twice, size = 2 * ones, np.diff(starts, append=len(order))[:, None]
    more, tie = pack_bits(twice > size), pack_bits(twice == size)
    return joined.astype(np.int32), more | (tie & _coins(joined, seed))


def _coins(words: NDArray[np.int32], seed: int) -> Signatures:
    """(T, 2) random bits of each word: the numbers of the SplitMix64 generator."""

    def mixed(state: Signatures) -> Signatures:
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return state ^ (state >> np.uint64(31))

    step = np.uint64(0x9E3779B97F4A7C15)
    place = np.uint64(2) * words.astype(np.uint64)[:, None] + np.arange(2, dtype=np.uint64)
    # Any seed is spread over all 64 bits first, so that seeds do not share their coins.
    start = mixed(np.array([seed % 2**64], np.uint64))
    return mixed(np.add(start, (place + np.uint64(1)) * step, dtype=np.uint64))


AVERAGED_IMAGES = 49
"""At most this number of images is averaged with the query: fewer than 50, as published."""


def average_expansion(query: Query, images: Sequence[ImageFeatures]) -> BowTerms:
    """The bag of words of the second search; ``images`` are what lies in the query's region.

    Each vector is a tf vector in the sense of the paper, how often a word occurs over how many
    words there are, so that an image of many features has no more say than another. Rare words are
    weighted up by the scoring. Without images, the words are those of the query.
    """
    bags = [query.words[:, 0], *(image.words for image in images)]
    bags = [bag for bag in bags if len(bag)]
    if len(bags) < 2:
        return bow_terms(query)
    words, where = np.unique(np.concatenate(bags), return_inverse=True)
    weights = np.concatenate([np.full(len(bag), 1 / len(bag)) for bag in bags])
    tf = np.bincount(where, weights, len(words)) / len(bags)
    return BowTerms(words.astype(np.int32), tf.astype(np.float32))


def features_in_region(query: Query, verified: Verified, image: ImageFeatures) -> ImageFeatures:
    """The features of an image that the inverse of its transform puts in the query's region."""
    assert verified.transform is not None
    linear, shift = verified.transform[:, :2], verified.transform[:, 2]
    x, y = np.linalg.solve(linear, (image.frames[:, :, 2] - shift).T)
    left, top, width, height = query.region(verified.view)
    keep = (x > left) & (x < left + width) & (y > top) & (y < top + height)
    parts = ("words", "signatures", "frames")
    return replace(image, **{part: getattr(image, part)[keep] for part in parts})
