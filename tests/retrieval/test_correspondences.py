"""Correspondences, against explicit loops over every pair of features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardnet.retrieval.query import Query
from hardnet.retrieval.store.segment import IndexedImage, Segment, write_segment
from hardnet.retrieval.verification import NO_LIMIT, word_table
from hardnet.retrieval.verification import find_correspondences as plain

WORDS = 200


@pytest.fixture(params=["numpy", "machine code"])
def find_correspondences(request: pytest.FixtureRequest):
    if request.param == "numpy":
        return plain
    pytest.importorskip("numba")
    from hardnet.retrieval.compiled.kernels import TWINS

    return TWINS[plain]


def image_of(words: list[int] | np.ndarray, signatures: np.ndarray, name: str) -> IndexedImage:
    geometry = np.zeros((len(words), 3), np.uint16)
    return IndexedImage(name, (640, 480), np.asarray(words, np.int32), signatures, geometry)


def query_of(words: np.ndarray, signatures: np.ndarray) -> Query:
    count = len(words)
    frames, view = np.zeros((count, 2, 3), np.float32), np.zeros(count, np.int32)
    return Query(words.astype(np.int32), signatures, frames, view, ((640, 480),), (None,))


def random_signatures(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 2**64, (*shape, 2), np.uint64)


def segment_of(path: Path, images: list[IndexedImage]) -> Segment:
    write_segment(path / "segment", images, WORDS)
    return Segment(path / "segment")


@pytest.fixture
def made(tmp_path: Path) -> tuple[Query, Segment]:
    """Images of few words, so that words repeat; one image has no features, one has one word."""
    rng = np.random.default_rng(0)
    sizes = [30, 0, 45, 12, 40]
    images = []
    for number, size in enumerate(sizes):
        words = rng.integers(0, 40, size) if number != 3 else np.full(size, 7)
        images.append(image_of(words, random_signatures(rng, size), str(number)))
    words = np.stack([rng.permutation(40)[:3] for _ in range(25)])
    words[:4, 0] = 7
    words[4] = WORDS - 1, 63, 64
    return query_of(words, random_signatures(rng, 25, 3)), segment_of(tmp_path, images)


def reference(query: Query, segment: Segment, image: int, h_t: int, ma: int) -> list[tuple]:
    """(distance, word, query feature, posting) of every pair within ``h_t``."""
    found = []
    for feature in range(len(query)):
        for a in range(ma):
            word = int(query.words[feature, a])
            for posting in range(int(segment.offsets[word]), int(segment.offsets[word + 1])):
                bits = [
                    (int(query.signatures[feature, a, k]) ^ int(segment.signatures[posting, k]))
                    for k in range(2)
                ]
                h = sum(value.bit_count() for value in bits)
                if segment.image_ids[posting] == image and h <= h_t:
                    found.append((h, word, feature, posting))
    return sorted(found)


@pytest.mark.parametrize(("h_t", "ma"), [(128, 1), (128, 3), (64, 3), (60, 2), (0, 3)])
@pytest.mark.parametrize("limit", [10_000, 20, 1, 0])
def test_equal_to_explicit_loops(
    find_correspondences, made: tuple[Query, Segment], h_t: int, ma: int, limit: int
) -> None:
    query, segment = made
    images = np.array([4, 0, 3, 1, 2])  # in any order
    found = find_correspondences(word_table(query, WORDS, ma), segment, images, h_t, limit)
    assert found.bounds[0] == 0
    assert found.bounds[-1] == len(found.features)
    for at, image in enumerate(images):
        expected = sorted(
            (feature, posting, h)
            for h, _, feature, posting in reference(query, segment, image, h_t, ma)[:limit]
        )
        mine = slice(found.bounds[at], found.bounds[at + 1])
        got = zip(found.features[mine], found.postings[mine], found.distances[mine], strict=True)
        assert list(got) == expected
        own = segment.postings_of(int(image))
        np.testing.assert_array_equal(own[found.places[mine]], found.postings[mine])


def test_some_pairs_lie_within_the_thresholds_of_the_test(made: tuple[Query, Segment]) -> None:
    query, segment = made
    counts = [len(reference(query, segment, 2, h_t, 3)) for h_t in (0, 60, 64, 128)]
    assert counts[0] == 0
    assert 5 < counts[1] < counts[2] < counts[3]


def test_a_repeated_structure_keeps_the_nearest_pairs(find_correspondences, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    signatures = random_signatures(rng, 300)
    segment = segment_of(tmp_path, [image_of(np.full(300, 5), signatures, "wall")])
    query = query_of(np.full((300, 1), 5), signatures[:, None])
    table = word_table(query, WORDS, 1)
    found = find_correspondences(table, segment, np.array([0]), 128, 350)
    assert len(found.features) == 350
    # Each feature with itself first, then the 50 nearest of the 90,000.
    assert (found.distances == 0).sum() == 300
    everything = find_correspondences(table, segment, np.array([0]), 128, 90_000)
    assert len(everything.features) == 90_000
    assert sorted(found.distances) == sorted(everything.distances)[:350]


def test_unknown_words_have_no_correspondences(
    find_correspondences, made: tuple[Query, Segment]
) -> None:
    query, segment = made
    images = np.arange(5)
    beyond = replace(query, words=np.where(query.words == query.words[0, 0], 5000, query.words))
    known = replace(query, words=np.where(query.words == query.words[0, 0], WORDS, query.words))
    first, second = (
        find_correspondences(word_table(one, WORDS), segment, images, 128, NO_LIMIT)
        for one in (beyond, known)
    )
    whole = find_correspondences(word_table(query, WORDS), segment, images, 128, NO_LIMIT)
    assert first.totals.tolist() == second.totals.tolist()
    assert first.totals.sum() < whole.totals.sum()


def test_a_query_without_features_and_no_images(
    find_correspondences, made: tuple[Query, Segment]
) -> None:
    query, segment = made
    nothing = query_of(np.zeros((0, 3)), np.zeros((0, 3, 2), np.uint64))
    found = find_correspondences(word_table(nothing, WORDS, 3), segment, np.arange(5), 128, 10)
    assert found.bounds.tolist() == [0] * 6
    table = word_table(query, WORDS, 3)
    found = find_correspondences(table, segment, np.zeros(0, np.int64), 128, 10)
    assert found.bounds.tolist() == [0]
    assert len(found.features) == 0
