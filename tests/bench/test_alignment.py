"""A similarity that is known is found; angles have all their digits."""

from __future__ import annotations

import numpy as np
import pytest

from hardnet.bench.alignment import align, rotation_angle


def _turn(axis: int, degrees: float) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    matrix = np.eye(3)
    i, j = [k for k in range(3) if k != axis]
    matrix[i, i] = matrix[j, j] = c
    matrix[i, j], matrix[j, i] = -s, s
    return matrix


def test_a_known_similarity() -> None:
    points = np.random.default_rng(0).normal(size=(7, 3)) * (1, 2, 5)
    rotation = _turn(0, 20) @ _turn(2, -75)
    target = 2.5 * points @ rotation.T + (1, -2, 30)
    found = align(points, target)
    assert found.scale == pytest.approx(2.5)
    np.testing.assert_allclose(found.rotation, rotation, atol=1e-12)
    np.testing.assert_allclose(found.translation, (1, -2, 30), atol=1e-10)
    np.testing.assert_allclose(found(points), target, atol=1e-10)


def test_a_flat_scene_and_a_mirrored_one_give_a_rotation() -> None:
    flat = np.array([[0.0, 0, 0], [1, 0, 0], [0, 2, 0], [3, 1, 0]])
    np.testing.assert_allclose(
        align(flat, 2 * flat @ _turn(1, 30).T).rotation, _turn(1, 30), atol=1e-12
    )
    points = np.random.default_rng(1).normal(size=(8, 3))
    found = align(points, points * (1, 1, -1))
    assert np.linalg.det(found.rotation) == pytest.approx(1)


def test_no_other_similarity_is_closer() -> None:
    rng = np.random.default_rng(2)
    points = rng.normal(size=(6, 3))
    target = 1.5 * points @ _turn(1, 40).T + rng.normal(size=(6, 3)) * 0.1
    best = align(points, target)
    least = ((best(points) - target) ** 2).sum()
    for axis in range(3):
        for degrees in (-1.0, 1.0):
            turned = best.rotation @ _turn(axis, degrees)
            moved = best.scale * points @ turned.T
            moved += (target - moved).mean(0)  # the best translation of this rotation
            assert ((moved - target) ** 2).sum() > least
    for factor in (0.99, 1.01):
        moved = factor * best.scale * points @ best.rotation.T
        moved += (target - moved).mean(0)
        assert ((moved - target) ** 2).sum() > least


def test_what_cannot_be_aligned() -> None:
    line = np.arange(12.0).reshape(4, 3)
    with pytest.raises(ValueError, match="one line"):
        align(line, line)
    with pytest.raises(ValueError, match="N >= 3"):
        align(line[:2], line[:2])


@pytest.mark.parametrize("degrees", [0.0, 1e-6, 0.5, 90.0, 179.0])
def test_angles_between_rotations(degrees: float) -> None:
    base = _turn(0, 33) @ _turn(1, 12)
    angle = rotation_angle([base @ _turn(2, degrees)], [base])
    np.testing.assert_allclose(angle, [degrees], rtol=1e-6, atol=1e-10)
