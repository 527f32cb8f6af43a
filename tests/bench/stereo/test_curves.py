from itertools import pairwise

import numpy as np
import pytest

from hardnet.bench.stereo.curves import auc_lines, auc_steps, corner_error, share_within

RNG = np.random.default_rng(5)
SIZE = (101, 51)


def test_shares_by_hand():
    found = share_within([0.5, 1, 2.5, np.inf, np.nan], (1, 2, 3))
    np.testing.assert_allclose(found, [0.4, 0.4, 0.6])
    np.testing.assert_array_equal(share_within([], (1, 2)), [0, 0])


def test_shares_as_a_loop():
    errors = RNG.exponential(4, 57)
    found = share_within(errors)
    for t in range(1, 11):
        assert found[t - 1] == pytest.approx(sum(e <= t for e in errors) / 57)


def test_steps_by_hand():
    # Errors 1 and 2 of limit 4 leave 3/4 and 2/4 of the thresholds; a failed pair leaves none.
    assert auc_steps([1, 2, np.inf, 7], 4) == pytest.approx((0.75 + 0.5) / 4)
    assert auc_steps([0, 0], 3) == 1
    assert auc_steps([np.inf], 3) == 0


def test_lines_by_hand():
    # (0, 0) - (1, .5) - (2, 1) - (4, 1): areas .25 + .75 + 2, over 4.
    assert auc_lines([1, 2], 4) == pytest.approx(3 / 4)
    assert auc_lines([np.inf, np.inf], 4) == 0


@pytest.mark.parametrize("limit", [3, 5, 10])
def test_both_areas_as_loops_over_pieces(limit):
    errors = np.append(RNG.exponential(5, 23), [np.inf, np.inf])
    # Steps: between two neighbouring errors the share is constant.
    ends = sorted([0.0, *(e for e in errors if e < limit), limit])
    total = 0.0
    for left, right in pairwise(ends):
        total += (right - left) * sum(e <= left for e in errors) / len(errors)
    assert auc_steps(errors, limit) == pytest.approx(total / limit)
    # Lines: between two neighbouring errors the share rises by 1 / N.
    total = 0.0
    for left, right in pairwise(ends):
        low = sum(e <= left for e in errors) / len(errors)
        high = low if right == limit else low + 1 / len(errors)
        total += (right - left) * (low + high) / 2
    assert auc_lines(errors, limit) == pytest.approx(total / limit)
    assert 0 <= auc_lines(errors, limit) - auc_steps(errors, limit) <= 1 / len(errors)


def test_a_finely_sampled_area_is_the_exact_one():
    errors = RNG.exponential(3, 40)
    thresholds = (np.arange(100_000) + 0.5) / 100_000 * 5
    sampled = np.mean([(errors <= t).mean() for t in thresholds[::50]])
    assert auc_steps(errors, 5) == pytest.approx(sampled, abs=1e-3)


def test_corner_error_by_hand():
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert corner_error(shift, np.eye(3), SIZE) == pytest.approx(5)
    assert corner_error(shift * -7, np.eye(3), SIZE) == pytest.approx(5)  # scale and sign are free
    # Twice as wide: the two right corners, at x = 100, move by 100.
    wide = np.diag([2.0, 1, 1])
    assert corner_error(wide, np.eye(3), SIZE) == pytest.approx(50)


def test_behind_the_camera():
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]])  # x = 100 has depth -1
    assert corner_error(behind, np.eye(3), SIZE) == np.inf
    assert corner_error(np.eye(3), behind, SIZE) is None
