from __future__ import annotations

import numpy as np
import pytest

from hardnet.matching.geometry import (
    MIN_INLIERS,
    log10_false_alarms,
    sampson_error,
    transfer_error,
    verify,
)

SIZE = np.array([800, 600])
HOMOGRAPHY = np.array([[0.9, 0.2, 30], [-0.15, 1.1, 40], [1e-4, -5e-5, 1]])


def project(homography: np.ndarray, points: np.ndarray) -> np.ndarray:
    lifted = np.concatenate([points, np.ones((len(points), 1))], 1) @ homography.T
    return lifted[:, :2] / lifted[:, 2:]


def plane(good: int, bad: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matches of a plane with half a pixel of noise, and random ones."""
    rng = np.random.default_rng(seed)
    a = rng.uniform(0, SIZE, (good + bad, 2))
    b = project(HOMOGRAPHY, a) + rng.normal(0, 0.5, (good + bad, 2))
    b[good:] = rng.uniform(0, SIZE, (bad, 2))
    return a, b, np.arange(good + bad) < good


def scene(good: int, bad: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Matches of a scene with depth seen by two cameras, and random ones."""
    rng = np.random.default_rng(seed)
    camera = np.array([[700, 0, 400], [0, 700, 300], [0, 0, 1.0]])
    points = rng.uniform([-2, -1.5, 3], [2, 1.5, 9], (good + bad, 3))
    turn = np.deg2rad(8)
    rotation = np.array(
        [[np.cos(turn), 0, np.sin(turn)], [0, 1, 0], [-np.sin(turn), 0, np.cos(turn)]]
    )
    a = project(camera, points[:, :2] / points[:, 2:])
    other = points @ rotation.T + (-0.8, 0.1, 0.2)
    b = project(camera, other[:, :2] / other[:, 2:]) + rng.normal(0, 0.5, (good + bad, 2))
    b[good:] = rng.uniform(0, SIZE, (bad, 2))
    return a, b, np.arange(good + bad) < good


@pytest.mark.parametrize("model", ["auto", "homography"])
@pytest.mark.parametrize("bad", [0, 100, 400])
def test_planted_homography_is_found(model: str, bad: int) -> None:
    a, b, truth = plane(150, bad)
    found = verify(a, b, model)
    assert found.kind == "homography"
    grid = np.array([[x, y] for x in (50, 400, 750) for y in (50, 300, 550)], float)
    np.testing.assert_allclose(project(found.model, grid), project(HOMOGRAPHY, grid), atol=1)
    assert found.inliers[truth].mean() > 0.98
    assert found.inliers[~truth].sum() <= 2


@pytest.mark.parametrize("model", ["auto", "fundamental"])
@pytest.mark.parametrize("bad", [0, 100])
def test_planted_fundamental_matrix_is_found(model: str, bad: int) -> None:
    a, b, truth = scene(200, bad)
    found = verify(a, b, model)
    assert found.kind == "fundamental"
    assert found.inliers[truth].mean() > 0.95
    assert found.inliers[~truth].mean() < 0.1 if bad else True
    assert np.median(sampson_error(found.model, a[truth], b[truth])) < 1
    assert abs(np.linalg.det(found.model / np.linalg.norm(found.model))) < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_few_right_matches_are_found_among_many_because_the_best_are_tried_first(seed: int) -> None:
    # 60 of 400: a draw of seven has no false one once in 600,000 times. The right ones have ranks
    # in the better half, as the ratio test gives them.
    a, b, truth = scene(60, 340, seed)
    rng = np.random.default_rng(seed)
    rank = np.where(truth, rng.uniform(0, 0.5, len(a)), rng.uniform(0, 1, len(a)))
    order = np.argsort(rank)
    found = verify(a[order], b[order], "fundamental")
    assert found.inliers[truth[order]].mean() > 0.95


@pytest.mark.parametrize("count", [10, 30, 100, 500, 2000])
@pytest.mark.parametrize("model", ["auto", "homography", "fundamental"])
def test_random_matches_are_never_verified(count: int, model: str) -> None:
    for seed in range(5):
        a, b, _ = plane(0, count, seed)
        found = verify(a, b, model)
        assert found.kind is None
        assert found.model is None
        assert not found.inliers.any()


def test_one_place_seen_many_times_is_no_evidence() -> None:
    # Keypoints with several orientations: 40 matches, but only four places.
    a, b, _ = plane(4, 0)
    rng = np.random.default_rng(0)
    a, b = (np.repeat(p, 10, axis=0) + rng.uniform(0, 0.1, (40, 2)) for p in (a, b))
    noise = plane(0, 40, 1)
    assert verify(np.vstack([a, noise[0]]), np.vstack([b, noise[1]])).kind is None


@pytest.mark.parametrize("count", [0, 1, 4, MIN_INLIERS - 1])
def test_too_few_matches(count: int) -> None:
    a, b, _ = plane(count, 0)
    found = verify(a, b)
    assert found.kind is None
    assert found.inliers.shape == (count,)


def test_few_but_perfect_matches_are_believed() -> None:
    a, b, _ = plane(12, 0)
    assert verify(a, b).kind == "homography"


@pytest.mark.parametrize("make", [np.zeros, np.ones])
def test_all_matches_in_one_point(make: object) -> None:
    points = make((50, 2))  # type: ignore[operator]
    assert verify(points, points).kind is None


def test_matches_on_one_line_are_no_homography_to_believe_blindly() -> None:
    x = np.linspace(0, 500, 60)
    line = np.stack([x, 2 * x], 1)
    found = verify(line, line + 5)
    assert found.model is None or np.isfinite(found.model).all()


def test_same_input_same_output() -> None:
    a, b, _ = scene(80, 200)
    one, two = verify(a, b), verify(a.copy(), b.copy())
    assert one.kind == two.kind
    np.testing.assert_array_equal(one.model, two.model)
    np.testing.assert_array_equal(one.inliers, two.inliers)


def test_transfer_error_by_hand() -> None:
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    points = np.array([[10.0, 20]])
    assert transfer_error(shift, points, points)[0] == pytest.approx(5)
    assert transfer_error(-shift, points, points)[0] == pytest.approx(5)  # the sign is free
    behind = np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]])
    assert transfer_error(behind, np.array([[200.0, 0]]), np.zeros((1, 2)))[0] == np.inf


def test_sampson_error_by_hand() -> None:
    # A pure sideways motion: rows must agree, and both sides share the error.
    sideways = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    a, b = np.array([[10.0, 20], [5, 5]]), np.array([[70.0, 22], [90, 5]])
    np.testing.assert_allclose(sampson_error(sideways, a, b), [2 / np.sqrt(2), 0])


def test_false_alarms_by_hand() -> None:
    a, b, _ = plane(10, 10)
    b = np.clip(b, 0, (999, 499))
    b[0], b[1] = (0, 0), (999, 499)  # the box of b: 1000 x 500
    inliers = np.arange(20) < 10
    # (20 - 4) * C(20, 10) * C(10, 4) * (pi 9 / 500000)^6
    expected = np.log10(16 * 184756 * 210 * (np.pi * 9 / 500000) ** 6)
    assert log10_false_alarms(a, b, inliers, "homography", 3.0) == pytest.approx(expected)
    assert log10_false_alarms(a, b, np.arange(20) < 4, "homography", 3.0) == 0
