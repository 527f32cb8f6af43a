from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest

from hardnet.frames import from_similarity, transform
from hardnet.matching.geometry import Geometry, sampson_error, transfer_error
from hardnet.matching.guided import consistent, guided_matches

HOMOGRAPHY = np.array([[0.9, 0.2, 30], [-0.15, 1.1, 40], [1e-4, -5e-5, 1]])
CAMERA = np.array([[500.0, 0, 100], [0, 500, 80], [0, 0, 1]])
ESSENTIAL = np.array([[0.0, -0.2, 0.1], [0.2, 0, -1], [-0.1, 1, 0]])  # a sideways motion
THRESHOLD = 3.0


def geometry(kind: str) -> Geometry:
    none = np.zeros(0, bool)
    if kind == "homography":
        return Geometry("homography", HOMOGRAPHY, none)
    if kind == "essential":
        return Geometry("essential", ESSENTIAL, none, (CAMERA, CAMERA))
    inverse = np.linalg.inv(CAMERA)
    return Geometry("fundamental", inverse.T @ ESSENTIAL @ inverse, none)


def scene(kind: str, count: int = 60) -> tuple[np.ndarray, ...]:
    """Descriptors and places of which some agree with the geometry, and several at one place."""
    rng = np.random.default_rng(0)
    xy_a = rng.uniform(0, 200, (count, 2))
    xy_a[-10:] = xy_a[:10] + rng.normal(0, 0.5, (10, 2))
    lifted = np.c_[xy_a, np.ones(count)] @ HOMOGRAPHY.T
    shifted = xy_a + np.array([30.0, 0])
    xy_b = lifted[:, :2] / lifted[:, 2:] if kind == "homography" else shifted
    xy_b = (xy_b + rng.normal(0, 2, (count, 2)))[rng.permutation(count)][: count - 5]
    a = rng.normal(size=(count, 5)).astype(np.float32)
    b = rng.normal(size=(count - 5, 5)).astype(np.float32)
    return a, b, xy_a, xy_b


def slow_distances(kind: str) -> np.ndarray:
    """Of all descriptors, infinite where the geometry forbids the match."""
    a, b, xy_a, xy_b = scene(kind)
    found = geometry(kind)
    model = found.fundamental if kind != "homography" else found.model
    error = transfer_error if kind == "homography" else sampson_error
    distance = np.full((len(a), len(b)), np.inf)
    for i in range(len(a)):
        for j in range(len(b)):
            if error(model, xy_a[i : i + 1], xy_b[j : j + 1])[0] < THRESHOLD:
                distance[i, j] = math.dist(a[i].tolist(), b[j].tolist())
    return distance


def slow_matches(
    distance: np.ndarray, xy_b: np.ndarray, ratio: float, limit: float
) -> list[tuple[int, int, float]]:
    a, b = (range(count) for count in distance.shape)
    matches = []
    for i in a:
        j = int(distance[i].argmin())
        if distance[i, j] == np.inf or int(distance[:, j].argmin()) != i:
            continue
        others = [distance[i, k] for k in b if math.dist(xy_b[j], xy_b[k]) > 2 * THRESHOLD]
        if distance[i, j] < ratio * min(others, default=math.inf) and distance[i, j] <= limit:
            matches.append((i, j, distance[i, j]))
    return sorted(matches, key=lambda match: match[2])


@pytest.mark.parametrize("kind", ["homography", "fundamental", "essential"])
def test_equals_explicit_loops(kind: str) -> None:
    distance = slow_distances(kind)
    for ratio, limit in ((0.95, np.inf), (0.7, np.inf), (0.95, 2.0)):
        expected = slow_matches(distance, scene(kind)[3], ratio, limit)
        assert len(expected) > 3
        for chunk in (1, 500, 10**6):
            indices, distances = guided_matches(
                *scene(kind), geometry(kind), THRESHOLD, ratio, limit, chunk
            )
            assert indices.tolist() == [[i, j] for i, j, _ in expected]
            np.testing.assert_allclose(distances, [d for _, _, d in expected], rtol=1e-5)


def test_packed_bits() -> None:
    bits = np.arange(20, dtype=np.uint8)[:, None]
    xy = np.stack([np.arange(20) * 20.0, np.zeros(20)], 1)
    same = Geometry("homography", np.eye(3), np.zeros(0, bool))
    indices, distances = guided_matches(bits, bits, xy, xy, same, THRESHOLD)
    assert sorted(indices.tolist()) == [[i, i] for i in range(20)]
    assert (distances == 0).all()


