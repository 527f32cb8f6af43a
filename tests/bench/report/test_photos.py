"""Tables and figures of pose, light, ratio and structure from motion, from MADE-UP numbers."""

from typing import Any

import pytest

from hardnet.bench.report import figures, tables
from hardnet.bench.report.photos import tables_of_sfm

FIELDS = {"pose": ("maa", "scenes"), "light": ("ap", "cameras")}
SCORES = {"dog": {"net": 0.6, "rootsift": 0.4}, "hessian": {"net": 0.3, "rootsift": 0.5}}


def made_up(kind, ends=(0.1, 0.9)):
    score, scenes = FIELDS[kind]
    entries = []
    for setup, names in SCORES.items():
        for name, level in names.items():
            one = {score: level, "ratio": 0.8, "correct": 70 * level, "curve": [level, 1.0]}
            entries.append(
                {
                    "setup": setup,
                    "descriptor": name,
                    "report": {score: level, "interval": list(ends)},
                    "choose": {score: None, "interval": [None, None]},
                    scenes: {
                        "temple": one | {"role": "report"},
                        "graf": one | {"role": "choose", score: level / 2},
                    },
                }
            )
    return {"kind": kind, "entries": entries}


def test_the_best_of_each_setup_and_the_ratio_to_the_baseline():
    summary, scenes, correct, chosen = tables(made_up("pose"))
    assert summary.rows[0] == ["dog", "net", "**0.600** [0.100, 0.900]", "1.50x", "-"]
    assert summary.rows[2][2:4] == ["0.300 [0.100, 0.900]", "0.60x"]
    assert summary.rows[3][2] == "**0.500** [0.100, 0.900]"
    assert summary.note.startswith("Held-out scenes: temple; tuning scenes: graf. 95% intervals")
    assert scenes.headings == ["keypoints", "descriptor", "temple", "graf"]
    assert list(scenes.columns[3].values) == pytest.approx([0.3, 0.2, 0.15, 0.25])
    assert [row[2] for row in correct.rows] == ["**42.0**", "28.0", "21.0", "**35.0**"]
    assert [row[2] for row in chosen.rows] == ["0.8"] * 4
    assert [table.rows for table in tables(made_up("light"))[2:]] == [correct.rows]


def test_figures_are_of_the_scenes_that_report(drawn):
    assert {"pose error below (degrees)", "share of the pairs", "dog"} <= drawn(made_up("pose"))
    assert {"mean AP", "hessian", "rootsift"} <= drawn(made_up("light"))
    assert figures(made_up("light", (None, None))) == []


ERRORS = {
    "centre_mean": 0.004,
    "centre_median": 0.003,
    "centre_max": 0.009,
    "centre_relative": 0.0005,
    "rotation_mean": 0.02,
    "rotation_max": 0.05,
    "focal": 0.001,
}


def _row(method: str, **numbers: Any) -> dict[str, Any]:
    row = {
        "scene": "door",
        "truth": "measured",
        "calibrated": False,
        "method": method,
        "photos": 12,
        "keypoints": 6000,
        "seconds": 31.4,
        "registered": 12,
        "points": 900,
        "observations": 5000,
        "track_length": 5.5,
        "reprojection_error": 0.4,
        "errors": ERRORS,
    }
    return row | numbers


def test_sizes_then_errors(values: Any) -> None:
    better = _row("dog+hardnet", points=1000, errors=ERRORS | {"centre_mean": 0.002})
    size, errors = tables_of_sfm({"rows": [_row("colmap-sift"), better]})
    assert size.title == "Reconstruction of door, 12 photos"
    assert size.rows[0][:3] == ["colmap-sift", "**12**", "900"]
    assert values(size, "points") == {"colmap-sift": 900, "dog+hardnet": 1000}
    assert errors.rows[1][1] == "**0.00200**"
    assert values(errors, "mean / extent (%)")["colmap-sift"] == pytest.approx(0.05)
    assert "truth: measured" in errors.note


def test_a_scene_without_a_model_and_one_without_truth() -> None:
    lost = _row("dog+pixels", registered=0, points=0, errors=None)
    for field in ("observations", "track_length", "reprojection_error"):
        del lost[field]
    size, errors = tables_of_sfm({"rows": [_row("colmap-sift"), lost]})
    assert size.rows[1][:4] == ["dog+pixels", "0", "0", "-"]
    assert errors.rows[1][1:] == ["-"] * 6
    assert len(tables_of_sfm({"rows": [_row("colmap-sift", errors=None)]})) == 1
    _, known = tables_of_sfm({"rows": [_row("colmap-sift", calibrated=True)]})
    assert "focal length (%)" not in known.headings


def test_a_figure(drawn: Any) -> None:
    lost = _row("dog+pixels", registered=0, points=0, errors=None)
    wide = _row("dog+hardnet", scene="fountain", points=4321)
    words = drawn({"kind": "sfm", "rows": [_row("colmap-sift"), lost, wide]})
    for part in ("door: 3D points", "fountain: 3D points", "dog+pixels (0 of 12 photos)", "4321"):
        assert part in words
    assert "0.05" in words  # per cent
