from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.bench.pairs import RULES, homography_error, score_pair, summarise

TRUTH = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])
SIZE = (200, 100)


def shifted(pixels):
    """The true homography, wrong by ``pixels`` in x everywhere."""
    return np.array([[1.0, 0, pixels], [0, 1, 0], [0, 0, 1]]) @ TRUTH


def made_up_matches(offsets, inliers, model=TRUTH, kind="homography"):
    """Matches that miss the true position by ``offsets`` pixels in y."""
    xy_a = np.stack([np.linspace(5, 150, len(offsets)), np.full(len(offsets), 50.0)], 1)
    xy_b = xy_a + np.stack([np.full(len(offsets), 10.0), offsets], 1)
    geometry = SimpleNamespace(kind=kind, model=model)
    size = SimpleNamespace(image_size=SIZE)
    return SimpleNamespace(
        xy_a=xy_a, xy_b=xy_b, inliers=np.array(inliers), geometry=geometry, a=size, b=size
    )


def test_counts_by_hand():
    matches = made_up_matches([0, 2.9, -3.1, 40, 1], [True, False, True, False, True])
    score = score_pair(matches, TRUTH)
    counts = ("tentative", "correct", "inliers", "correct_inliers")
    assert [score[name] for name in counts] == [5, 3, 3, 2]
    assert not score["verified"]


@pytest.mark.parametrize(
    ("good", "model", "kind", "verified"),
    [
        (15, TRUTH, "homography", True),
        (14, TRUTH, "homography", False),
        (15, TRUTH * -2, "homography", True),  # scale and sign are free
        (15, shifted(6), "homography", False),
        (15, shifted(4), "homography", True),
        (15, TRUTH, "fundamental", False),
        (15, None, None, False),
    ],
)
def test_a_pair_is_verified_by_correct_inliers_and_the_right_homography(
    good, model, kind, verified
):
    matches = made_up_matches([0.5] * good + [50] * 5, [True] * good + [False] * 5, model, kind)
    assert score_pair(matches, TRUTH)["verified"] is verified


def test_no_matches_at_all():
    score = score_pair(made_up_matches(np.zeros(0), [], None, None), TRUTH)
    assert (score["tentative"], score["correct"], score["grid_error"]) == (0, 0, None)
    assert not score["verified"]


def test_only_the_common_part_of_the_images_is_judged():
    # Right at x = 0 and ever more wrong to the right. Image b shows only two columns of the grid:
    # x = 0, and x = 199/19, where dividing by 1.0419 moves (10.5, 0..99) by 0.4 to 4 px.
    tilt = np.array([[1.0, 0, 0], [0, 1, 0], [0.004, 0, 1]])
    assert 0.2 < homography_error(tilt, np.eye(3), SIZE, (20, 100)) < 2
    assert homography_error(tilt, np.eye(3), SIZE, SIZE) > 20
    assert homography_error(np.eye(3), np.eye(3), SIZE, SIZE) == 0
    away = np.array([[1.0, 0, 1000], [0, 1, 0], [0, 0, 1]])
    assert homography_error(away, away, SIZE, SIZE) is None
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])
    assert homography_error(behind, np.eye(3), SIZE, SIZE) is None


def test_totals_per_sequence_and_over_all():
    counts = {"tentative": 9, "inliers": 5, "correct_inliers": 4}
    rows = [
        {"sequence": s, "descriptor": d, "correct": n, "verified": n > 5, **counts}
        for s, d, n in [("a", "x", 3), ("a", "x", 10), ("b", "x", 7), ("a", "y", 1)]
    ]
    total = summarise(rows, "sequence")
    assert total["x"]["a"]["correct"] == 13
    assert total["x"]["all"] == {
        "pairs": 3,
        "tentative": 27,
        "correct": 20,
        "inliers": 15,
        "correct_inliers": 12,
        "verified": 2,
    }
    assert total["y"]["all"]["pairs"] == 1


def test_the_rules_in_the_results_name_their_numbers():
    assert "3 px" in RULES["correct"]
    assert "15" in RULES["verified"]
    assert "5 px" in RULES["verified"]
