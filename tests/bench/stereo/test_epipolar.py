import numpy as np
import pytest

from hardnet.bench.stereo.epipolar import eight_point, symmetric_distance
from hardnet.patchsets.image_pairs import find_pairs

RNG = np.random.default_rng(3)


def two_views(count=30, noise=0.0):
    """Points of a scene with depth in two cameras: (K, 2) each, and the true F."""
    points = RNG.uniform([-2, -2, 6], [2, 2, 10], (count, 3))
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
    return a, b + RNG.normal(size=b.shape) * noise, truth


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
    for pair in find_pairs(data / "wxbs")[1][:6]:
        published = np.loadtxt(pair.first.parent / "crossval_errors.txt")
        a, b = pair.correspondences[:, :2], pair.correspondences[:, 2:]
        for k, expected in enumerate(published):
            rest = np.arange(len(a)) != k
            found = symmetric_distance(eight_point(a[rest], b[rest]), a[[k]], b[[k]])
            assert found[0] == pytest.approx(expected, rel=2e-3, abs=2e-3), (pair.name, k)
