"""The picture of hand-made models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hardnet.interop.colmap.reconstruction import CAMERA_COLOUR, draw

RED, GREEN = (0, 0, 255), (0, 255, 0)


def two_walls() -> tuple[NDArray, NDArray, NDArray]:
    """A red wall at the left and a green one at the right of cameras that look along z."""
    y, z = (side.ravel() for side in np.meshgrid(np.linspace(-1, 1, 20), np.linspace(4, 6, 20)))
    left, right = (np.stack([np.full_like(y, x), y, z], 1) for x in (-2.0, 2.0))
    colours = np.repeat(np.array([RED, GREEN], np.uint8), len(y), axis=0)
    return np.vstack([left, right]), colours, np.eye(3, 4)[None]


def columns(picture: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.asarray(np.nonzero((picture == colour).all(2))[1])


def test_left_is_left_and_cameras_are_nearer_than_what_they_see() -> None:
    picture = draw(*two_walls(), size=400)
    assert max(picture.shape[:2]) == pytest.approx(400, abs=2)
    assert columns(picture, RED).mean() < columns(picture, GREEN).mean() - 50
    assert len(columns(picture, CAMERA_COLOUR)) > 20


def test_a_point_far_away_does_not_shrink_the_rest() -> None:
    points, colours, poses = two_walls()
    near = draw(points, colours, poses)
    far = draw(np.vstack([points, [[500.0, 0, 5]]]), np.vstack([colours, [[9, 9, 9]]]), poses)
    assert np.ptp(columns(far, RED)) == pytest.approx(np.ptp(columns(near, RED)), abs=3)


def test_cameras_around_an_object_look_in_no_direction_in_the_mean() -> None:
    ahead = np.hstack([np.eye(3), np.zeros((3, 1))])
    back = np.hstack([np.diag([-1.0, 1, -1]), np.zeros((3, 1))])
    assert draw(np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.stack([ahead, back])).size
