from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from detect import repeatability

from hardnet.detectors import affine
from hardnet.frames import centres

PLACES = np.array([[60.0, 70.0], [160.0, 110.0]])


def discs() -> np.ndarray:
    """A bright ellipse with half-axes 20 and 10 and a dark disc of radius 12 on grey."""
    yy, xx = np.mgrid[:200, :240].astype(float)
    image = np.full((200, 240), 128, np.uint8)
    u, v = (xx - 60) * 0.8 + (yy - 70) * 0.6, (yy - 70) * 0.8 - (xx - 60) * 0.6
    image[u**2 / 400 + v**2 / 100 <= 1] = 220
    image[(xx - 160) ** 2 + (yy - 110) ** 2 <= 144] = 30
    return cv2.GaussianBlur(image, (0, 0), 1.0)  # flat steps have no thresholds between them


def test_regions_of_both_polarities_become_ellipses() -> None:
    frames, scores = affine.detect_mser(discs(), upright=True)
    # OpenCV 4 reports a region at several thresholds, OpenCV 5 once.
    xy = centres(frames)
    ours = [int(np.flatnonzero(np.abs(xy - place).max(1) < 0.6)[0]) for place in PLACES]
    assert (np.abs(xy[:, None] - PLACES).max(2) < 0.6).any(1).sum() == len(xy)
    frames, scores = frames[ours], scores[ours]
    # The half-size of the window is six standard deviations: three times the half-axes.
    directions, axes, _ = np.linalg.svd(frames[:, :, :2].astype(float))
    # OpenCV takes the region at one of the thresholds within the blurred edge.
    np.testing.assert_allclose(axes / 3, [[18, 8], [10, 10]], atol=3.5)
    assert axes[1, 0] == pytest.approx(axes[1, 1], rel=1e-3)
    assert abs(directions[0, 1, 0] / directions[0, 0, 0]) == pytest.approx(0.75, abs=0.03)
    np.testing.assert_allclose(scores**2, np.pi * (axes / 3).prod(1), rtol=0.02)


def test_moments_equal_a_loop() -> None:
    rng = np.random.default_rng(0)
    regions = [rng.integers(0, 50, (n, 2), np.int32) for n in (40, 7, 300)]
    area, centre, covariance = affine._moments(regions)
    for i, region in enumerate(regions):
        assert area[i] == len(region)
        np.testing.assert_allclose(centre[i], region.mean(0))
        expected = np.cov(region.T, bias=True) + np.eye(2) / 12
        np.testing.assert_allclose(covariance[i], expected)


def test_a_region_at_the_border_is_left_out() -> None:
    image = discs()
    image[:30, 200:] = 250
    xy = centres(affine.detect_mser(image)[0])
    assert len(xy) >= 2
    assert (np.abs(xy[:, None] - PLACES).max(2) < 0.6).any(1).all()


def test_regions_repeat_on_a_real_pair(data: Path) -> None:
    folder = data / "oxford-affine" / "graf"
    a, b = (cv2.imread(str(folder / f"{k}.png"), 0) for k in (1, 3))
    found = [affine.detect_mser(image, upright=True)[0] for image in (a, b)]
    score = repeatability(*found, np.loadtxt(folder / "H_1_3"), a.shape[::-1], b.shape[::-1])
    assert score.by_overlap > 250
    assert score.overlap > 0.45
