import numpy as np
import pytest

from hardnet.bench.bootstrap import interval, mean_interval, multiplicities


def test_every_resample_has_as_many_groups_as_there_are():
    drawn = multiplicities(7, 500, seed=3)
    assert drawn.shape == (500, 7)
    assert (drawn.sum(1) == 7).all()
    assert drawn.mean(0) == pytest.approx(np.ones(7), abs=0.2)
    np.testing.assert_array_equal(drawn, multiplicities(7, 500, seed=3))
    assert (drawn != multiplicities(7, 500, seed=4)).any()


def test_interval_computed_by_hand():
    low, high = interval(np.arange(101), level=0.9)
    assert (low, high) == pytest.approx((5, 95))
    assert interval([1.0, np.nan, 1.0]) == (1.0, 1.0)
    assert interval([np.nan]) == (None, None)


def test_mean_interval_equals_the_loop_over_drawn_groups():
    rng = np.random.default_rng(0)
    groups = rng.integers(0, 5, 60)
    values = rng.random(60)
    expected = []
    for drawn in multiplicities(5, 300, seed=9):
        members = [v for g in range(5) for _ in range(drawn[g]) for v in values[groups == g]]
        expected.append(np.mean(members))
    low, high = mean_interval(values, groups, resamples=300, seed=9)
    assert (low, high) == pytest.approx(tuple(np.quantile(expected, [0.025, 0.975])))


def test_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(5)
    covered = 0
    for trial in range(200):
        low, high = mean_interval(rng.normal(size=50), resamples=300, seed=trial)
        covered += low < 0 < high
    assert 0.89 <= covered / 200 <= 0.99


def test_groups_widen_the_interval_when_their_items_agree():
    values = np.repeat(np.random.default_rng(1).normal(size=20), 30)
    groups = np.repeat(np.arange(20), 30)
    wide, narrow = mean_interval(values, groups), mean_interval(values)
    assert wide[1] - wide[0] > 3 * (narrow[1] - narrow[0])


def test_one_group_has_no_interval():
    assert mean_interval([0.5]) == (None, None)
    assert mean_interval([0.5, 0.7], ["a", "a"]) == (None, None)
    with pytest.raises(ValueError, match="nothing"):
        multiplicities(0, 5)
