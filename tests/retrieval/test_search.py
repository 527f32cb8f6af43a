"""The order of the stages and of the hits, with a shard whose answers are made up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.frames import from_similarity
from hardnet.retrieval.query import BowTerms, HeTerms, Query, Scoring, region_of
from hardnet.retrieval.search import DEFAULT_MODE, MODES, ImageFeatures, Mode, ranking, search
from hardnet.retrieval.verification import Verification, Verified

SHIFT = np.array([[1.0, 0, 10], [0, 1, 20]])


class MadeUp:
    """Five images; answers are looked up, calls are noted."""

    def __init__(self, passes, inliers=None, close=None) -> None:
        self.passes, self.inliers, self.close = list(passes), inliers or {}, close or {}
        self.shared = 0
        self.calls: list[tuple] = []
        self.missing: list[str] = []

    def score(self, terms, scoring, limit):
        self.calls.append(("score", type(terms).__name__, terms, scoring, limit))
        scores = np.array(self.passes.pop(0), np.float32)
        order = np.argsort(-scores, kind="stable")[:limit]
        return order.astype(np.int64), scores[order]

    def verify(self, query, images, verification):
        self.calls.append(("verify", images.tolist()))
        none = np.zeros((0, 2), np.int64)
        return [
            Verified(i, n, SHIFT, 0, none) if (n := self.inliers.get(i, 0)) else
            Verified(i, 0, None, 0, none)
            for i in images.tolist()
        ]  # fmt: skip

    def reliable(self, query, images, h):
        self.calls.append(("reliable", images.tolist(), h))
        close = [(self.close.get(i, 0), self.shared) for i in images.tolist()]
        return np.array(close, np.int64).reshape(-1, 2)

    def features_of(self, images):
        self.calls.append(("features", images.tolist()))
        frames = from_similarity(np.array([[25.0, 35], [25, 35]]), 2.0)
        return [
            ImageFeatures(i, np.array([100 + i, 200], np.int32), np.ones((2, 2), np.uint64),
                          frames, (100, 80))
            for i in images.tolist()
        ]  # fmt: skip

    def names(self, images):
        return [f"photo{i}.jpg" for i in images.tolist()]

    def stages(self) -> list[str]:
        return [call[0] for call in self.calls]


@pytest.fixture
def query() -> Query:
    return Query(
        words=np.array([[1, 2, 3], [4, 5, 6]], np.int32),
        signatures=np.zeros((2, 3, 2), np.uint64),
        frames=from_similarity(np.array([[5.0, 5], [20, 20]]), 2.0),
        view=np.zeros(2, np.int32),
        view_sizes=((40, 30),),
        boxes=((4.0, 3.0, 20.0, 19.0),),
    )


def test_scores_only(query: Query) -> None:
    shard = MadeUp([[0.1, 0.5, 0.0, 0.3, 0.5]])
    found = search(query, shard, "bow", k=10)
    # Image 2 has nothing in common with the query: it is no hit.
    assert [hit.image for hit in found] == [1, 4, 3, 0]
    assert [hit.path for hit in found[:2]] == ["photo1.jpg", "photo4.jpg"]
    assert found[2].score == pytest.approx(0.3)
    assert found[0].transform is None
    assert found[0].inliers == 0
    assert shard.stages() == ["score"]
    kind, terms, scoring, limit = shard.calls[0][1:]
    assert kind == "BowTerms"
    assert terms.words.tolist() == [1, 4]
    assert (scoring.method, scoring.ma, limit) == ("bow", 1, 10)
    assert list(found.seconds) == ["score", "rank"]
    assert len(search(query, MadeUp([[0.1, 0.5, 0.0, 0.3, 0.5]]), "bow", k=2)) == 2


def test_verified_images_come_first(query: Query) -> None:
    shard = MadeUp([[0.4, 0.9, 0.8, 0.3, 0.5]], inliers={0: 6, 3: 12})
    found = search(query, shard, "he+sv", k=4)
    assert [(hit.image, hit.inliers) for hit in found] == [(3, 12), (0, 6), (1, 0), (2, 0)]
    assert shard.calls[0][1] == "HeTerms"
    assert shard.calls[0][4] == 100, "the shortlist, though only four are asked for"
    assert shard.calls[1] == ("verify", [1, 2, 4, 0, 3])
    np.testing.assert_array_equal(found[0].transform, SHIFT)
    np.testing.assert_array_equal(found[0].region, [(14, 23), (34, 23), (34, 42), (14, 42)])
    assert found[2].region is None
    assert [hit.verified for hit in found] == [True, False, False, False], "6 may be chance"
    assert list(found.seconds) == ["score", "verify", "rank"]


@pytest.mark.parametrize(
    ("sure", "looked_at"),
    [
        ({1: 30}, [6]),  # found, then nothing in the last four: the others wait no longer
        ({3: 30}, [6, 3]),  # one of the last four: more may follow
        ({}, [6, 3]),  # nothing yet
        ({1: 5}, [6, 3]),  # inliers as chance gives them
    ],
)
def test_the_rest_is_verified_unless_all_that_is_found_lies_ahead(query, sure, looked_at) -> None:
    """What is left out keeps its order; otherwise the ranking is that of all nine."""
    verification = Verification(shortlist=9, first=6, patience=4)
    scores = np.arange(9, 0, -1).tolist()
    shard, all_at_once = (MadeUp([scores], sure | {8: 7}) for _ in range(2))
    found = ranking(query, shard, Mode(Scoring(), verification)).tolist()
    assert [len(call[1]) for call in shard.calls if call[0] == "verify"] == looked_at
    everything = Mode(Scoring(), replace(verification, first=9))
    expected = ranking(query, all_at_once, everything).tolist()
    if len(looked_at) == 1:
        expected.remove(8)
        expected.append(8)
    assert found == expected


def test_only_the_shortlist_is_verified(query: Query) -> None:
    mode = Mode(Scoring(), Verification(shortlist=2))
    shard = MadeUp([[0.5, 0.4, 0.3, 0.2, 0.1]] * 2, inliers={1: 5, 4: 50})
    assert [hit.image for hit in search(query, shard, mode, k=3)] == [1, 0, 2]
    assert shard.calls[1] == ("verify", [0, 1])
    assert ranking(query, shard, mode).tolist() == [1, 0, 2, 3, 4]


def test_a_score_of_zero_does_not_hide_what_geometry_sees(query: Query) -> None:
    # Both photos of an index of two have every word: all weights are log(2 / 2) = 0.
    shard = MadeUp([[0.0, 0.0]], inliers={1: 40})
    assert [hit.image for hit in search(query, shard, "he+sv")] == [1]


def test_average_expansion(query: Query) -> None:
    first, second = [0.9, 0.8, 0.7, 0.1, 0.1], [0.5, 0.6, 0.1, 0.2, 0.9]
    shard = MadeUp([first, second], inliers={2: 19, 1: 14, 4: 17, 0: 5})
    mode = replace(MODES["bow+qe"], verification=Verification(shortlist=3), shortlist=3)
    found = search(query, shard, mode, k=5)
    assert shard.stages() == ["score", "verify", "features", "score", "verify"]
    assert shard.calls[2] == ("features", [2, 1]), "for sure, most inliers first; 5 may be chance"
    terms = shard.calls[3][2]
    assert isinstance(terms, BowTerms)
    assert terms.words.tolist() == [1, 4, 101, 102, 200]
    assert shard.calls[4] == ("verify", [4]), "0 and 1 are known from the first time"
    # 2 was verified at first and counts still, though it is not of the second shortlist.
    assert [hit.image for hit in found] == [2, 4, 1, 0, 3]
    assert list(found.seconds) == [
        "score", "verify", "expand", "score again", "verify again", "rank",
    ]  # fmt: skip


@pytest.mark.parametrize(("shared", "expected"), [(8, [0, 3]), (60, [3]), (900, [])])
def test_more_common_words_ask_for_more_close_ones(
    query: Query, shared: int, expected: list[int]
) -> None:
    """A small vocabulary, or many features: the published 5 would be chance."""
    shard = MadeUp([[9.0, 8, 7, 6, 5]] * 2, close={0: 5, 1: 4, 3: 20})
    shard.shared = shared
    search(query, shard, "hqe", k=2)
    assert shard.calls[2] == ("features", expected)


def test_hqe_follows_the_published_code(query: Query) -> None:
    shard = MadeUp([[9.0, 8, 7, 6, 5], [0.1, 0.2, 0.3, 0.4, 0.5]], close={0: 5, 1: 4, 3: 20})
    found = search(query, shard, "hqe", k=2)
    assert [hit.image for hit in found] == [4, 3]
    assert shard.stages() == ["score", "reliable", "features", "score"]
    first, second = shard.calls[0][3], shard.calls[3][3]
    assert (first.idf, first.normalise, first.h_t, first.ma) == (False, False, 56, 3)
    assert (second.idf, second.normalise, second.burstiness) == (True, True, True)
    assert shard.calls[0][4] == 100
    assert shard.calls[1] == ("reliable", [0, 1, 2, 3, 4], 32)
    assert shard.calls[2] == ("features", [0, 3]), "at least 5 words"
    terms = shard.calls[3][2]
    assert isinstance(terms, HeTerms)
    # Word 200 is in both images, 100 in one: 3 new words of 6 may be added, there are three.
    assert terms.words.tolist() == [1, 2, 3, 4, 5, 6, 100, 103, 200]


def test_hqe_with_geometry_trusts_verified_images(query: Query) -> None:
    shard = MadeUp([[9.0, 8, 7, 6, 5], [0.1, 0.2, 0.3, 0.4, 0.5]], inliers={2: 10})
    found = search(query, shard, "hqe+sv", k=2)
    assert shard.stages() == ["score", "verify", "features", "score"], "all are known"
    assert shard.calls[2] == ("features", [2])
    assert [hit.image for hit in found] == [2, 4]
    assert shard.calls[3][2].words.tolist() == [1, 2, 3, 4, 5, 6, 102, 200]


def test_hqe_with_geometry_takes_what_lies_in_the_box(query: Query) -> None:
    shard = MadeUp([[9.0, 8, 7, 6, 5], [0.1, 0.2, 0.3, 0.4, 0.5]], inliers={2: 10})
    # The features of the image come from (15, 15) of the query.
    beside = replace(query, boxes=((4.0, 3.0, 10.0, 19.0),))
    search(beside, shard, "hqe+sv", k=2)
    assert shard.calls[2] == ("features", [2])
    assert shard.calls[3][2].words.tolist() == [1, 2, 3, 4, 5, 6]


def test_rankings_hold_every_image(query: Query) -> None:
    for name, mode in MODES.items():
        shard = MadeUp([[0.0, 0.2, 0.0, 0.3, 0.1]] * 2, inliers={2: 5})
        found = ranking(query, shard, mode).tolist()
        assert sorted(found) == [0, 1, 2, 3, 4], name
        expected = [3, 1, 4, 0, 2]
        if mode.verification:  # five inliers may be chance, but 0 has none at all
            expected = [2, 3, 1, 4, 0] if mode.scoring.method == "bow" else [3, 1, 4, 2, 0]
        assert found == expected, name


def test_what_did_not_answer_is_named(query: Query) -> None:
    shard = MadeUp([[0.1]])
    shard.missing = ["shard 3 on worker-2"]
    assert search(query, shard, "he").missing == ["shard 3 on worker-2"]


def test_modes() -> None:
    assert DEFAULT_MODE in MODES
    with pytest.raises(HardnetError, match=r"no mode 'best': choose bow, bow\+sv"):
        search(None, MadeUp([]), "best")  # type: ignore[arg-type]


def test_the_region_of_a_whole_image_is_its_border(query: Query) -> None:
    whole = replace(query, view_sizes=((40, 30),), boxes=(None,)).region(0)
    double = np.array([[2.0, 0, 0.5], [0, 2, 0.5]])  # an image of twice the size
    region = region_of(whole, double)
    np.testing.assert_allclose(region, [(-0.5, -0.5), (79.5, -0.5), (79.5, 59.5), (-0.5, 59.5)])
