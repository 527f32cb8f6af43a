"""Scores of images, against explicit loops over every pair of features."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.query import (
    BowTerms,
    HeTerms,
    Query,
    Scoring,
    bow_terms,
    prepare_terms,
    query_terms,
    score_images,
)
from hardnet.retrieval.query import prepare_terms as prepare
from hardnet.retrieval.store.segment import IndexedImage, Segment, write_segment
from hardnet.retrieval.store.snapshot import Statistics, compute_statistics

BOW, HE = Scoring(method="bow"), Scoring(method="he")
FIRST_PASS = Scoring(idf=False, normalise=False)
FAR = exp(-((32 / 24) ** 2))
"""What a match at distance 32 weighs."""

Image = list[tuple[int, int]]
"""Word and signature of each feature."""


@dataclass
class Made:
    """A segment, its statistics, and what it was made of."""

    images: list[Image]
    words: int
    segment: Segment
    statistics: Statistics
    alive: np.ndarray | None

    def score(self, query: Query | BowTerms | HeTerms, scoring: Scoring) -> np.ndarray:
        terms = query_terms(query, scoring) if isinstance(query, Query) else query
        norms = self.statistics.bow_norms if scoring.method == "bow" else self.statistics.he_norms
        idf = self.statistics.idf
        lookup = prepare_terms(terms, idf, scoring)
        images = self.segment.images
        return score_images(lookup, self.segment, 0, images, norms[0], self.alive)


def split(signatures: list[int]) -> np.ndarray:
    """(n, 2) uint64 of numbers of 128 bits."""
    halves = [(number & (2**64 - 1), number >> 64) for number in signatures]
    return np.array(halves, np.uint64).reshape(-1, 2)


def make(path: Path, images: list[Image], words: int, alive: np.ndarray | None = None) -> Made:
    indexed = [
        IndexedImage(
            name=str(number),
            size=(640, 480),
            words=np.array([word for word, _ in image], np.int32),
            signatures=split([signature for _, signature in image]),
            geometry=np.zeros((len(image), 3), np.uint16),
        )
        for number, image in enumerate(images)
    ]
    write_segment(path, indexed, words)
    segment = Segment(path)
    return Made(images, words, segment, compute_statistics([segment], [alive], words), alive)


def make_query(features: list[Image]) -> Query:
    """A query whose features have the given words and signatures."""
    ma = len(features[0]) if features else 3
    return Query(
        words=np.array([[word for word, _ in f] for f in features], np.int32).reshape(-1, ma),
        signatures=split([s for f in features for _, s in f]).reshape(-1, ma, 2),
        frames=np.zeros((len(features), 2, 3), np.float32),
        view=np.zeros(len(features), np.int32),
        view_sizes=((640, 480),),
        boxes=(None,),
    )


def bits(count: int) -> int:
    """A signature with this many bits set, in both halves."""
    return sum(1 << (i * 37 % 128) for i in range(count))


def reference(made: Made, features: list[Image], scoring: Scoring) -> list[float]:
    """What :mod:`hardnet.retrieval.query` says, as loops over all pairs."""
    alive = [True] * len(made.images) if made.alive is None else made.alive.tolist()
    living = [image for image, lives in zip(made.images, alive, strict=True) if lives]
    idf = {}
    for word in range(made.words):
        count = sum(any(w == word for w, _ in image) for image in living)
        idf[word] = (log(len(living) / count) if count else 0.0) if scoring.idf else 1.0
    scores = []
    for image, lives in zip(made.images, alive, strict=True):
        if not lives:
            scores.append(-np.inf)
            continue
        total, norm = 0.0, 1.0
        if scoring.method == "bow":
            ours = [w for f in features for w, _ in f[: scoring.ma] if w in idf]
            theirs = [w for w, _ in image]
            total = sum(ours.count(w) * theirs.count(w) * idf[w] ** 2 for w in set(ours))
            if scoring.normalise:
                norm = sqrt(sum((ours.count(w) * idf[w]) ** 2 for w in set(ours)))
                norm *= sqrt(sum((theirs.count(w) * idf[w]) ** 2 for w in set(theirs)))
        else:
            for feature in features:
                burst = []
                for word, signature in feature[: scoring.ma]:
                    for other, its in image:
                        h = (signature ^ its).bit_count()
                        if word == other and h <= scoring.h_t:
                            burst.append(idf[word] ** 2 * exp(-((h / scoring.sigma) ** 2)))
                if burst:
                    total += sum(burst) / (sqrt(len(burst)) if scoring.burstiness else 1)
            if scoring.normalise:
                norm = sqrt(sum(idf[w] ** 2 for w in {w for w, _ in image}))
        scores.append(total / norm if norm else 0.0)
    return scores


def random_features(rng: np.random.Generator, count: int, words: int, ma: int = 1) -> list[Image]:
    """Features whose signatures are often, but not always, close to each other."""
    features = []
    for _ in range(count):
        chosen = rng.choice(words, ma, replace=False)
        features.append(
            [
                (int(w), bits(60) ^ sum(1 << int(b) for b in rng.choice(128, 28, False)))
                for w in chosen
            ]
        )
    return features


def random_images(seed: int, words: int) -> list[Image]:
    rng = np.random.default_rng(seed)
    return [
        [feature[0] for feature in random_features(rng, int(rng.integers(0, 25)), words)]
        for _ in range(30)
    ]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Image 0 has word 0 twice and word 1; image 1 has words 1 and 2; image 2 has nothing."""
    images: list[Image] = [[(0, bits(0)), (0, bits(32)), (1, bits(10))], [(1, 0), (2, 0)], []]
    return make(tmp_path_factory.mktemp("three") / "s", images, words=4)


