"""Tables and figures of MADE-UP stereo results."""

import cv2
import pytest

from hardnet.bench.report import figure, figures, tables
from hardnet.bench.report.stereo_numbers import PAPER, PAPER_PAIRS


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


def test_table_3_has_both_means_and_the_paper_beside():
    first, common = tables(made_up())[:2]
    assert first.groups[1:] == [("EVD (2 of 15)", 2), ("WxBS (2 of 34)", 2), ("mine (2)", 2)]
    lines = {line[0]: line[1:] for line in first.rows}
    assert lines["net (dog)"][:2] == ["**2**", "50"]
    assert lines["rootsift (dog)"][:2] == ["1", "**60**"]
    # With the other detector rootsift matches both pairs: 19 and 65.
    assert lines["rootsift (hessian-affine)"][:2] == ["**2**", "42"]
    assert lines["paper: HardNet+"] == ["15", "41", "11", "54", "-", "-"]
    assert "assumption" in first.note
    assert common.rows[0][:4] == ["net (dog)", "1", "**80**", "-"]  # one pair has no interval
    assert common.rows[1][:3] == ["rootsift (dog)", "1", "60"]
    # Two pairs: a quarter of the resamples have only the one, a quarter only the other.
    assert common.rows[3][:4] == ["rootsift (hessian-affine)", "2", "42", "[19, 65]"]


def test_sets_that_the_paper_does_not_have():
    assert not any("paper" in line[0] for line in tables(made_up(("mine",)))[0].rows)


def test_other_tables():
    shown = tables(made_up())
    titles = [table.title for table in shown]
    assert len(titles) == 6 + 3 * 2
    rules, areas, accuracy, agreement = shown[2:6]
    assert rules.rows[1][1:5] == ["1", "**2**", "**2**", "1"]  # gt-15, mods (16), mods-deep, ...
    assert [group for group, _ in areas.groups[1:]] == ["EVD (2 of 15)", "mine (2)"]
    # Errors 1 and 2 px: (2/3 + 1/3) / 2, (4/5 + 3/5) / 2, (.9 + .8) / 2.
    assert areas.rows[0][1:7:2] == ["**0.500**", "**0.700**", "**0.850**"]
    assert areas.rows[0][2] == "[0.333, 0.667]"
    assert accuracy.rows[0][1:6] == ["**0.500**", "**0.580**", "**0.660**", "**0.860**", "**50**"]
    assert [group for group, _ in agreement.groups[1:]] == ["WxBS (2 of 34)"]
    pairs = shown[6]
    assert pairs.title == "EVD, dog: inliers per pair"
    assert pairs.rows == [["p1", "80", "60"], ["p2", "20", "(14)"]]
    for table in shown:
        assert all(len(line) == len(table.columns) for line in table.rows)
        assert table.markdown()
        assert table.latex()


def test_the_numbers_of_the_paper():
    assert PAPER["RootSIFT"]["OxAff"] == (40, 169)
    assert PAPER["L2Net+"]["LTLL"] == (127, 26)
    for numbers in PAPER.values():
        assert set(numbers) == set(PAPER_PAIRS)
        assert all(matched <= PAPER_PAIRS[name] for name, (matched, _) in numbers.items())


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_figures_are_drawn(tmp_path, suffix):
    results = made_up()
    assert figures(results) == ["pairs", "accuracy"]
    for name in figures(results):
        path = tmp_path / f"{name}{suffix}"
        figure(results, path, name)
        assert path.stat().st_size > 5000
        if suffix == ".png":
            assert cv2.imread(str(path)) is not None


def test_without_homographies_there_is_no_accuracy(tmp_path):
    results = made_up(("WxBS",))
    assert figures(results) == ["pairs"]
    figure(results, tmp_path / "pairs.svg")
    assert "pairs matched" in (tmp_path / "pairs.svg").read_text()


def test_a_detector_that_matches_nothing_still_has_a_bar(tmp_path):
    results = made_up()
    for line in results["rows"]:
        if line["detector"] == "dog":
            line |= {"inliers": 0, "correct_inliers": 0}
    lines = tables(results)[0].rows
    assert lines[0][1:3] == ["**0**", "-"]
    figure(results, tmp_path / "pairs.png")
