from __future__ import annotations

import numpy as np
import pytest

from hardnet.frames import from_similarity, transform
from hardnet.matching.geometry import Geometry, sampson_error, transfer_error
from hardnet.matching.local_frames import consistent

SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # rows must agree
HOMOGRAPHY = np.array([[0.9, 0.2, 30], [-0.15, 1.1, 40], [1e-4, -5e-5, 1]])


def geometry(kind: str, model: np.ndarray) -> Geometry:
    return Geometry(kind, model, np.zeros(0, bool))  # type: ignore[arg-type]


def test_by_hand_for_a_homography() -> None:
    # Axes of 3 sigma = 30 px; the frame of b is turned by half a turn: the centre agrees and both
    # ends are 60 px off, 40 px on average.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[50, 60]], 10.0, np.pi)
    identity = geometry("homography", np.eye(3))
    assert consistent(a, b, identity, 40 / 12 + 0.01).tolist() == [True]
    assert consistent(a, b, identity, 40 / 12 - 0.01).tolist() == [False]


def test_the_error_of_a_homography_is_the_larger_of_both_directions() -> None:
    # The homography doubles; the frame of b does not: 30 px off in b, 15 px in a.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[100, 120]], 10.0)
    for model, left, right in ((np.diag([2.0, 2, 1]), a, b), (np.diag([0.5, 0.5, 1]), b, a)):
        twice = geometry("homography", model)
        assert consistent(left, right, twice, 20 / 12 + 0.01).tolist() == [True]
        assert consistent(left, right, twice, 20 / 12 - 0.01).tolist() == [False]


def test_by_hand_for_epipolar_lines() -> None:
    # Half a turn: the x axis stays in its row, the end of the y axis is 60 rows off; the Sampson
    # error is 60 / sqrt(2), a third of that on average.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[90, 60]], 10.0, np.pi)
    mean = 60 / np.sqrt(2) / 3
    rows = geometry("fundamental", SIDEWAYS)
    assert consistent(a, b, rows, mean / 2 + 0.01).tolist() == [True]
    assert consistent(a, b, rows, mean / 2 - 0.01).tolist() == [False]


@pytest.mark.parametrize("kind", ["homography", "fundamental"])
def test_equals_explicit_loops(kind: str) -> None:
    rng = np.random.default_rng(0)
    xy = rng.uniform(0, 300, (80, 2))
    a = from_similarity(xy, rng.uniform(2, 40, 80), rng.uniform(0, 7, 80))
    b = transform(a, HOMOGRAPHY)
    b[:40, :, :2] = from_similarity(xy, rng.uniform(2, 40, 80), rng.uniform(0, 7, 80))[:40, :, :2]
    model = HOMOGRAPHY if kind == "homography" else SIDEWAYS
    expected = []
    for one, other in zip(a.astype(float), b.astype(float), strict=True):
        errors = []
        for point in ((0, 0), (0.5, 0), (0, 0.5)):  # 3 of the 6 sigmas of the half window
            p, q = (f[:, :2] @ point + f[:, 2] for f in (one, other))
            if kind == "homography":
                back = transfer_error(np.linalg.inv(model), q[None], p[None])[0]
                errors.append(max(transfer_error(model, p[None], q[None])[0], back))
            else:
                errors.append(sampson_error(model, p[None], q[None])[0])
        expected.append(sum(errors) / 3 <= (12 if kind == "homography" else 2) * 2.0)
    assert len(set(expected)) == 2
    assert consistent(a, b, geometry(kind, model), 2.0).tolist() == expected
    if kind == "homography":
        assert all(expected[40:])  # these were carried by the homography itself


def test_without_a_geometry_nothing_disagrees() -> None:
    frames = from_similarity([[50, 60]], 10.0)
    assert consistent(frames, frames, Geometry(None, None, np.ones(1, bool)), 3.0).tolist() == [1]
    assert consistent(frames[:0], frames[:0], geometry("homography", np.eye(3)), 3.0).shape == (0,)
