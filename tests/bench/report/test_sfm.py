"""The tables of structure from motion."""

from __future__ import annotations

from typing import Any

import pytest

from hardnet.bench.report.photos import tables_of_sfm as tables

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
    size, errors = tables({"rows": [_row("colmap-sift"), better]})
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
    size, errors = tables({"rows": [_row("colmap-sift"), lost]})
    assert size.rows[1][:4] == ["dog+pixels", "0", "0", "-"]
    assert errors.rows[1][1:] == ["-"] * 6
    assert len(tables({"rows": [_row("colmap-sift", errors=None)]})) == 1
    _, known = tables({"rows": [_row("colmap-sift", calibrated=True)]})
    assert "focal length (%)" not in known.headings


def test_a_figure(drawn: Any) -> None:
    lost = _row("dog+pixels", registered=0, points=0, errors=None)
    wide = _row("dog+hardnet", scene="fountain", points=4321)
    words = drawn({"kind": "sfm", "rows": [_row("colmap-sift"), lost, wide]})
    for part in ("door: 3D points", "fountain: 3D points", "dog+pixels (0 of 12 photos)", "4321"):
        assert part in words
    assert "0.05" in words  # per cent
