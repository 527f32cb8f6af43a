from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hardnet.bench.metrics import (
    auc_steps,
    corner_error,
    eight_point,
    share_within,
    symmetric_distance,
)
from hardnet.bench.stereo import measure
from hardnet.patchsets.sequences import ImagePair, find_pairs

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
    assert (found["tentative"], found["inliers"]) == (5, 3)
    assert (found["correct"], found["correct_inliers"]) == (3, 2)
    assert found["grid_error"] == found["corner_error"] == 0
    assert found["has_corners"]
    # Within 1 px: 0. Within 2: 0 and 1.5. Within 4: 3.9 too. Within 5: 4.1 too.
    np.testing.assert_allclose(found["accuracy"], [0.2, 0.4, 0.4, 0.6, 0.8, *[0.8] * 5])
    assert found["agreement"] is None


def test_a_wrong_estimate_and_none():
    pair = ImagePair("p", *IMAGES, homography=TRUTH)
    shifted = np.array([[1.0, 0, 13], [0, 1, 4], [0, 0, 1]])
    assert measure(made_up([0], [1], model=shifted), pair)["corner_error"] == pytest.approx(5)
    failed = measure(made_up([0], [0], kind=None, model=None), pair)
    assert (failed["corner_error"], failed["grid_error"], failed["has_corners"]) == (
        None,
        None,
        True,
    )
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]])
    found = measure(made_up([0], [1], model=behind), pair)
    assert found["corner_error"] is None  # infinite, and JSON has no infinity
    assert found["has_corners"]
    undefined = ImagePair("p", *IMAGES, homography=behind)
    assert not measure(made_up([0], [1]), undefined)["has_corners"]


def test_correspondences_by_hand():
    pair = ImagePair("p", *IMAGES, correspondences=picked())
    # Sampson's distance is |b_y - a_y| / sqrt(2): here 0, 3.89, 4.10 and 6.36 px.
    matches = made_up([0, 5.5, -5.8, 9], [1, 1, 0, 1], "fundamental", SIDEWAYS)
    found = measure(matches, pair)
    assert (found["tentative"], found["inliers"]) == (4, 3)
    assert (found["correct"], found["correct_inliers"]) == (2, 2)
    np.testing.assert_allclose(found["agreement"], np.ones(10))
    assert found["accuracy"] is None
    assert found["corner_error"] is None
    assert not found["has_corners"]


def test_agreement_with_a_wrong_matrix_with_a_homography_and_with_none():
    pair = ImagePair("p", *IMAGES, correspondences=picked())
    upwards = np.array([[0.0, 0, 1], [0, 0, 0], [-1, 0, 0]])  # columns: off by the parallax
    found = measure(made_up([0], [1], "fundamental", upwards), pair)
    parallax = np.abs(picked()[:, 2] - picked()[:, 0]) * np.sqrt(2)
    assert found["agreement"][-1] == pytest.approx((parallax <= 10).mean())
    failed = measure(made_up([0], [0], None, None), pair)
    assert failed["agreement"] == [0.0] * 10
    plane = measure(made_up([0], [1], "homography", TRUTH), pair)
    near = np.abs(picked()[:, 2] - picked()[:, 0] - 10) <= 10
    assert plane["agreement"][-1] == pytest.approx(near.mean())


def test_without_ground_truth_only_inliers_are_counted():
    found = measure(made_up([0, 9, 9], [1, 1, 0]), ImagePair("p", *IMAGES))
    assert (found["tentative"], found["inliers"], found["geometry"]) == (3, 2, "homography")
    assert (found["correct"], found["correct_inliers"], found["accuracy"], found["agreement"]) == (
        None,
    ) * 4


def test_no_matches_at_all():
    for truth in ({"homography": TRUTH}, {"correspondences": picked()}, {}):
        matches = made_up([], [], None, None)
        found = measure(matches, ImagePair("p", *IMAGES, **truth))
        assert (found["tentative"], found["inliers"]) == (0, 0)


RNG = np.random.default_rng(5)
SIZE = (101, 51)


def test_shares_by_hand():
    found = share_within([0.5, 1, 2.5, np.inf, np.nan], (1, 2, 3))
    np.testing.assert_allclose(found, [0.4, 0.4, 0.6])
    np.testing.assert_array_equal(share_within([], (1, 2)), [0, 0])


def test_steps_by_hand():
    # Errors 1 and 2 of limit 4 leave 3/4 and 2/4 of the thresholds; a failed pair leaves none.
    assert auc_steps([1, 2, np.inf, 7], 4) == pytest.approx((0.75 + 0.5) / 4)
    assert auc_steps([0, 0], 3) == 1
    assert auc_steps([np.inf], 3) == 0