L3, L15 = log(3), log(3 / 2)
"""idf of words 0 and 2, in one of three images; idf of word 1, in two of them."""


def test_bag_of_words_by_hand(three: Made) -> None:
    query = make_query([[(0, 0)], [(1, 0)]])
    length, lengths = sqrt(L3**2 + L15**2), [sqrt((2 * L3) ** 2 + L15**2), sqrt(L3**2 + L15**2)]
    expected = [(2 * L3**2 + L15**2) / length / lengths[0], L15**2 / length / lengths[1], 0]
    np.testing.assert_allclose(three.score(query, BOW), expected, rtol=1e-6)
    raw = Scoring(method="bow", idf=False, normalise=False)
    assert three.score(query, raw).tolist() == [3, 1, 0]


def test_an_image_is_most_similar_to_itself(three: Made) -> None:
    query = make_query([[(0, 0)], [(0, 0)], [(1, 0)]])
    assert three.score(query, BOW)[0] == pytest.approx(1, abs=1e-6)


def test_hamming_embedding_by_hand(three: Made) -> None:
    # One feature that matches both of word 0, at distances 0 and 32, and word 1 at distance 10.
    query = make_query([[(0, bits(0)), (1, bits(0)), (3, bits(0))]])
    norm = sqrt(L3**2 + L15**2)
    burst = L3**2 * (1 + FAR) + L15**2 * exp(-((10 / 24) ** 2))
    expected = [burst / sqrt(3) / norm, L15**2 / norm, 0]
    np.testing.assert_allclose(three.score(query, HE), expected, rtol=1e-6)
    plain = three.score(query, Scoring(burstiness=False))
    np.testing.assert_allclose(plain, [burst / norm, L15**2 / norm, 0], rtol=1e-6)
    single = three.score(query, Scoring(ma=1))
    np.testing.assert_allclose(single, [L3**2 * (1 + FAR) / sqrt(2) / norm, 0, 0], rtol=1e-6)
    first = three.score(query, FIRST_PASS)
    np.testing.assert_allclose(
        first, [(1 + FAR + exp(-((10 / 24) ** 2))) / sqrt(3), 1, 0], rtol=1e-6
    )


@pytest.mark.parametrize(("h", "matches"), [(55, True), (56, True), (57, False), (128, False)])
def test_the_threshold_is_part_of_the_match(three: Made, h: int, matches: bool) -> None:
    query = make_query([[(2, bits(h))]])
    expected = exp(-((h / 24) ** 2)) if matches else 0
    assert three.score(query, FIRST_PASS)[1] == pytest.approx(expected)


def test_bursts_are_per_query_feature(three: Made) -> None:
    # Two features with the same signature are two bursts of two, not one of four.
    query = make_query([[(0, 0)], [(0, 0)]])
    assert three.score(query, FIRST_PASS)[0] == pytest.approx(2 * (1 + FAR) / sqrt(2))


@pytest.mark.parametrize("method", ["bow", "he"])
def test_words_without_postings_and_outside_the_vocabulary(three: Made, method: str) -> None:
    scoring = Scoring(method=method)  # type: ignore[arg-type]
    known = three.score(make_query([[(0, 0)]]), scoring)
    strange = [[(0, 0)], [(3, 0)], [(4, 0)], [(-1, 0)], [(2**31 - 1, 0)]]
    np.testing.assert_allclose(three.score(make_query(strange), scoring), known, rtol=1e-6)
    assert three.score(make_query(strange[1:]), scoring).tolist() == [0, 0, 0]


