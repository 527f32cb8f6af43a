"""Hamming query expansion: cases computed by hand, and explicit loops."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from hardnet.retrieval.expansion import (
    are_reliable,
    hqe_expansion,
    join_signatures,
    reliable_words,
)
from hardnet.retrieval.query import Query
from hardnet.retrieval.search import ImageFeatures

HIGH = 1 << 127


def signature(value: int) -> tuple[int, int]:
    """Bit b of a signature is bit b of a number."""
    return value & (2**64 - 1), value >> 64


def value_of(row: np.ndarray) -> int:
    return int(row[0]) | int(row[1]) << 64


def signatures_of(values: Sequence[int]) -> np.ndarray:
    return np.array([signature(value) for value in values], np.uint64).reshape(-1, 2)


def query_of(words: list[list[int]], values: list[list[int]]) -> Query:
    count, ma = np.shape(words)
    return Query(
        np.array(words, np.int32),
        np.array([[signature(v) for v in row] for row in values], np.uint64).reshape(count, ma, 2),
        np.zeros((count, 2, 3), np.float32),
        np.zeros(count, np.int32),
        ((100, 80),),
        (None,),
    )


def image_of(words: Sequence[int], values: Sequence[int]) -> ImageFeatures:
    frames = np.zeros((len(words), 2, 3), np.float32)
    return ImageFeatures(0, np.asarray(words, np.int32), signatures_of(values), frames, (640, 480))


def test_majority_by_hand() -> None:
    words = np.array([5, 2, 5, 5], np.int32)
    joined, majority = join_signatures(
        words, signatures_of([0b0110 | HIGH, 0b1010, 0b0011, 0b0101 | HIGH]), seed=0
    )
    assert joined.tolist() == [2, 5]
    assert [value_of(row) for row in majority] == [0b1010, 0b0111 | HIGH]


def test_ties_depend_on_seed_and_word_alone() -> None:
    values = signatures_of([0, 2**128 - 1])
    two = np.array([3, 3], np.int32)
    (first,) = join_signatures(two, values, seed=0)[1]
    assert 40 < value_of(first).bit_count() < 88
    (again,) = join_signatures(two, values[::-1], seed=0)[1]
    (other_seed,) = join_signatures(two, values, seed=1)[1]
    (other_word,) = join_signatures(two + 1, values, seed=0)[1]
    assert value_of(first) == value_of(again)
    for other in (other_seed, other_word):
        assert 40 < (value_of(first) ^ value_of(other)).bit_count() < 88
    # Other words do not matter.
    more = join_signatures(np.array([1, 3, 9, 3]), signatures_of([0, 0, 0, 2**128 - 1]), seed=0)
    assert value_of(more[1][1]) == value_of(first)
    # A tie of one bit leaves the others alone, and chance is fair over words and seeds.
    halves = [
        value_of(join_signatures(np.array([w, w]), signatures_of([6, 2]), seed)[1][0])
        for w in range(40)
        for seed in range(10)
    ]
    assert set(halves) == {2, 6}
    assert 150 < halves.count(6) < 250


def test_words_are_ranked_by_images_not_by_features() -> None:
    images = [np.array(w, np.int32) for w in ([1, 1, 1, 4, 7], [4, 7, 8], [7, 9])]
    known = np.array([4], np.int32)
    # 7 in three images, 4 in two, then 1, 8 and 9 in one each.
    assert reliable_words(images, known, 1).tolist() == [7]
    assert reliable_words(images, known, 2).tolist() == [7, 4, 1]
    assert reliable_words(images, known, 4).tolist() == [7, 4, 1, 8, 9]
    assert reliable_words(images, known, 9).tolist() == [7, 4, 1, 8, 9]
    assert reliable_words(images, known, 0).tolist() == []


def test_by_hand() -> None:
    query = query_of([[1, 2], [1, 3], [4, 5]], [[0b111, 0b001], [0b100, 0b010], [0b1, 0b1]])
    images = [
        image_of([1, 6, 6, 8], [0b110, 0b1000, 0b1001, 0]),
        image_of([1, 6, 9], [0b010, 0b1010, 0b1]),
        image_of([6, 8, 4], [0b0001, 0b1000, 0b111]),
    ]
    # Different words of the query: 1 2 3 4 5. Two new ones: 6 (in three images) and 8 (in two, as
    # word 1). Word 4 is in one image only and ranks below: it keeps its own signature.
    terms = hqe_expansion(query, images, alpha=0.5)
    assert terms.words.tolist() == [1, 2, 3, 4, 5, 6, 8]
    values = [value_of(row) for row in terms.signatures]
    # Word 1: 111, 100, 110, 010: the middle and the upper bit have 3 of 4, the lowest 1.
    assert values[:5] == [0b110, 0b001, 0b010, 0b1, 0b1]
    assert values[5] & 0b0110 == 0  # 1000 1001 1010 0001: the top bit 3 of 4, the lowest a tie
    assert values[5] & 0b1000
    assert values[6] in (0, 0b1000)
    assert terms.feature.tolist() == list(range(7))
    # One word per feature: 1 and 4 are the words, and one new word fits.
    alone = hqe_expansion(query, images, alpha=0.5, ma=1)
    assert alone.words.tolist() == [1, 4, 6]


def test_without_reliable_images_the_query_stays_as_it_is() -> None:
    query = query_of([[1, 2], [1, 3]], [[7, 1], [4, 2]])
    terms = hqe_expansion(query, [])
    assert terms.words.tolist() == [1, 2, 1, 3]
    assert [value_of(row) for row in terms.signatures] == [7, 1, 4, 2]
    assert terms.feature.tolist() == [0, 0, 1, 1]


def test_a_query_without_features_and_an_image_without() -> None:
    nothing = query_of([[0, 0]], [[0, 0]])
    nothing = Query(
        nothing.words[:0],
        nothing.signatures[:0],
        nothing.frames[:0],
        nothing.view[:0],
        nothing.view_sizes,
        nothing.boxes,
    )
    assert len(hqe_expansion(nothing, [image_of([1], [1])])) == 0
    query = query_of([[1, 2]], [[7, 1]])
    terms = hqe_expansion(query, [image_of([], [])])
    assert terms.words.tolist() == [1, 2]
    assert [value_of(row) for row in terms.signatures] == [7, 1]


@pytest.mark.parametrize("alpha", [0.2, 0.5, 3.0])
def test_equal_to_explicit_loops(alpha: float) -> None:
    rng = np.random.default_rng(5)

    def values(*shape: int) -> list:
        low = rng.integers(0, 2**63, shape, np.int64).astype(object)
        return (low * 2**65 + rng.integers(0, 2**63, shape, np.int64).astype(object)).tolist()

    query = query_of(rng.integers(0, 60, (20, 2)).tolist(), values(20, 2))
    images = [image_of(rng.integers(0, 100, 50), values(50)) for _ in range(6)]
    terms = hqe_expansion(query, images, alpha=alpha, seed=2)

    known = {int(word) for word in query.words.ravel()}
    documents: Counter[int] = Counter()
    for image in images:
        documents.update({int(word) for word in image.words})
    chosen: list[int] = []
    for word, _ in sorted(documents.items(), key=lambda item: (-item[1], item[0])):
        if len([w for w in chosen if w not in known]) == int(alpha * len(known)):
            break
        chosen.append(word)
    votes: dict[int, list[int]] = {}
    for row, signs in zip(query.words, query.signatures, strict=True):
        for word, sign in zip(row, signs, strict=True):
            votes.setdefault(int(word), []).append(value_of(sign))
    for image in images:
        for word, sign in zip(image.words, image.signatures, strict=True):
            if word in chosen:
                votes.setdefault(int(word), []).append(value_of(sign))
    assert terms.words.tolist() == sorted(votes)
    for word, got in zip(terms.words.tolist(), terms.signatures, strict=True):
        for bit in range(128):
            ones = sum(value >> bit & 1 for value in votes[word])
            if 2 * ones != len(votes[word]):
                assert value_of(got) >> bit & 1 == (2 * ones > len(votes[word]))


def test_reliable_by_hand() -> None:
    """50 common words: one is close by chance. e^(k - 1) / k^k is 0.0172 for k = 5, 0.00318 for 6
    and 0.00049 for 7: of a thousand images, less than one has seven."""
    close = np.array([4, 5, 6, 7, 8, *[0] * 95])
    shared = np.full(100, 50)
    assert np.flatnonzero(are_reliable(close, shared, 5)).tolist() == [3, 4]
    assert np.flatnonzero(are_reliable(close, shared, 8)).tolist() == [4]
    # Of fewer words in common five are enough, of more not even eight.
    assert np.flatnonzero(are_reliable(close, np.full(100, 10), 5)).tolist() == [1, 2, 3, 4]
    assert not are_reliable(close, np.full(100, 100), 5).any()
    assert not are_reliable(np.zeros(3, int), np.zeros(3, int), 5).any()
    assert are_reliable(np.zeros(0, int), np.zeros(0, int), 5).shape == (0,)


def reliable_by_loops(close: list[int], shared: list[int], least: int) -> list[bool]:
    share = 0.02
    for _ in range(1000):
        answers = []
        for k, n in zip(close, shared, strict=True):
            mean = share * n
            enough = k >= least and k > mean
            answers.append(enough and math.exp(k - mean - k * math.log(k / mean)) < 1e-3)
        no = [i for i, answer in enumerate(answers) if not answer]
        seen = sum(close[i] for i in no) / max(sum(shared[i] for i in no), 1)
        if min(2 * seen, 0.05) <= share:
            break
        share = min(2 * seen, 0.05)
    return answers


@pytest.mark.parametrize("share", [0.002, 0.012, 0.03, 0.2])
def test_reliable_images_equal_explicit_loops(share: float) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        shared = rng.integers(1, 300, 40)
        close = rng.binomial(shared, share * rng.uniform(0, 2, 40))
        close[:8] = rng.binomial(shared[:8], 0.3)
        expected = reliable_by_loops(close.tolist(), shared.tolist(), 5)
        assert are_reliable(close, shared, 5).tolist() == expected


@pytest.mark.parametrize("words", [1024, 8192, 65_536])
@pytest.mark.parametrize("features", [400, 2000])
def test_chance_makes_no_image_reliable(words: int, features: int) -> None:
    """Unrelated images, whose words and signatures are drawn at random, and one related image."""
    rng = np.random.default_rng(words + features)
    known = np.zeros(words, bool)
    known[rng.integers(0, words, 3 * features)] = True  # three words per feature
    share = 0.012  # of the words in common that are close by chance
    close, shared = [], []
    for _ in range(3000):
        drawn = np.zeros(words, bool)
        drawn[rng.integers(0, words, features)] = True
        common = int((known & drawn).sum())
        shared.append(common)
        close.append(rng.binomial(common, share))
    related = features // 8, features // 3
    found = np.array(
        [
            are_reliable(
                np.append(close[first : first + 99], related[0]),
                np.append(shared[first : first + 99], related[1]),
                5,
            )
            for first in range(0, 2970, 99)
        ]
    )
    assert found[:, :99].mean() < 1e-3
    assert found[:, 99].all()
    if words == 1024:
        assert np.mean(np.array(close) >= 5) > 0.1, "the published number alone is no rule here"


def test_a_repeated_pattern_is_one_word() -> None:
    """Photos whose only common word is a pattern have many pairs, and are not reliable."""
    assert not are_reliable(np.array([1, 0, 0]), np.array([60, 60, 60]), 5).any()


def test_a_shortlist_of_nothing_but_the_object() -> None:
    """Weak ones among them are not taken for what chance gives."""
    close, shared = np.array([60, 50, 40, 30, 25, 20, 9, 8, 7, 6]), np.full(10, 120)
    assert are_reliable(close, shared, 5)[:6].all()
