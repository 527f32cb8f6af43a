"""Kinds of made evidence: points on a grid, moved by known maps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from hardnet.retrieval.kinds import (
    Evidence,
    Kind,
    Thresholds,
    corners,
    inverse,
    kind_of,
    lies_inside,
    may_be_copy,
    measure,
    moved,
    overlap,
    turn_of,
)

SIZE = (1000, 800)
LIMITS = Thresholds()


def similarity(degrees: float = 0, scale: float = 1, x: float = 0, y: float = 0) -> np.ndarray:
    """Turned and scaled about the centre, then shifted."""
    sine, cosine = (scale * f(math.radians(degrees)) for f in (math.sin, math.cos))
    linear = np.array([[cosine, -sine], [sine, cosine]])
    centre = (np.array(SIZE) - 1) / 2
    return np.column_stack([linear, centre - linear @ centre + (x, y)])


def evidence(
    transform: np.ndarray, size: tuple[int, int] = SIZE, noise: float = 0.3, depth: float = 0.0
) -> Evidence:
    """Points of a photo that another shows; with depth, they move by more than the map."""
    rng = np.random.default_rng(1)
    xy_a = rng.random((500, 2)) * SIZE - 0.5
    xy_b = moved(xy_a, transform) + rng.normal(0, noise, (500, 2))
    xy_b[:, 0] += depth * rng.random(500)
    seen = ((xy_b > -0.5) & (xy_b < np.array(size) - 0.5)).all(axis=1)
    both = (SIZE, xy_a[seen], xy_a), (size, xy_b[seen], xy_b[seen])
    return measure(transform, *both, LIMITS.precise)


def test_overlap_by_hand() -> None:
    half = np.array([[1.0, 0, 500], [0, 1.0, 0]])
    assert overlap(half, SIZE, SIZE) == pytest.approx((0.5, 0.5))
    quarter = np.array([[1.0, 0, -100], [0, 1.0, -200]])  # a part of 500 x 400 is b
    assert overlap(quarter, SIZE, (500, 400)) == pytest.approx((0.25, 1.0))
    assert overlap(inverse(quarter), (500, 400), SIZE) == pytest.approx((1.0, 0.25))
    apart = np.array([[1.0, 0, 2000], [0, 1.0, 0]])
    assert overlap(apart, SIZE, SIZE) == (0, 0)
    mirror = np.array([[-1.0, 0, SIZE[0] - 1], [0, 1.0, 0]])
    assert overlap(mirror, SIZE, SIZE) == pytest.approx((1, 1))


def test_a_map_and_its_inverse() -> None:
    transform = similarity(33, 1.7, 40, -20)
    points = np.array([[0.0, 0], [10, 700], [999, 3]])
    assert np.allclose(moved(moved(points, transform), inverse(transform)), points)
    assert turn_of(transform) == pytest.approx(33)
    mirror = np.array([[-1.0, 0, SIZE[0] - 1], [0, 1.0, 0]])
    assert turn_of(mirror) == pytest.approx(0)


def test_the_map_is_fitted_to_those_that_agree() -> None:
    true = similarity(4, 0.8, 30, 10)
    rng = np.random.default_rng(0)
    xy_a = rng.random((200, 2)) * SIZE
    xy_b = moved(xy_a, true) + rng.normal(0, 0.3, (200, 2))
    xy_b[:40] += rng.uniform(10, 30, (40, 2))  # a wide threshold lets them pass
    rough = true + np.array([[0.002, 0, 3], [0, -0.002, -3]])
    found = measure(rough, (SIZE, xy_a, xy_a), (SIZE, xy_b, xy_b), LIMITS.precise)
    assert np.abs(moved(corners(SIZE), found.transform) - moved(corners(SIZE), true)).max() < 0.5
    assert found.inliers == 200
    assert found.precise == 160
    assert len(found.points) == 24


@pytest.mark.parametrize(
    ("kind", "transform", "size"),
    [
        ("copy", np.eye(2, 3), SIZE),
        ("copy", np.array([[0.5, 0, -0.25], [0, 0.5, -0.25]]), (500, 400)),
        ("copy", np.array([[0.8, 0, -0.1], [0, 1.0, 0]]), (800, 800)),
        ("crop", np.array([[1.0, 0, -100], [0, 1.0, -200]]), (500, 400)),
        ("crop", np.array([[1.0, 0, -30], [0, 1.0, -30]]), (940, 740)),
        ("rotated", similarity(180), SIZE),
        ("rotated", np.array([[0, -1.0, 799], [1.0, 0, 0]]), (800, 1000)),
        ("rotated", similarity(30), SIZE),
        ("mirrored", np.array([[-1.0, 0, 999], [0, 1.0, 0]]), SIZE),
        ("burst", similarity(1, 1.01, 60, 20), SIZE),
        ("burst", similarity(6, 1.0, 60, 20), SIZE),
        ("panorama", similarity(1, 1.0, 600, 20), SIZE),
    ],
)
def test_kinds_of_exact_maps(kind: Kind, transform: np.ndarray, size: tuple[int, int]) -> None:
    assert kind_of(evidence(transform, size), LIMITS) == kind


def test_what_has_depth_is_a_scene() -> None:
    assert kind_of(evidence(similarity(2, 1.5, 300, 0), depth=60), LIMITS) == "scene"
    inside = evidence(np.array([[2.0, 0, -600], [0, 2.0, -500]]), depth=60)
    assert kind_of(inside, LIMITS) == "scene"  # not a crop, although it lies inside


def test_few_inliers_or_a_vague_mirror_are_nothing() -> None:
    mirror = np.array([[-1.0, 0, 999], [0, 1.0, 0]])
    assert kind_of(evidence(mirror, depth=60), LIMITS) is None
    few = measure(
        np.eye(2, 3), *((SIZE, corners(SIZE), corners(SIZE)),) * 2, precise=LIMITS.precise
    )
    assert kind_of(few, LIMITS) is None


def test_a_turning_camera_is_told_from_a_walk() -> None:
    """By 22 degrees: no affine map fits, a homography does; with depth, neither."""
    rng = np.random.default_rng(2)
    focal, angle, centre = 900.0, math.radians(22), (np.array(SIZE) - 1) / 2
    rays = np.column_stack([(rng.random((400, 2)) * SIZE - centre) / focal, np.ones(400)])
    sine, cosine = math.sin(angle), math.cos(angle)
    turned = rays @ np.array([[cosine, 0, sine], [0, 1, 0], [-sine, 0, cosine]])
    xy_a, xy_b = (focal * r[:, :2] / r[:, 2:] + centre for r in (rays, turned))
    rough = np.column_stack([np.eye(2), np.median(xy_b - xy_a, axis=0)])
    kinds = {}
    for depth in (0, 40):
        there = xy_b + np.column_stack([depth * rng.random(400), np.zeros(400)])
        seen = ((there > 0) & (there < SIZE)).all(axis=1)
        seen &= np.linalg.norm(moved(xy_a, rough) - there, axis=1) < 120
        photos = (SIZE, xy_a[seen], xy_a), (SIZE, there[seen], there)
        found = measure(rough, *photos, LIMITS.precise)
        assert found.precise < 0.5 * found.inliers
        kinds[depth] = kind_of(found, LIMITS)
    assert kinds == {0: "panorama", 40: "scene"}


def test_inside_with_a_margin() -> None:
    shift = np.array([[1.0, 0, 10], [0, 1.0, 0]])
    assert lies_inside(shift, SIZE, SIZE, 0.011)
    assert not lies_inside(shift, SIZE, SIZE, 0.009)


def test_few_inliers_that_keep_the_frame_may_be_a_copy() -> None:
    few = evidence(np.array([[0.5, 0, -0.25], [0, 0.5, -0.25]]), (500, 400))
    few = replace(few, precise=6, inliers=6)
    assert kind_of(few, LIMITS) is None
    assert may_be_copy(few, LIMITS)
    assert kind_of(replace(few, agreed=True), LIMITS) == "copy"
    assert not may_be_copy(replace(few, precise=4), LIMITS)
    shifted = evidence(similarity(x=40))
    assert not may_be_copy(replace(shifted, precise=6, inliers=6), LIMITS)
    assert not may_be_copy(replace(evidence(similarity(180)), precise=6, inliers=6), LIMITS)


def test_letters_are_alike_wherever_they_lie() -> None:
    burst = replace(evidence(similarity(1, 1.01, 60, 20)), precise=20, inliers=30, explained=0.1)
    assert kind_of(replace(burst, tentatives=150), LIMITS) == "burst"
    assert kind_of(replace(burst, tentatives=900), LIMITS) is None
    assert kind_of(replace(burst, tentatives=900, explained=0.6), LIMITS) == "burst"


def test_a_scene_with_depth_has_few_precise_inliers_but_many() -> None:
    deep = replace(evidence(similarity(20, 1.3, 60, 20)), precise=5, inliers=40, explained=0.02)
    assert kind_of(replace(deep, tentatives=180), LIMITS) == "scene"
    assert kind_of(replace(deep, tentatives=400), LIMITS) is None
    assert kind_of(replace(deep, tentatives=40, inliers=14), LIMITS) is None


def test_views_that_look_different_are_no_crop() -> None:
    crop = evidence(np.array([[1.0, 0, -100], [0, 1.0, -200]]), (500, 400))
    assert kind_of(replace(crop, alike=0.9), LIMITS) == "crop"
    assert kind_of(replace(crop, alike=0.7), LIMITS) != "crop"
    assert kind_of(replace(evidence(similarity(180)), alike=0.7), LIMITS) == "scene"
    written_over = replace(evidence(np.eye(2, 3)), alike=0.7)
    assert kind_of(written_over, LIMITS) == "copy"
    assert kind_of(replace(written_over, alike=0.4), LIMITS) == "burst"
    assert kind_of(replace(written_over, drift=0.1), LIMITS) == "copy"
    assert kind_of(replace(written_over, drift=0.2), LIMITS) == "burst"
