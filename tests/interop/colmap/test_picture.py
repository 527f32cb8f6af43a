"""The picture of a model and its PLY file, by hand-made models."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from hardnet.interop.colmap.reconstruction import CAMERA_COLOUR, Looks, draw, ply, viewpoint

RED, GREEN = (0, 0, 255), (0, 255, 0)


def two_walls(cameras: int = 1) -> Looks:
    """A red wall at the left and a green one at the right of cameras that look along z."""
    y, z = (side.ravel() for side in np.meshgrid(np.linspace(-1, 1, 20), np.linspace(4, 6, 20)))
    left, right = (np.stack([np.full_like(y, x), y, z], 1) for x in (-2.0, 2.0))
    colours = np.repeat(np.array([RED, GREEN], np.uint8), len(y), axis=0)
    poses = np.stack([np.hstack([np.eye(3), [[0.1 * k], [0], [0]]]) for k in range(cameras)])
    return Looks(np.vstack([left, right]), colours, poses)


def columns(picture: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.int64]:
    return np.asarray(np.nonzero((picture == colour).all(2))[1])


def test_left_is_left_and_cameras_are_nearer_than_what_they_see() -> None:
    picture = draw(two_walls(), size=400)
    assert max(picture.shape[:2]) == pytest.approx(400, abs=2)
    assert columns(picture, RED).mean() < columns(picture, GREEN).mean() - 50
    assert len(columns(picture, CAMERA_COLOUR)) > 20


def test_a_point_far_away_does_not_shrink_the_rest() -> None:
    model = two_walls()
    far = Looks(
        np.vstack([model.points, [[500.0, 0, 5]]]),
        np.vstack([model.colours, [[9, 9, 9]]]),
        model.poses,
    )
    assert np.ptp(columns(draw(far), RED)) == pytest.approx(
        np.ptp(columns(draw(model), RED)), abs=3
    )


@pytest.mark.parametrize("cameras", [1, 3])
def test_the_eye_is_a_rotation(cameras: int) -> None:
    view = viewpoint(two_walls(cameras).poses)
    assert np.allclose(view @ view.T, np.eye(3))
    assert np.linalg.det(view) == pytest.approx(1)
    assert view[2, 2] > 0.8  # looks about where the cameras look
    assert view[1, 1] > 0.8  # and what is below is below


def test_cameras_around_an_object_look_in_no_direction_in_the_mean() -> None:
    ahead = np.hstack([np.eye(3), np.zeros((3, 1))])
    back = np.hstack([np.diag([-1.0, 1, -1]), np.zeros((3, 1))])
    view = viewpoint(np.stack([ahead, back]))
    assert np.isfinite(view).all()
    assert draw(Looks(np.zeros((0, 3)), np.zeros((0, 3), np.uint8), np.stack([ahead, back]))).size


def test_ply_holds_positions_and_colours() -> None:
    model = Looks(
        np.array([[1.5, -2, 3], [0, 0.25, 8]]),
        np.array([[1, 2, 3], [40, 50, 60]], np.uint8),
        np.zeros((0, 3, 4)),
    )
    header, _, body = ply(model).partition(b"end_header\n")
    assert header.startswith(b"ply\nformat binary_little_endian 1.0\nelement vertex 2\n")
    rows = [body[k : k + 15] for k in (0, 15)]
    assert np.frombuffer(rows[1][:12], "<f4").tolist() == [0, 0.25, 8]
    assert list(rows[0][12:]) == [3, 2, 1]  # red first
