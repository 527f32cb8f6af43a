"""Average query expansion: cases computed by hand, and an explicit loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hardnet.frames import from_similarity
from hardnet.retrieval.expansion import average_expansion, features_in_region
from hardnet.retrieval.query import Query
from hardnet.retrieval.search import ImageFeatures
from hardnet.retrieval.verification import Verified

Box = tuple[float, float, float, float]
NO_PAIRS = np.zeros((0, 2), np.int64)


def query_of(words: Sequence[int], box: Box | None = None, views: int = 1) -> Query:
    count = len(words)
    # The second word of a feature is not for a bag of words.
    both = np.stack([np.asarray(words, np.int32), np.full(count, 99, np.int32)], 1)
    return Query(
        both.reshape(-1, 2),
        np.zeros((count, 2, 2), np.uint64),
        np.zeros((count, 2, 3), np.float32),
        np.zeros(count, np.int32),
        ((100, 80),) * views,
        (box,) * views,
    )


def image_of(number: int, words: Sequence[int], places: Sequence[tuple[float, float]]):
    frames = from_similarity(np.array(places, np.float64).reshape(-1, 2), 2.0)
    signatures = np.zeros((len(words), 2), np.uint64)
    return ImageFeatures(number, np.asarray(words, np.int32), signatures, frames, (640, 480))


def verified(number: int, transform: np.ndarray, view: int = 0) -> Verified:
    return Verified(number, 5, transform, view, NO_PAIRS)


TWICE = np.array([[2.0, 0, 10], [0, 2, 20]])
"""The query at twice its size, 10 to the right and 20 down."""


def in_query_region(query: Query, found: Verified, image: ImageFeatures) -> np.ndarray:
    """Which features are kept; those of the image have different words."""
    return np.isin(image.words, features_in_region(query, found, image).words)


def test_which_features_lie_in_the_region() -> None:
    places = [(10, 20), (8.9, 20), (9.1, 20), (209, 179), (208.9, 178.9), (100, 100)]
    image = image_of(0, range(6), places)
    whole = in_query_region(query_of([1]), verified(0, TWICE), image)
    # The query's border is half a pixel outside: x from 9 to 209, y from 19 to 179.
    assert whole.tolist() == [True, False, True, False, True, True]
    boxed = query_of([1], box=(40, 30, 10, 20))  # x from 90 to 110, y from 80 to 120
    assert in_query_region(boxed, verified(0, TWICE), image).tolist() == [False] * 5 + [True]


def test_features_in_the_region() -> None:
    image = image_of(3, [5, 6, 7], [(50, 50), (300, 300), (60, 60)])
    kept = features_in_region(query_of([1]), verified(3, TWICE), image)
    assert kept.image == 3
    assert kept.words.tolist() == [5, 7]
    np.testing.assert_array_equal(kept.frames, image.frames[[0, 2]])
    assert len(kept.signatures) == 2


def test_a_turned_region() -> None:
    quarter = np.array([[0.0, -1, 100], [1, 0, 0]])  # (x, y) -> (100 - y, x)
    image = image_of(0, [1, 2], [(90, 70), (90, 101)])
    assert in_query_region(query_of([1]), verified(0, quarter), image).tolist() == [True, False]


def test_the_region_is_that_of_the_view() -> None:
    query = query_of([1], views=2)
    query = Query(
        query.words, query.signatures, query.frames, query.view, ((100, 80), (10, 10)), (None, None)
    )
    image = image_of(0, [1], [(50, 50)])
    assert in_query_region(query, verified(0, np.eye(2, 3), view=0), image).all()
    assert not in_query_region(query, verified(0, np.eye(2, 3), view=1), image).any()


def test_by_hand() -> None:
    inside, outside = (100.0, 100.0), (400.0, 400.0)
    first = image_of(7, [3, 3, 5, 8], [inside, inside, inside, outside])
    second = image_of(4, [5, 9], [inside, inside])
    query = query_of([3, 4])
    regions = [features_in_region(query, verified(0, TWICE), one) for one in (first, second)]
    terms = average_expansion(query, regions)
    # Query: 3 and 4, 1/2 each. First: 3 has 2/3, 5 has 1/3. Second: 5 and 9, 1/2 each.
    assert terms.words.tolist() == [3, 4, 5, 9]
    expected = np.array([1 / 2 + 2 / 3, 1 / 2, 1 / 3 + 1 / 2, 1 / 2]) / 3
    np.testing.assert_allclose(terms.tf, expected, rtol=1e-6)
    assert terms.words.dtype == np.int32
    assert terms.tf.dtype == np.float32


def test_images_with_nothing_in_the_region_do_not_count() -> None:
    query, far = query_of([6, 2, 6]), image_of(1, [8, 8], [(600, 400), (600, 401)])
    for images in ([], [features_in_region(query, verified(1, TWICE), far)]):
        terms = average_expansion(query, images)
        assert terms.words.tolist() == [2, 6]
        assert terms.tf.tolist() == [1, 2]


def test_equal_to_a_loop() -> None:
    rng = np.random.default_rng(0)
    images = []
    for number in range(20):
        count = int(rng.integers(1, 30))
        places = rng.uniform(0, 250, (count, 2))
        images.append(image_of(number, rng.integers(0, 40, count), places))
    query = query_of(rng.integers(0, 40, 25))
    regions = [features_in_region(query, verified(0, TWICE), image) for image in images]
    terms = average_expansion(query, regions)

    total = np.zeros(40)
    vectors = 1
    for word in query.words[:, 0]:
        total[word] += 1 / 25
    for image in images:
        kept = []
        for word, frame in zip(image.words, image.frames, strict=True):
            x, y = (frame[0, 2] - 10) / 2, (frame[1, 2] - 20) / 2
            if -0.5 < x < 99.5 and -0.5 < y < 79.5:
                kept.append(word)
        vectors += len(kept) > 0
        for word in kept:
            total[word] += 1 / len(kept)
    np.testing.assert_array_equal(terms.words, np.flatnonzero(total))
    np.testing.assert_allclose(terms.tf, total[total > 0] / vectors, rtol=1e-5)
