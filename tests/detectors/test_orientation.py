from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from hardnet.detectors import orientation
from hardnet.frames import from_similarity, to_similarity, transform

Scene = Callable[..., Any]


def ramp(angle: float) -> np.ndarray:
    """Brighter towards ``angle`` (clockwise on screen)."""
    yy, xx = np.mgrid[:120, :120] - 60.0
    return np.round(128 + 1.2 * (xx * np.cos(angle) + yy * np.sin(angle))).astype(np.uint8)


@pytest.mark.parametrize("angle", np.linspace(-3, 3, 13))
def test_the_x_axis_points_to_the_bright_side(angle: float) -> None:
    for start in (0.0, 1.0):
        frames = orientation.orient(ramp(angle), from_similarity([[60, 60]], 5.0, start))
        _, sigma, found = to_similarity(frames)
        assert abs(np.angle(np.exp(1j * (found[0] - angle)))) < 0.02
        assert sigma[0] == pytest.approx(5.0, rel=1e-4)


def test_histogram_equals_an_explicit_loop(camera: np.ndarray) -> None:
    side = orientation._SIDE
    # The window is cut so that samples are whole pixels.
    part = 2 * orientation._RADIUS_SIGMAS / 12 * side / (side - 2)
    sigma = side / 2 / (6 * part)
    histogram = np.zeros(36)
    for y in range(1, side - 1):
        for x in range(1, side - 1):
            row, column = 200 - side // 2 + y, 150 - side // 2 + x
            dx = float(camera[row, column + 1]) - float(camera[row, column - 1])
            dy = float(camera[row + 1, column]) - float(camera[row - 1, column])
            squared = ((x - side // 2) ** 2 + (y - side // 2) ** 2) / sigma**2
            if squared > orientation._RADIUS_SIGMAS**2:
                continue
            vote = np.hypot(dx, dy) * np.exp(-squared / (2 * 1.5**2))
            position = np.arctan2(dy, dx) % (2 * np.pi) / (2 * np.pi) * 36
            low = int(position)
            histogram[low % 36] += vote * (1 - (position - low))
            histogram[(low + 1) % 36] += vote * (position - low)
    smooth = np.array(
        [
            sum(
                w * histogram[(b + i) % 36]
                for i, w in zip(range(-2, 3), (1, 4, 6, 4, 1), strict=True)
            )
            for b in range(36)
        ]
    )
    found = orientation.direction_histograms(camera, from_similarity([[150, 200]], sigma))[0]
    # OpenCV's arctangent is good to a hundredth of a bin.
    np.testing.assert_allclose(found, smooth / 16, atol=0.01 * smooth.max() / 16)


def test_angles_turn_with_the_photograph(warped: Scene, camera: np.ndarray) -> None:
    turn = np.deg2rad(50)
    smooth = cv2.GaussianBlur(camera, (0, 0), 1.5)
    linear = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    second, matrix = warped(smooth, linear)
    rng = np.random.default_rng(0)
    frames = from_similarity(rng.uniform(170, 340, (200, 2)), rng.uniform(2, 6, 200))
    # A slanted shape: the orientation is that of the normalised patch, whatever the shape.
    frames[:, 0, 0] *= 1.5
    expected = transform(orientation.orient(smooth, frames), matrix)
    found = orientation.orient(second, orientation.upright_form(transform(frames, matrix)))
    relative = np.linalg.inv(expected[:, :, :2]) @ found[:, :, :2]
    angle = np.rad2deg(np.arctan2(relative[:, 1, 0], relative[:, 0, 0]))
    assert np.median(np.abs(angle)) < 2
    assert (np.abs(angle) < 10).mean() > 0.9


def test_upright_keeps_the_region_and_points_up() -> None:
    rng = np.random.default_rng(3)
    frames = np.concatenate([rng.normal(size=(50, 2, 2)) * 9, rng.normal(size=(50, 2, 1))], 2)
    frames = frames.astype(np.float32)
    found = orientation.upright_form(frames)
    a, b = (f[:, :, :2].astype(float) for f in (frames, found))
    np.testing.assert_allclose(b @ b.swapaxes(1, 2), a @ a.swapaxes(1, 2), rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(found[:, 0, 1], 0)
    assert (found[:, [0, 1], [0, 1]] > 0).all()
    np.testing.assert_array_equal(found[:, :, 2], frames[:, :, 2])
    np.testing.assert_allclose(orientation.upright_form(found), found, rtol=1e-3, atol=1e-3)


def test_turning_keeps_the_region() -> None:
    frames = np.array([[[4, 1, 10], [0, 2, 20]]], np.float32)
    quarter = orientation.turn(frames, np.array([np.pi / 2]))
    np.testing.assert_allclose(quarter[0], [[1, -4, 10], [2, 0, 20]], atol=1e-6)


def test_no_frames() -> None:
    image = np.zeros((50, 50), np.uint8)
    none = np.zeros((0, 2, 3), np.float32)
    assert orientation.orient(image, none).shape == (0, 2, 3)
    assert orientation.upright_form(none).shape == (0, 2, 3)
