import pytest

from hardnet.bench.stereo.rules import RULES, by_name
from hardnet.errors import HardnetError

GOOD = {
    "inliers": 20,
    "correct_inliers": 15,
    "grid_error": 4.9,
    "agreement": None,
    "geometry": "homography",
}


@pytest.mark.parametrize(
    ("change", "matched"),
    [
        ({}, {"gt-15", "mods", "mods-deep", "geometry"}),
        ({"correct_inliers": 14}, {"mods", "mods-deep"}),
        ({"inliers": 15, "correct_inliers": 0}, {"mods", "mods-deep"}),
        ({"inliers": 14, "correct_inliers": 14}, {"mods-deep"}),
        ({"inliers": 10, "correct_inliers": 10}, {"mods-deep"}),
        ({"inliers": 9, "correct_inliers": 9}, set()),
        ({"grid_error": 5.1}, {"gt-15", "mods", "mods-deep"}),
        ({"grid_error": None, "geometry": "fundamental"}, {"gt-15", "mods", "mods-deep"}),
    ],
)
def test_pairs_with_a_homography(change, matched):
    assert {name for name, rule in RULES.items() if rule.matched(GOOD | change)} == matched


@pytest.mark.parametrize(("at_five", "right"), [(0.5, True), (0.49, False)])
def test_pairs_with_correspondences_need_half_of_them(at_five, right):
    agreement = [0.0, 0.0, 0.0, 0.0, at_five, *[1.0] * 5]
    row = GOOD | {"grid_error": None, "geometry": "fundamental", "agreement": agreement}
    assert RULES["geometry"].matched(row) is right
    assert RULES["gt-15"].matched(row)


def test_pairs_without_truth_count_verified_inliers():
    row = GOOD | {"correct_inliers": None, "grid_error": None, "inliers": 16}
    assert all(rule.matched(row) and rule.counted(row) == 16 for rule in RULES.values())
    assert not RULES["geometry"].matched(row | {"inliers": 0, "geometry": None})


def test_what_is_counted_for_the_mean():
    assert RULES["gt-15"].counted(GOOD) == 15
    assert RULES["mods"].counted(GOOD) == 20


def test_the_assumption_is_flagged_and_mistakes_are_named():
    assert "assumption" in RULES["gt-15"].about
    assert by_name("mods").needed == 15
    with pytest.raises(HardnetError, match="gt-15, mods, mods-deep, geometry"):
        by_name("gt")
