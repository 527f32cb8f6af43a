import numpy as np
import pytest

from hardnet.bench.stereo import RULES, summarise

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


def test_the_assumption_is_flagged():
    assert "assumption" in RULES["gt-15"].about


def row(pair, descriptor, inliers, error=None, name="EVD", has_corners=True, **fields):
    return {
        "set": name,
        "pair": pair,
        "truth": "homography",
        "detector": "dog",
        "descriptor": descriptor,
        "tentative": 100,
        "inliers": inliers + 3,
        "geometry": "homography",
        "correct": inliers,
        "correct_inliers": inliers,
        "grid_error": 1.0,
        "corner_error": error,
        "has_corners": has_corners,
        "accuracy": [inliers / 100] * 10,
        "agreement": None,
    } | fields


ROWS = [
    row("p1", "net", 100, 1.0),
    row("p2", "net", 20, 2.0),
    row("p3", "net", 5),
    row("p1", "sift", 60, 4.0),
    row("p2", "sift", 14, 40.0),
    row("p3", "sift", 2),
]


def test_matched_pairs_and_both_means_by_hand():
    net, sift = summarise(ROWS, RULES["gt-15"])
    assert (net["matched"], sift["matched"], net["pairs"]) == (2, 1, 3)
    assert (net["mean_inliers"], sift["mean_inliers"]) == (60, 60)  # the hard pair hides the lead
    assert (net["common"], net["mean_common"], sift["mean_common"]) == (1, 100, 60)
    net, sift = summarise(ROWS, RULES["mods"])
    assert (net["matched"], sift["matched"]) == (2, 2)
    assert (net["mean_inliers"], sift["mean_inliers"]) == (63, 40)


def test_areas_and_accuracy_are_means_over_all_pairs():
    net, sift = summarise(ROWS, RULES["gt-15"])
    assert net["auc"]["5"] == pytest.approx((0.8 + 0.6) / 3)
    assert sift["auc"]["3"] == 0
    np.testing.assert_allclose(net["accuracy"], [1.25 / 3] * 10, atol=1e-6)
    assert net["agreement"] is None
    assert (net["mean_tentative"], net["mean_correct"]) == (100, pytest.approx(125 / 3))


def test_pairs_of_a_sequence_are_drawn_together():
    pairs = [f"{name}-1-{k}" for name in ("graf", "wall") for k in (2, 3, 4)]
    inliers = dict(zip(pairs, (100, 110, 120, 20, 30, 40), strict=True))
    (net,) = summarise([row(p, "net", n, 1.0) for p, n in inliers.items()], RULES["gt-15"])
    assert net["mean_common"] == 70
    assert net["common_interval"] == (30, 110)  # a scene alone, never one of its pairs alone
    assert net["auc_interval"]["5"] == pytest.approx((0.8, 0.8))


def test_a_pair_without_defined_corners_is_not_in_the_area():
    rows = [*ROWS[:2], row("p3", "net", 5, has_corners=False)]
    (net,) = summarise(rows, RULES["gt-15"])
    assert net["auc"]["5"] == pytest.approx((0.8 + 0.6) / 2)


def test_sets_and_detectors_are_apart_and_nothing_matched_has_no_mean():
    rows = [*ROWS, row("p1", "net", 3, name="WxBS", agreement=[0.5] * 10, accuracy=None)]
    rows[-1] |= {"has_corners": False}
    by_set = {entry["set"]: entry for entry in summarise(rows, RULES["gt-15"])}
    wxbs = by_set["WxBS"]
    assert (wxbs["matched"], wxbs["mean_inliers"], wxbs["common"]) == (0, None, 0)
    assert (wxbs["auc"], wxbs["accuracy"], wxbs["agreement"]) == (None, None, [0.5] * 10)
