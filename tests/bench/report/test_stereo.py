"""Tables and figures of MADE-UP stereo results."""

import pytest

from hardnet.bench.report import figures, tables
from hardnet.bench.report.stereo import PAPER, PAPER_PAIRS


def row(name, pair, detector, descriptor, inliers, error):
    planar = name != "WxBS"
    return {
        "set": name,
        "pair": pair,
        "truth": "homography" if planar else "correspondences",
        "detector": detector,
        "descriptor": descriptor,
        "tentative": 2 * inliers,
        "inliers": inliers + 2,
        "geometry": "homography" if planar else "fundamental",
        "correct": inliers,
        "correct_inliers": inliers,
        "grid_error": error if planar else None,
        "corner_error": error if planar else None,
        "has_corners": planar,
        "accuracy": [0.5 + 0.04 * t for t in range(10)] if planar else None,
        "agreement": None if planar else [0.1 * t for t in range(10)],
    }


def made_up(names=("EVD", "WxBS", "mine")):
    inliers = {"net": (80, 20), "rootsift": (60, 14)}
    return {
        "kind": "stereo",
        "rule": {"name": "gt-15", "about": ""},
        "sets": [
            {"name": name, "pairs": 2, "complete": {"EVD": 15, "WxBS": 34}.get(name)}
            for name in names
        ],
        "rows": [
            row(name, pair, detector, label, counts[i] + 5 * k, 1.0 + i)
            for name in names
            for k, detector in enumerate(("dog", "hessian-affine"))
            for i, pair in enumerate(("p1", "p2"))
            for label, counts in inliers.items()
        ],
    }


def test_table_3_has_both_means_and_the_paper_beside(values):
    first, common = tables(made_up())[:2]
    groups = dict.fromkeys(column.group for column in first.columns[1:])
    assert list(groups) == ["EVD (2 of 15)", "WxBS (2 of 34)", "mine (2)"]
    matched = values(first, "matched", "EVD (2 of 15)")
    assert (matched["net (dog)"], matched["rootsift (dog)"]) == (2, 1)
    assert matched["rootsift (hessian-affine)"] == 2  # 19 and 65
    lines = {line[0]: line[1:] for line in first.rows}
    assert lines["net (dog)"][:2] == ["**2**", "50"]
    assert lines["rootsift (dog)"][:2] == ["1", "**60**"]
    assert lines["paper: HardNet+"] == ["15", "41", "11", "54", "-", "-"]
    assert "assumption" in first.note
    assert common.rows[0][:4] == ["net (dog)", "1", "**80**", "-"]  # one pair has no interval
    # Two pairs: a quarter of the resamples have only the one, a quarter only the other.
    assert common.rows[3][:4] == ["rootsift (hessian-affine)", "2", "42", "[19, 65]"]
    assert not any("paper" in line[0] for line in tables(made_up(("mine",)))[0].rows)


def test_other_tables(values):
    shown = tables(made_up())
    assert len(shown) == 6 + 3 * 2
    rules, areas, accuracy, agreement = shown[2:6]
    # rootsift with DoG: 60 and 14 correct inliers, 62 and 16 verified ones.
    found = [values(rules, rule, "mine (2)") for rule in ("gt-15", "mods", "mods-deep", "geometry")]
    assert [each["rootsift (dog)"] for each in found] == [1, 2, 2, 1]
    # Errors 1 and 2 px: (2/3 + 1/3) / 2, (4/5 + 3/5) / 2, (.9 + .8) / 2.
    for limit, area in ((3, 0.5), (5, 0.7), (10, 0.85)):
        assert values(areas, f"@{limit} px", "mine (2)")["net (dog)"] == pytest.approx(area)
    assert areas.rows[0][2] == "[0.333, 0.667]"
    for limit, share in ((1, 0.5), (3, 0.58), (5, 0.66), (10, 0.86)):
        assert values(accuracy, f"{limit} px", "mine (2)")["net (dog)"] == pytest.approx(share)
    assert {column.group for column in agreement.columns[1:]} == {"WxBS (2 of 34)"}
    assert shown[6].title == "EVD, dog: inliers per pair"
    assert shown[6].rows == [["p1", "80", "60"], ["p2", "20", "(14)"]]


def test_the_numbers_of_the_paper():
    assert PAPER["RootSIFT"]["OxAff"] == (40, 169)
    assert PAPER["L2Net+"]["LTLL"] == (127, 26)
    for numbers in PAPER.values():
        assert all(matched <= PAPER_PAIRS[name] for name, (matched, _) in numbers.items())


def test_figures_and_a_detector_that_matches_nothing(drawn):
    results = made_up(("EVD",))
    for line in results["rows"]:
        if line["detector"] == "dog":
            line |= {"inliers": 0, "correct_inliers": 0}
    assert tables(results)[0].rows[0][1:3] == ["**0**", "-"]
    assert figures(results) == ["pairs", "accuracy"]
    assert {"pairs matched", "EVD (2 of 15)", "-"} <= drawn(results)
    assert "share of matches correct" in drawn(results, "accuracy")
    assert figures(made_up(("WxBS",))) == ["pairs"]  # accuracy needs homographies
