import numpy as np
import pytest

from hardnet.bench.retrieval.collections import Judgement, Question
from hardnet.bench.retrieval.run import (
    average_precision,
    judge,
)


def question(name, group, positives, same=""):
    judgement = Judgement(frozenset(positives), frozenset({name}))
    return Question(name, name, group, {"others": judgement}, same=frozenset(same))


def test_means_and_the_queries_behind_them():
    questions = [question("a", "1", "bcd", "abcd"), question("b", "1", "acd", "abcd")]
    questions += [question("e", "2", "fgh", "efgh")]
    scores = judge(questions, ["abcd", "bxxxxa", "eafgh"])
    # By hand. b: one of three, at place 4 without itself; e: after one wrong photo.
    second = ((0 + 1 / 5) / 2) / 3
    third = ((0 + 1 / 2) / 2 + (1 / 2 + 2 / 3) / 2 + (2 / 3 + 3 / 4) / 2) / 3
    assert scores["ap"]["others"] == pytest.approx([1.0, second, third], abs=1e-4)
    assert scores["map"]["others"] == pytest.approx((1 + second + third) / 3)
    assert scores["ns_each"] == [4, 1, 3]
    assert scores["ns"] == pytest.approx(8 / 3)
    low, high = scores["map_interval"]["others"]
    assert low < scores["map"]["others"] < high
    # Whole groups are drawn: the ends are the means of one group drawn twice.
    assert low == pytest.approx(third)
    assert high == pytest.approx((1 + second) / 2)


def test_queries_without_positives_do_not_count_and_ns_needs_its_own_truth():
    questions = [question("a", "1", "b"), question("b", "2", "")]
    scores = judge(questions, ["b", "a"])
    assert scores["map"] == {"others": 1.0}
    assert scores["ap"] == {"others": [1.0, None]}
    assert scores["ns"] is None
    assert judge(questions[1:], ["a"])["map"] == {"others": None}


# Against explicit loops, and against numbers computed by hand.


def oxford_program(ranking, positives, junk):
    """The steps of the program that comes with Oxford buildings, one image at a time."""
    old_recall, old_precision, area = 0.0, 1.0, 0.0
    hits, seen = 0, 0
    for image in ranking:
        if image in junk:
            continue
        if image in positives:
            hits += 1
        recall = hits / len(positives)
        precision = hits / (seen + 1)
        area += (recall - old_recall) * (old_precision + precision) / 2
        old_recall, old_precision = recall, precision
        seen += 1
    return area


@pytest.mark.parametrize(
    ("ranking", "positives", "junk", "expected"),
    [
        ("ab", "ab", "", 1.0),
        ("xa", "a", "", (0 + 1 / 2) / 2),
        ("axb", "ab", "", (1 + (1 / 2 + 2 / 3) / 2) / 2),
        ("axxb", "ab", "", (1 + (1 / 3 + 2 / 4) / 2) / 2),
        ("jjajxb", "ab", "j", (1 + (1 / 2 + 2 / 3) / 2) / 2),  # as if j were not there
        ("ax", "ab", "", 1 / 2),  # b is never found
        ("xyz", "ab", "", 0.0),
        ("", "ab", "", 0.0),
    ],
)
def test_values_computed_by_hand(ranking, positives, junk, expected):
    assert average_precision(ranking, positives, junk) == pytest.approx(expected)
    assert oxford_program(ranking, positives, junk) == pytest.approx(expected)


def test_any_ranking_equals_the_explicit_loop():
    rng = np.random.default_rng(0)
    for _ in range(20):
        ranking = rng.permutation(30)[: rng.integers(1, 31)].tolist()
        kinds = rng.permutation(30)
        positives = set(kinds[: rng.integers(1, 12)].tolist())
        junk = set(kinds[12 : 12 + rng.integers(0, 12)].tolist())
        expected = oxford_program(ranking, positives, junk)
        assert average_precision(ranking, positives, junk) == pytest.approx(expected)