@pytest.mark.parametrize("method", ["bow", "he"])
def test_an_empty_query_matches_nothing(three: Made, method: str) -> None:
    assert three.score(make_query([]), Scoring(method=method)).tolist() == [0, 0, 0]  # type: ignore[arg-type]


def test_words_that_all_images_have_tell_nothing(tmp_path: Path) -> None:
    made = make(tmp_path / "s", [[(0, 0)], [(0, 0)]], words=2)
    for scoring in (BOW, HE):
        assert made.score(make_query([[(0, 0)]]), scoring).tolist() == [0, 0]
    assert made.score(make_query([[(0, 0)]]), FIRST_PASS).tolist() == [1, 1]


CASES = [
    Scoring(method="bow", ma=1),
    Scoring(method="bow", ma=3),
    Scoring(method="bow", idf=False, normalise=False),
    HE,
    Scoring(ma=1),
    Scoring(burstiness=False),
    Scoring(normalise=False),
    FIRST_PASS,
    Scoring(h_t=60, sigma=20),
]


@pytest.mark.parametrize("scoring", CASES, ids=str)
def test_scores_are_those_of_the_loops(tmp_path: Path, scoring: Scoring) -> None:
    for seed, count in ((0, 40), (1, 400)):  # the second has more features than the index
        images = random_images(seed, words=12)
        alive = np.random.default_rng(seed).random(30) < 0.7 if seed else None
        made = make(tmp_path / str(seed), images, 12, alive)
        features = random_features(np.random.default_rng(9), count, 12, ma=3)
        expected = reference(made, features, scoring)
        found = made.score(make_query(features), scoring)
        assert found.dtype == np.float32
        assert np.count_nonzero(found > 0) > 10
        np.testing.assert_allclose(found, expected, rtol=2e-6)
        if alive is not None:
            assert (found[~alive] == -np.inf).all()


@pytest.mark.parametrize("scoring", [BOW, HE], ids=str)
def test_a_part_of_the_images_has_the_very_same_scores(tmp_path: Path, scoring: Scoring) -> None:
    made = make(tmp_path / "s", random_images(3, 12), 12)
    query = make_query(random_features(np.random.default_rng(4), 60, 12, ma=3))
    whole = made.score(query, scoring)
    lookup = prepare(query_terms(query, scoring), made.statistics.idf, scoring)
    norms = made.statistics.bow_norms if scoring is BOW else made.statistics.he_norms
    for edges in ([0, 1, 2, 30], [0, 17, 17, 30], list(range(31))):
        parts = [
            score_images(lookup, made.segment, a, b, norms[0], None) for a, b in pairwise(edges)
        ]
        assert np.concatenate(parts).tobytes() == whole.tobytes()


def test_terms_with_weights_that_are_no_counts(three: Made) -> None:
    # Average query expansion makes such; the cosine does not see a common factor.
    query = make_query([[(0, 0)], [(1, 0)]])
    terms = bow_terms(query)
    scaled = BowTerms(terms.words, terms.tf * np.float32(0.25))
    np.testing.assert_allclose(three.score(scaled, BOW), three.score(query, BOW), rtol=1e-6)


def test_mistakes(three: Made) -> None:
    for arguments, message in (
        ({"method": "tf"}, "method 'tf'"),
        ({"ma": 0}, "ma is 0"),
        ({"sigma": 0.0}, "sigma is 0"),
        ({"idf": False}, "normalise"),
    ):
        with pytest.raises(HardnetError, match=message):
            Scoring(**arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="BowTerms"):
        three.score(BowTerms(np.zeros(1, np.int32), np.ones(1, np.float32)), HE)


def test_terms_from_another_process_need_no_other_kernel() -> None:
    """What Ray hands over is read-only; kernels are compiled once per kind of array."""
    words, signatures = np.arange(4, dtype=np.int32), np.zeros((4, 2), np.uint64)
    feature, tf = np.arange(4, dtype=np.int32), np.ones(4, np.float32)
    for array in (words, signatures, feature, tf):
        array.flags.writeable = False
    idf = np.ones(4, np.float32)
    he = prepare_terms(HeTerms(words, signatures, feature), idf, HE)
    assert he.matching is not None
    bow = prepare_terms(BowTerms(words, tf), idf, BOW)
    for array in (he.words, he.weights, *he.matching[:3], bow.words, bow.weights):
        assert array.flags.writeable
        assert array.flags.c_contiguous
