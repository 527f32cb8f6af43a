import pytest

from hardnet.bench.retrieval.collection import Judgement, Question
from hardnet.bench.retrieval.judging import judge


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
