"""Made copies: their maps say where every spot of the photograph went."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from copies import EDITS, FRAMES, SWEEP, Edit, pattern, sweep, text_page

from hardnet.retrieval.kinds import moved

DOT = (150.0, 110.0)


@pytest.mark.parametrize(
    "edit", [edit for edit in EDITS if edit.name != "text"], ids=lambda edit: edit.name
)
def test_the_map_of_an_edit_finds_a_bright_spot(edit: Edit) -> None:
    pixels = np.zeros((240, 320, 3), np.uint8)
    cv2.circle(pixels, (int(DOT[0]), int(DOT[1])), 9, (255, 255, 255), -1)
    found = 0
    for seed in range(5):
        copy, transform = edit.make(pixels, np.random.default_rng(seed))
        x, y = moved(np.array([DOT]), transform)[0]
        height, width = copy.shape[:2]
        if not (12 < x < width - 12 and 12 < y < height - 12):
            continue  # cut off
        grey = copy.mean(axis=2)
        if edit.name.startswith("border"):
            wide = int(transform[0, 2])
            grey = np.pad(grey[wide:-wide, wide:-wide], wide)
        rows, columns = np.nonzero(grey > 100)
        assert (columns.mean(), rows.mean()) == pytest.approx((x, y), abs=0.6)
        found += 1
    assert found or edit.name.startswith(("crop", "mirror, crop"))


def test_text_covers_a_part_and_moves_nothing() -> None:
    edit = next(edit for edit in EDITS if edit.name == "text")
    pixels = np.full((240, 320, 3), 90, np.uint8)
    copy, transform = edit.make(pixels, np.random.default_rng(0))
    assert np.array_equal(transform, np.eye(2, 3))
    assert 0.02 < (copy != pixels).any(axis=2).mean() < 0.5


@pytest.mark.parametrize("percent", [90, 50, 25, 5])
def test_crops_have_their_area(percent: int) -> None:
    edit = next(edit for edit in EDITS if edit.name == f"crop {percent} %")
    copy, _ = edit.make(np.zeros((480, 640, 3), np.uint8), np.random.default_rng(0))
    assert copy.shape[0] * copy.shape[1] / (480 * 640) == pytest.approx(percent / 100, rel=0.02)


def test_pages_and_patterns_differ() -> None:
    for draw in (text_page, pattern):
        one, other = (draw(np.random.default_rng(seed)) for seed in (0, 1))
        assert one.shape == other.shape
        assert np.abs(one.astype(int) - other).mean() > 5


@pytest.mark.parametrize("shared", SWEEP)
def test_neighbours_of_a_sweep_share_what_they_should(shared: int) -> None:
    """One channel says from where each column is, the other how much brighter the photo is."""
    wide = np.full((300, 900, 3), 200, np.uint8)
    wide[:, :, 0] = np.linspace(20, 220, 900).astype(np.uint8)
    views = sweep(wide, np.random.default_rng(0), shared / 100)
    assert len(views) == FRAMES
    rows = [view[view.shape[0] // 2].astype(float) for view in views]
    ends = np.array([[row[at, 0] / row[at, 2] for at in (0, -1)] for row in rows])
    first, last = ends.T * 200
    assert first[0] == pytest.approx(20, abs=3)
    assert last[-1] == pytest.approx(220, abs=3)
    assert (last[:-1] - first[1:]) / (last - first)[1:] == pytest.approx(shared / 100, abs=0.04)
