from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.frames import from_similarity
from hardnet.retrieval.query import bow_terms, he_terms, make_query
from hardnet.retrieval.vocabulary import Vocabulary

SIDE = 8


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    rng = np.random.default_rng(0)
    words = rng.normal(size=(20, SIDE)).astype(np.float32)
    words /= np.linalg.norm(words, axis=1, keepdims=True)
    return Vocabulary(
        words=words,
        mean=np.zeros(SIDE, np.float32),
        projection=rng.normal(size=(128, SIDE)).astype(np.float32),
        thresholds=np.zeros((20, 128), np.float16),
        descriptor="test",
    )


def features(xy: list[tuple[float, float]], seed: int = 0, descriptor: str = "test") -> Features:
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(len(xy), SIDE)).astype(np.float32)
    frames = from_similarity(np.array(xy).reshape(-1, 2), 2.0)
    return Features(frames, np.ones(len(xy), np.float32), vectors, (100, 80), descriptor)


def test_words_and_signatures_are_those_of_the_vocabulary(vocabulary: Vocabulary) -> None:
    one = features([(1, 2), (3, 4), (5, 6)])
    query = make_query(one, vocabulary, ma=2)
    prepared = vocabulary.prepare(one.descriptors)
    for i in range(3):
        similarity = vocabulary.words @ prepared[i]
        assert query.words[i].tolist() == np.argsort(-similarity)[:2].tolist()
    np.testing.assert_array_equal(query.signatures, vocabulary.signatures(prepared, query.words))
    np.testing.assert_array_equal(query.frames, one.frames)
    assert query.view.tolist() == [0, 0, 0]
    assert (query.view_sizes, query.boxes, len(query)) == (((100, 80),), (None,), 3)


def test_only_centres_strictly_inside_the_box_are_kept(vocabulary: Vocabulary) -> None:
    places = [(10, 10), (10.5, 10.5), (20, 15), (29.9, 39.9), (30, 20), (15, 40), (9, 9)]
    one = features(places)
    query = make_query(one, vocabulary, box=(10, 10, 20, 30))
    np.testing.assert_array_equal(query.frames, one.frames[[1, 2, 3]])
    whole = make_query(one, vocabulary)
    np.testing.assert_array_equal(query.words, whole.words[[1, 2, 3]])
    assert query.boxes == ((10.0, 10.0, 20.0, 30.0),)


def test_several_images_are_the_views_of_one_query(vocabulary: Vocabulary) -> None:
    a, b, none = features([(1, 1), (2, 2)]), features([(3, 3), (50, 50)], seed=1), features([])
    query = make_query([a, none, b], vocabulary, box=[None, None, (0, 0, 10, 10)])
    assert query.view.tolist() == [0, 0, 2]
    np.testing.assert_array_equal(query.frames, np.concatenate([a.frames, b.frames[:1]]))
    assert query.boxes == (None, None, (0.0, 0.0, 10.0, 10.0))


def test_no_features_and_nothing_in_the_box(vocabulary: Vocabulary) -> None:
    for query in (
        make_query(features([]), vocabulary),
        make_query(features([(1, 1)]), vocabulary, box=(50, 50, 5, 5)),
    ):
        assert query.words.shape == (0, 3)
        assert query.signatures.shape == (0, 3, 2)
        assert query.frames.shape == (0, 2, 3)
        assert len(bow_terms(query)) == len(he_terms(query)) == 0


def test_more_words_asked_for_than_there_are(vocabulary: Vocabulary) -> None:
    assert make_query(features([(1, 1)]), vocabulary, ma=50).words.shape == (1, 20)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"features": []}, "at least one image"),
        ({"features": features([(1, 1)], descriptor="rootsift")}, "rootsift.*test"),
        ({"ma": 0}, "ma is 0"),
        ({"box": (1, 2, 0, 4)}, "box 1,2,0,4"),
        ({"box": (1, 2, float("nan"), 4)}, "box 1,2,nan,4"),
        ({"box": [(1, 2, 3, 4), None]}, "2 boxes for 1 query image"),
    ],
)
def test_mistakes(vocabulary: Vocabulary, arguments: dict, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        make_query(**{"features": features([(1, 1)]), "vocabulary": vocabulary} | arguments)


def test_terms(vocabulary: Vocabulary) -> None:
    query = make_query(features([(i, i) for i in range(30)]), vocabulary)
    bag = bow_terms(query)
    expected = {w: query.words[:, 0].tolist().count(w) for w in set(query.words[:, 0].tolist())}
    assert bag.words.tolist() == sorted(expected)
    assert dict(zip(bag.words.tolist(), bag.tf.tolist(), strict=True)) == expected
    assert bow_terms(query, ma=3).tf.sum() == 90
    terms = he_terms(query, ma=2)
    assert terms.feature.tolist() == [i for i in range(30) for _ in range(2)]
    assert terms.words.tolist() == query.words[:, :2].ravel().tolist()
    np.testing.assert_array_equal(terms.signatures[3], query.signatures[1, 1])
    assert len(he_terms(query)) == 90


def test_a_query_of_other_weights_is_refused(vocabulary: Vocabulary) -> None:
    known = replace(vocabulary, provenance={"weights": "a" * 64})
    one = features([(1, 2)])
    assert len(make_query(replace(one, weights="a" * 64), known)) == 1
    assert len(make_query(one, known)) == 1  # of a file that does not say it
    with pytest.raises(HardnetError, match=r"by test .weights bbb.* index by test .weights aaa"):
        make_query(replace(one, weights="b" * 64), known)