@pytest.mark.parametrize(("n", "m"), [(0, 0), (0, 2), (2, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("kind", ["homography", "fundamental"])
def test_few(n: int, m: int, kind: str) -> None:
    a, b, xy_a, xy_b = scene(kind)
    indices, distances = guided_matches(a[:n], b[:m], xy_a[:n], xy_b[:m], geometry(kind), THRESHOLD)
    assert indices.shape == (len(distances), 2)


def test_no_geometry_no_matches() -> None:
    nothing = Geometry(None, None, np.zeros(0, bool))
    assert len(guided_matches(*scene("homography"), nothing, THRESHOLD)[0]) == 0


def test_what_lies_behind_the_camera_is_no_candidate() -> None:
    behind = Geometry("homography", np.array([[1.0, 0, 0], [0, 1, 0], [-0.01, 0, 1]]), np.ones(0))
    one = np.zeros((1, 4), np.float32)
    # x = 200 lands on -200 by the formula, on the wrong side of the camera
    place = np.array([[200.0, 0]])
    assert len(guided_matches(one, one, place, -place, behind, THRESHOLD)[0]) == 0


def test_memory_does_not_grow_with_the_product() -> None:
    rng = np.random.default_rng(1)
    count = 4000  # 16 million errors are 128 MB
    a = rng.normal(size=(count, 8)).astype(np.float32)
    xy = rng.uniform(0, 3000, (count, 2))
    tracemalloc.start()
    guided_matches(a, a, xy, xy, geometry("fundamental"), THRESHOLD)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60e6


SIDEWAYS = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])  # rows must agree


def of_kind(kind: str, model: np.ndarray) -> Geometry:
    return Geometry(kind, model, np.zeros(0, bool))  # type: ignore[arg-type]


def test_by_hand_for_a_homography() -> None:
    # Axes of 3 sigma = 30 px; the frame of b is turned by half a turn: the centre agrees and both
    # ends are 60 px off, 40 px on average.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[50, 60]], 10.0, np.pi)
    identity = of_kind("homography", np.eye(3))
    assert consistent(a, b, identity, 40 / 12 + 0.01).tolist() == [True]
    assert consistent(a, b, identity, 40 / 12 - 0.01).tolist() == [False]


def test_the_error_of_a_homography_is_the_larger_of_both_directions() -> None:
    # The homography doubles; the frame of b does not: 30 px off in b, 15 px in a.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[100, 120]], 10.0)
    for model, left, right in ((np.diag([2.0, 2, 1]), a, b), (np.diag([0.5, 0.5, 1]), b, a)):
        twice = of_kind("homography", model)
        assert consistent(left, right, twice, 20 / 12 + 0.01).tolist() == [True]
        assert consistent(left, right, twice, 20 / 12 - 0.01).tolist() == [False]


def test_by_hand_for_epipolar_lines() -> None:
    # Half a turn: the x axis stays in its row, the end of the y axis is 60 rows off; the Sampson
    # error is 60 / sqrt(2), a third of that on average.
    a, b = from_similarity([[50, 60]], 10.0), from_similarity([[90, 60]], 10.0, np.pi)
    mean = 60 / np.sqrt(2) / 3
    rows = of_kind("fundamental", SIDEWAYS)
    assert consistent(a, b, rows, mean / 2 + 0.01).tolist() == [True]
    assert consistent(a, b, rows, mean / 2 - 0.01).tolist() == [False]


@pytest.mark.parametrize("kind", ["homography", "fundamental"])
def test_consistent_equals_explicit_loops(kind: str) -> None:
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
    assert consistent(a, b, of_kind(kind, model), 2.0).tolist() == expected
    if kind == "homography":
        assert all(expected[40:])  # these were carried by the homography itself


def test_without_a_geometry_nothing_disagrees() -> None:
    frames = from_similarity([[50, 60]], 10.0)
    assert consistent(frames, frames, Geometry(None, None, np.ones(1, bool)), 3.0).tolist() == [1]
    assert consistent(frames[:0], frames[:0], of_kind("homography", np.eye(3)), 3.0).shape == (0,)
