from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.frames import from_similarity
from hardnet.retrieval.query import Query, Scoring, prepare_terms, query_terms, score_images
from hardnet.retrieval.search import LocalShard
from hardnet.retrieval.store.segment import IndexedImage, pack_frames
from hardnet.retrieval.store.snapshot import Snapshot, open_snapshot
from hardnet.retrieval.store.writer import Writer
from hardnet.retrieval.verification import Verification
from hardnet.retrieval.vocabulary import Vocabulary

WORDS, IMAGES = 30, 60
SCORINGS = [Scoring(method="bow", ma=1), Scoring(), Scoring(idf=False, normalise=False)]
PROTOTYPES = np.random.default_rng(7).integers(0, 2**64, (WORDS, 2), dtype=np.uint64)


def signatures_near(rng: np.random.Generator, words: np.ndarray) -> np.ndarray:
    """(..., 2) signatures some 20 bits from the prototype of their word."""
    flipped = rng.random((*words.shape, 2, 64)) < rng.uniform(0, 0.3, (*words.shape, 1, 1))
    noise = (flipped.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(-1, dtype=np.uint64)
    return PROTOTYPES[words] ^ noise


def random_image(number: int) -> IndexedImage:
    """The same for the same number; every ninth has no features."""
    rng = np.random.default_rng(number)
    count = 0 if number % 9 == 4 else int(rng.integers(1, 60))
    words = rng.integers(0, WORDS, count).astype(np.int32)
    frames = from_similarity(rng.uniform(20, 300, (count, 2)), rng.uniform(1, 5, count), 0.3)
    size = (320 + number, 330)
    return IndexedImage(
        f"{number:03d}.jpg", size, words, signatures_near(rng, words), pack_frames(frames, size)
    )


@pytest.fixture(scope="module")
def query() -> Query:
    rng = np.random.default_rng(100)
    words = np.stack([rng.permutation(WORDS)[:3] for _ in range(80)]).astype(np.int32)
    return Query(
        words=words,
        signatures=signatures_near(rng, words),
        frames=from_similarity(rng.uniform(20, 300, (80, 2)), 3.0),
        view=np.zeros(80, np.int32),
        view_sizes=((320, 320),),
        boxes=(None,),
    )


def build(folder: Path, numbers: list[int], *, segment_features: int) -> Snapshot:
    rng = np.random.default_rng(0)
    vocabulary = Vocabulary(
        words=rng.normal(size=(WORDS, 8)).astype(np.float32),
        mean=np.zeros(8, np.float32),
        projection=np.zeros((128, 8), np.float32),
        thresholds=np.zeros((WORDS, 128), np.float16),
        descriptor="test",
    )
    create = {"settings": {}, "vocabulary": vocabulary}
    with Writer(folder, create, segment_features=segment_features) as writer:  # type: ignore[arg-type]
        writer.add(random_image(number) for number in numbers)
        writer.commit()
    return open_snapshot(folder)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """All images in one segment."""
    folder = tmp_path_factory.mktemp("one") / "index"
    return build(folder, list(range(IMAGES)), segment_features=10**6)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    """The same images, in the same order, in several segments."""
    folder = tmp_path_factory.mktemp("many") / "index"
    snapshot = build(folder, list(range(IMAGES)), segment_features=300)
    assert len(snapshot.segments) > 3
    return snapshot


def same(a: tuple[np.ndarray, np.ndarray], b: tuple[np.ndarray, np.ndarray]) -> bool:
    """Whether two rankings are equal in every bit."""
    return a[0].tolist() == b[0].tolist() and a[1].tobytes() == b[1].tobytes()


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_the_ranking_is_that_of_the_sorted_scores(
    one: Snapshot, query: Query, scoring: Scoring
) -> None:
    terms, statistics = query_terms(query, scoring), one.statistics
    norms = statistics.bow_norms if scoring.method == "bow" else statistics.he_norms
    scores = score_images(
        prepare_terms(terms, statistics.idf, scoring), one.segments[0], 0, IMAGES, norms[0], None
    )
    expected = sorted(range(IMAGES), key=lambda image: (-scores[image], image))
    images, found = LocalShard(one).score(terms, scoring, None)
    assert images.tolist() == expected
    assert found.tobytes() == scores[expected].tobytes()
    assert found[0] > found[5] > found[-1] == 0  # the last ones have no features
    for limit in (0, 1, 7, IMAGES, 10 * IMAGES):
        assert same(LocalShard(one).score(terms, scoring, limit), (images[:limit], found[:limit]))


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_segments_pieces_and_threads_change_no_bit(
    one: Snapshot, many: Snapshot, query: Query, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    terms = query_terms(query, scoring)
    whole = LocalShard(one).score(terms, scoring, None)
    assert same(LocalShard(many).score(terms, scoring, None), whole)
    monkeypatch.setattr("hardnet.retrieval.search.POSTINGS_PER_PIECE", 100)
    threads = cv2.getNumThreads()
    try:
        for count in (1, 2, 5):
            cv2.setNumThreads(count)
            for snapshot in (one, many):
                assert same(LocalShard(snapshot).score(terms, scoring, None), whole)
                top = LocalShard(snapshot).score(terms, scoring, 9)
                assert same(top, (whole[0][:9], whole[1][:9]))
    finally:
        cv2.setNumThreads(threads)


def test_shards_together_are_the_whole(many: Snapshot, query: Query) -> None:
    terms = query_terms(query, Scoring())
    images, scores = LocalShard(many).score(terms, Scoring(), None)
    known = dict(zip(images.tolist(), scores.tolist(), strict=True))
    seen: list[int] = []
    for positions in ([0, 2], [1], list(range(3, len(many.segments)))):
        part = LocalShard(many, positions).score(terms, Scoring(), None)
        assert all(known[i] == s for i, s in zip(part[0].tolist(), part[1].tolist(), strict=True))
        seen += part[0].tolist()
    assert sorted(seen) == list(range(IMAGES))


@pytest.mark.parametrize("scoring", SCORINGS, ids=str)
def test_removed_images_are_gone_as_if_never_added(
    tmp_path: Path, query: Query, scoring: Scoring
) -> None:
    gone = [0, 3, 4, 17, 59]
    left = [number for number in range(IMAGES) if number not in gone]
    build(tmp_path / "a", list(range(IMAGES)), segment_features=300)
    with Writer(tmp_path / "a") as writer:
        writer.remove([f"{number:03d}.jpg" for number in gone])
        writer.commit()
    shards = [
        LocalShard(open_snapshot(tmp_path / "a")),
        LocalShard(build(tmp_path / "b", left, segment_features=10**6)),
    ]
    results = [shard.score(query_terms(query, scoring), scoring, None) for shard in shards]
    names = [shard.names(images) for shard, (images, _) in zip(shards, results, strict=True)]
    assert names[0] == names[1]
    assert len(names[0]) == len(left)
    assert results[0][1].tobytes() == results[1][1].tobytes()


def test_equal_scores_are_ranked_by_image_number(many: Snapshot, query: Query) -> None:
    nothing = Query(
        query.words[:0], query.signatures[:0], query.frames[:0], query.view[:0], ((1, 1),), (None,)
    )
    for scoring in SCORINGS:
        images, scores = LocalShard(many).score(query_terms(nothing, scoring), scoring, 10)
        assert images.tolist() == list(range(10))
        assert not scores.any()
    shard = LocalShard(many)
    assert shard.reliable(nothing, np.array([2, 1]), 32).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("h", [0, 20, 32, 128])
def test_reliable_counts_words_with_close_pairs(many: Snapshot, query: Query, h: int) -> None:
    images = np.random.default_rng(0).permutation(IMAGES)[:15]
    expected, pairs = [], []
    for number in images:
        image, close, shared = random_image(int(number)), [], []
        for words, signatures in zip(query.words, query.signatures, strict=True):
            for word, ours in zip(words, signatures, strict=True):
                for other, theirs in zip(image.words, image.signatures, strict=True):
                    if word == other:
                        shared.append(int(word))
                        if sum(int(x).bit_count() for x in ours ^ theirs) <= h:
                            close.append(int(word))
        expected.append([len(set(close)), len(set(shared))])
        pairs.append([len(close), len(shared)])
    assert LocalShard(many).reliable(query, images, h).tolist() == expected
    assert max(expected)[0] > 10 or h == 0
    assert max(pairs) > max(expected), "some words have several pairs"


def test_features_are_those_that_were_added(many: Snapshot) -> None:
    numbers = np.array([59, 0, 4, 31])
    for number, found in zip(numbers, LocalShard(many).features_of(numbers), strict=True):
        image = random_image(int(number))
        order = np.argsort(image.words, kind="stable")
        assert (found.image, found.size, len(found)) == (number, image.size, len(image))
        np.testing.assert_array_equal(found.words, image.words[order])
        np.testing.assert_array_equal(found.signatures, image.signatures[order])
        np.testing.assert_array_equal(pack_frames(found.frames, image.size), image.geometry[order])
    assert LocalShard(many).names(numbers) == ["059.jpg", "000.jpg", "004.jpg", "031.jpg"]


def test_verification_answers_in_order_with_numbers_of_the_index(many: Snapshot) -> None:
    number = 41
    (own,) = LocalShard(many).features_of(np.array([number]))
    itself = Query(
        own.words[:, None],
        own.signatures[:, None],
        own.frames,
        np.zeros(len(own), np.int32),
        (own.size,),
        (None,),
    )
    images = np.array([7, number, 3])
    found = LocalShard(many).verify(itself, images, Verification())
    assert [one.image for one in found] == images.tolist()
    assert found[1].inliers > 0.9 * len(own) > found[0].inliers
    np.testing.assert_allclose(found[1].transform, [[1, 0, 0], [0, 1, 0]], atol=0.05)
    none = np.zeros(0, np.int64)
    assert LocalShard(many).verify(itself, none, Verification()) == []
    assert LocalShard(many).features_of(none) == LocalShard(many).names(none) == []


def test_threads_may_share_a_shard(many: Snapshot, query: Query) -> None:
    shard, terms = LocalShard(many), query_terms(query, Scoring())
    alone = shard.score(terms, Scoring(), 20)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: shard.score(terms, Scoring(), 20), range(40)))
    assert all(same(answer, alone) for answer in answers)


def test_an_index_without_images(tmp_path: Path, query: Query) -> None:
    shard = LocalShard(build(tmp_path / "index", [], segment_features=300))
    for scoring in SCORINGS:
        images, scores = shard.score(query_terms(query, scoring), scoring, 5)
        assert (images.shape, scores.shape) == ((0,), (0,))
        assert (images.dtype, scores.dtype) == (np.int64, np.float32)
