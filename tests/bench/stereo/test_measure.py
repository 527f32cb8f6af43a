from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.bench.stereo.measure import measure
from hardnet.patchsets.image_pairs import ImagePair

TRUTH = np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]])
SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
"""Epipolar lines are the rows of the images."""
IMAGES = Path("a.png"), Path("b.png")


def picked():
    """Correspondences of a camera that moves sideways past points at many depths."""
    rng = np.random.default_rng(0)
    a = rng.uniform(0, 200, (20, 2))
    return np.hstack([a, a + np.stack([rng.uniform(5, 60, 20), np.zeros(20)], 1)])


def made_up(offsets, inliers, kind="homography", model=TRUTH):
    """Matches that miss the true position by ``offsets`` pixels in y."""
    a = np.stack([np.linspace(5, 150, len(offsets)), np.full(len(offsets), 50.0)], 1)
    b = a + np.stack([np.full(len(offsets), 10.0), offsets], 1)
    size = SimpleNamespace(image_size=(200, 100))
    return SimpleNamespace(
        xy_a=a.astype(np.float32),
        xy_b=b.astype(np.float32),
        inliers=np.array(inliers, bool),
        geometry=SimpleNamespace(kind=kind, model=model),
        a=size,
        b=size,
    )


def test_a_homography_by_hand():
    pair = ImagePair("p", *IMAGES, homography=TRUTH)
    found = measure(made_up([0, 3.9, -4.1, 40, 1.5], [1, 0, 1, 0, 1]), pair)
    assert (found.tentative, found.inliers) == (5, 3)
    assert (found.correct, found.correct_inliers) == (3, 2)
    assert found.grid_error == found.corner_error == 0
    assert found.has_corners
    # Within 1 px: 0. Within 2: 0 and 1.5. Within 4: 3.9 too. Within 5: 4.1 too.
    np.testing.assert_allclose(found.accuracy, [0.2, 0.4, 0.4, 0.6, 0.8, *[0.8] * 5])
    assert found.agreement is None


def test_a_wrong_estimate_and_none():
    pair = ImagePair("p", *IMAGES, homography=TRUTH)
    shifted = np.array([[1.0, 0, 13], [0, 1, 4], [0, 0, 1]])
    assert measure(made_up([0], [1], model=shifted), pair).corner_error == pytest.approx(5)
    failed = measure(made_up([0], [0], kind=None, model=None), pair)
    assert (failed.corner_error, failed.grid_error, failed.has_corners) == (None, None, True)
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]])
    found = measure(made_up([0], [1], model=behind), pair)
    assert found.corner_error is None  # infinite, and JSON has no infinity
    assert found.has_corners
    undefined = ImagePair("p", *IMAGES, homography=behind)
    assert not measure(made_up([0], [1]), undefined).has_corners


def test_correspondences_by_hand():
    pair = ImagePair("p", *IMAGES, correspondences=picked())
    # Sampson's distance is |b_y - a_y| / sqrt(2): here 0, 3.89, 4.10 and 6.36 px.
    matches = made_up([0, 5.5, -5.8, 9], [1, 1, 0, 1], "fundamental", SIDEWAYS)
    found = measure(matches, pair)
    assert (found.tentative, found.inliers) == (4, 3)
    assert (found.correct, found.correct_inliers) == (2, 2)
    np.testing.assert_allclose(found.agreement, np.ones(10))
    assert found.accuracy is None
    assert found.corner_error is None
    assert not found.has_corners


def test_agreement_with_a_wrong_matrix_with_a_homography_and_with_none():
    pair = ImagePair("p", *IMAGES, correspondences=picked())
    upwards = np.array([[0.0, 0, 1], [0, 0, 0], [-1, 0, 0]])  # columns: off by the parallax
    found = measure(made_up([0], [1], "fundamental", upwards), pair)
    parallax = np.abs(picked()[:, 2] - picked()[:, 0]) * np.sqrt(2)
    assert found.agreement[-1] == pytest.approx((parallax <= 10).mean())
    failed = measure(made_up([0], [0], None, None), pair)
    assert failed.agreement == [0.0] * 10
    plane = measure(made_up([0], [1], "homography", TRUTH), pair)
    near = np.abs(picked()[:, 2] - picked()[:, 0] - 10) <= 10
    assert plane.agreement[-1] == pytest.approx(near.mean())


def test_without_ground_truth_only_inliers_are_counted():
    found = measure(made_up([0, 9, 9], [1, 1, 0]), ImagePair("p", *IMAGES))
    assert (found.tentative, found.inliers, found.geometry) == (3, 2, "homography")
    assert (found.correct, found.correct_inliers, found.accuracy, found.agreement) == (None,) * 4


def test_no_matches_at_all():
    for truth in ({"homography": TRUTH}, {"correspondences": picked()}, {}):
        matches = made_up([], [], None, None)
        found = measure(matches, ImagePair("p", *IMAGES, **truth))
        assert (found.tentative, found.inliers) == (0, 0)
