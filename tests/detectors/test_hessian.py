from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest

from hardnet.detectors import hessian
from hardnet.detectors.hessian import refine
from hardnet.frames import centres, to_similarity, transform

Scene = Callable[..., Any]


@pytest.mark.parametrize("spread", [2.0, 3.0, 4.5, 6.0, 10.0, 14.0])
def test_a_blob_is_found_where_and_as_large_as_it_is(blob: Scene, spread: float) -> None:
    frames, scores = hessian.find_places(blob(150.3, 140.6, spread))
    xy, sigma, _ = to_similarity(frames)
    error = np.abs(xy[0] - [150.3, 140.6])
    assert (error < 0.05 + 0.01 * spread).all()
    assert sigma[0] == pytest.approx(spread, rel=0.025)
    # sigma^2 times each curvature of a blob of height 150 is a quarter of its height.
    assert scores[0] == pytest.approx(150 / 4, rel=0.04)


def test_a_symmetric_blob_between_four_pixels_is_one_keypoint(blob: Scene) -> None:
    frames, _ = hessian.find_places(blob(150.5, 150.5, 5.0))
    near = np.linalg.norm(centres(frames) - 150.5, axis=1) < 3
    assert near.sum() == 1


def test_no_keypoint_is_found_twice_where_octaves_meet(blob: Scene) -> None:
    for spread in (3.4, 3.55, 3.6, 3.7, 7.1, 14.2):  # the seam is at 1.6 * 2^(1 + 1/6) = 3.59
        frames, _ = hessian.find_places(blob(150.3, 140.6, spread))
        near = np.linalg.norm(centres(frames) - [150.3, 140.6], axis=1) < spread
        assert near.sum() == 1, spread


def test_a_saddle_is_found() -> None:
    yy, xx = np.mgrid[:200, :200] - 100.0
    hill = np.exp(-(xx**2 + yy**2) / (2 * 12.0**2)) * xx * yy / 12**2
    frames, _ = hessian.find_places(np.round(128 + 150 * hill).astype(np.uint8))
    assert np.linalg.norm(centres(frames) - 100, axis=1).min() < 0.1


def test_extrema_equal_an_explicit_search() -> None:
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.uniform(0, 255, (60, 70)), (0, 0), 1.5)
    stack = []
    for k in range(5):
        sigma = 1.6 * 2 ** (k / 3)
        smooth = cv2.GaussianBlur(image, (0, 0), sigma).astype(np.float32)
        stack.append(hessian.respond(smooth, sigma))
    values = np.stack(stack)
    floor = 30.0
    expected = []
    for k in (1, 2, 3):
        for y in range(5, 55):
            for x in range(5, 65):
                cube = values[k - 1 : k + 2, y - 1 : y + 2, x - 1 : x + 2]
                value = values[k, y, x]
                others = np.delete(cube.reshape(-1), 13)
                beyond = (value > others).all() or (value < others).all()
                if beyond and abs(value) >= 0.8 * floor:
                    expected.append((k, y, x))
    found = hessian._extrema(values, floor, 5, 55)
    assert len(expected) > 20
    assert sorted(map(tuple, found.tolist())) == expected


def test_response_of_a_quadratic_by_hand() -> None:
    yy, xx = np.mgrid[:9, :9].astype(np.float32) - 4
    surface = 3 * xx**2 + 2 * xx * yy + 5 * yy**2  # xx: 6, yy: 10, xy: 2
    response = hessian.respond(surface, 2.0)
    np.testing.assert_allclose(response[1:-1, 1:-1], 16 * (60 - 4), rtol=1e-5)


def test_the_extremum_of_a_quadratic_is_exact() -> None:
    k, y, x = np.mgrid[:5, :9, :9].astype(np.float64)
    peak = np.array([2.2, 4.3, 3.6])
    d = np.stack([k, y, x], -1) - peak
    bend = np.array([[2, 0.2, 0.1], [0.2, 3, 0.5], [0.1, 0.5, 2.5]])
    values = (100 - np.einsum("kyxi,ij,kyxj->kyx", d, bend, d)).astype(np.float32)
    found = refine(values, np.array([[2, 4, 4], [3, 5, 3]]))  # the second start is one off
    np.testing.assert_allclose(found, [[*peak, 100]], rtol=1e-4)


def test_edges_are_left_out() -> None:
    k, y, x = np.mgrid[:5, :9, :9].astype(np.float64)
    for ratio, count in ((8.0, 1), (12.0, 0)):
        values = 100 - (k - 2) ** 2 - (y - 4) ** 2 - ratio * (x - 4) ** 2
        assert len(refine(values.astype(np.float32), np.array([[2, 4, 4]]))) == count


@pytest.mark.parametrize("degrees", [0.0, 90.0, 35.0])
@pytest.mark.parametrize("factor", [1.0, 0.8])
def test_keypoints_follow_a_turned_and_scaled_photograph(
    warped: Scene, camera: np.ndarray, degrees: float, factor: float
) -> None:
    turn = np.deg2rad(degrees)
    linear = factor * np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    smooth = cv2.GaussianBlur(camera, (0, 0), 1.0)
    second, matrix = warped(smooth, linear)
    a = transform(hessian.detect(smooth, 600)[0], matrix)
    middle = np.linalg.norm(centres(a) - 255.5, axis=1) < 190 * factor
    a = a[middle & (to_similarity(a)[1] > 2.2)]  # nothing smaller is looked for
    b = hessian.detect(second, 3000)[0]
    xy_a, sigma_a, angle_a = to_similarity(a)
    xy_b, sigma_b, angle_b = to_similarity(b)
    distance = np.linalg.norm(xy_a[:, None] - xy_b[None], axis=2)
    nearest = distance.argmin(1)
    found = distance.min(1) < np.maximum(1.0, 0.3 * sigma_a)
    assert found.mean() > 0.8
    j = nearest[found]
    # No shift between the octaves, no bias of the scale, and the angle turns along.
    np.testing.assert_allclose((xy_b[j] - xy_a[found]).mean(0), 0, atol=0.08)
    assert np.median(np.log2(sigma_b[j] / sigma_a[found])) == pytest.approx(0, abs=0.03)
    difference = np.rad2deg(np.angle(np.exp(1j * (angle_b[j] - angle_a[found]))))
    assert np.median(np.abs(difference)) < 3
    assert (np.abs(difference) < 20).mean() > 0.8


def test_strips_and_threads_change_nothing(camera: np.ndarray) -> None:
    frames, scores = hessian.find_places(camera)
    threads = cv2.getNumThreads()
    try:
        for count in (1, 3):
            cv2.setNumThreads(count)
            parts, again = hessian.find_places(camera, rows=64)
            np.testing.assert_allclose(centres(parts), centres(frames), atol=1e-3)
            sizes = to_similarity(parts)[1], to_similarity(frames)[1]
            np.testing.assert_allclose(*sizes, rtol=1e-4)
            np.testing.assert_allclose(again, scores, rtol=1e-4)
    finally:
        cv2.setNumThreads(threads)


def test_the_threshold_counts_grey_levels(camera: np.ndarray) -> None:
    assert hessian.find_places(camera)[1].min() >= hessian.THRESHOLD
    more = hessian.find_places(camera, 2.0)[1]
    assert 2.0 <= more.min() < 2.2
    faint = (camera * 0.5).astype(np.uint8)
    fewer = hessian.find_places(faint)[1]
    # Half the contrast, half the score.
    expected = (hessian.find_places(camera, 2 * hessian.THRESHOLD)[1] > 0).sum()
    assert len(fewer) == pytest.approx(expected, rel=0.05)