@pytest.mark.parametrize("limit", [3, 5, 10])
def test_the_area_as_a_loop_over_pieces(limit):
    errors = np.append(RNG.exponential(5, 23), [np.inf, np.inf])
    # Steps: between two neighbouring errors the share is constant.
    ends = sorted([0.0, *(e for e in errors if e < limit), limit])
    total = 0.0
    for left, right in pairwise(ends):
        total += (right - left) * sum(e <= left for e in errors) / len(errors)
    assert auc_steps(errors, limit) == pytest.approx(total / limit)


def test_corner_error_by_hand():
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert corner_error(shift, np.eye(3), SIZE) == pytest.approx(5)
    assert corner_error(shift * -7, np.eye(3), SIZE) == pytest.approx(5)  # scale and sign are free
    # Twice as wide: the two right corners, at x = 100, move by 100.
    wide = np.diag([2.0, 1, 1])
    assert corner_error(wide, np.eye(3), SIZE) == pytest.approx(50)


def test_behind_the_camera():
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.02, 0, 1]])  # x = 100 has depth -1
    assert corner_error(behind, np.eye(3), SIZE) == np.inf
    assert corner_error(np.eye(3), behind, SIZE) is None


EPIPOLAR_RNG = np.random.default_rng(3)


def two_views(count=30, noise=0.0):
    """Points of a scene with depth in two cameras: (K, 2) each, and the true F."""
    points = EPIPOLAR_RNG.uniform([-2, -2, 6], [2, 2, 10], (count, 3))
    intrinsics = np.array([[700.0, 0, 400], [0, 700, 300], [0, 0, 1]])
    angle = 0.2
    turn = np.array(
        [[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]]
    )
    shift = np.array([-1.5, 0.2, 0.3])
    a = points @ intrinsics.T
    b = (points @ turn.T + shift) @ intrinsics.T
    cross = np.array([[0, -shift[2], shift[1]], [shift[2], 0, -shift[0]], [-shift[1], shift[0], 0]])
    inverse = np.linalg.inv(intrinsics)
    truth = inverse.T @ cross @ turn @ inverse
    a, b = a[:, :2] / a[:, 2:], b[:, :2] / b[:, 2:]
    return a, b + EPIPOLAR_RNG.normal(size=b.shape) * noise, truth


def test_exact_points_give_the_true_matrix():
    a, b, truth = two_views()
    found = eight_point(a, b)
    truth = truth / np.linalg.norm(truth)
    assert np.abs(found - truth * np.sign((found * truth).sum())).max() < 1e-8
    assert np.linalg.svd(found)[1][2] < 1e-12


def test_noisy_points_give_a_matrix_near_them():
    a, b, _ = two_views(60, noise=0.5)
    found = eight_point(a, b)
    assert np.linalg.svd(found)[1][2] < 1e-12
    assert np.median(symmetric_distance(found, a, b)) < 1.0
    clean_a, clean_b, _ = two_views(200)
    assert np.median(symmetric_distance(found, clean_a, clean_b)) < 1.0


def test_the_distance_by_hand():
    # A camera that moves along x: epipolar lines are the rows, b_y = a_y.
    sideways = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    a = np.array([[10.0, 20], [5, 5]])
    b = np.array([[70.0, 23], [9, 5]])
    # 3 px from the line in b and 3 px in a: sqrt(9 + 9).
    np.testing.assert_allclose(symmetric_distance(sideways, a, b), [np.sqrt(18), 0], atol=1e-12)


def test_the_distance_as_a_loop_over_lines():
    a, b, truth = two_views(10, noise=3.0)
    for scale in (1.0, -250.0):
        found = symmetric_distance(truth * scale, a, b)
        for k in range(10):
            x, y = np.array([*a[k], 1]), np.array([*b[k], 1])
            in_b, in_a = truth @ x, truth.T @ y
            first = abs(in_b @ y) / np.hypot(in_b[0], in_b[1])
            second = abs(in_a @ x) / np.hypot(in_a[0], in_a[1])
            assert found[k] == pytest.approx(np.hypot(first, second))


def test_held_out_errors_are_those_that_wxbs_publishes(data):
    """A matrix of all points but one, and its symmetric distance to that one."""
    for pair in find_pairs(data / "wxbs")[:6]:
        published = np.loadtxt(pair.first.parent / "crossval_errors.txt")
        a, b = pair.correspondences[:, :2], pair.correspondences[:, 2:]
        for k, expected in enumerate(published):
            rest = np.arange(len(a)) != k
            found = symmetric_distance(eight_point(a[rest], b[rest]), a[[k]], b[[k]])
            assert found[0] == pytest.approx(expected, rel=2e-3, abs=2e-3), (pair.name, k)
