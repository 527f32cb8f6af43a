from __future__ import annotations

import numpy as np
import pytest

import hardnet
from hardnet import detectors
from hardnet.detectors import PER_CELL, POOL, spread_over
from hardnet.features import find, prepare
from hardnet.frames import centres


def by_a_loop(xy: np.ndarray, scores: np.ndarray, size: tuple[int, int], count: int) -> list[int]:
    """Rounds over all cells: each gives the strongest it has left, the strongest of these first."""
    side = (size[0] * size[1] * PER_CELL / count) ** 0.5
    cells: dict[tuple[int, int], list[int]] = {}
    for i in sorted(range(len(xy)), key=lambda i: (-scores[i], i)):
        cells.setdefault((int(xy[i, 0] // side), int(xy[i, 1] // side)), []).append(i)
    kept: list[int] = []
    while len(kept) < count and any(cells.values()):
        given = [cell.pop(0) for cell in cells.values() if cell]
        kept += sorted(given, key=lambda i: (-scores[i], i))
    return sorted(kept[:count])


@pytest.mark.parametrize("seed", range(5))
def test_as_by_a_loop(seed: int) -> None:
    rng = np.random.default_rng(seed)
    xy = rng.random((300, 2)) ** 2 * (640, 479)
    scores = rng.integers(1, 40, 300).astype(np.float32)  # with ties
    for count in (1, 7, 100, 299, 300, 1000):
        chosen = spread_over(xy, scores, (640, 479), count)
        assert chosen.tolist() == by_a_loop(xy, scores, (640, 479), count)


def test_positions_on_and_beyond_the_border_count_as_others() -> None:
    xy = np.array([[-0.4, 5], [99.6, 5], [50, 99.7], [50, 50], [51, 50], [52, 50]])
    chosen = spread_over(xy, np.arange(6, 0, -1, dtype=np.float32), (100, 100), 4)
    assert chosen.tolist() == [0, 1, 2, 3]


def test_no_keypoints() -> None:
    assert spread_over(np.zeros((0, 2)), np.zeros(0, np.float32), (10, 10), 5).shape == (0,)


def half_faint(camera: np.ndarray) -> np.ndarray:
    faint = camera.copy()
    faint[:, 256:] = 100 + faint[:, 256:] // 10
    return faint


@pytest.mark.parametrize("name", detectors.names())
def test_every_detector_reaches_the_faint_half(camera: np.ndarray, name: str) -> None:
    image = half_faint(camera)
    plain, spread_out = (detectors.load(name, spread)(image, 60) for spread in (False, True))
    on_the_right = [(centres(frames)[:, 0] > 256).sum() for frames, _ in (plain, spread_out)]
    assert on_the_right[1] >= on_the_right[0]
    if name == "dog":
        assert on_the_right[0] < 6 < on_the_right[1]
    frames, scores = spread_out
    assert len(frames) <= 60
    assert (np.diff(scores) <= 0).all()
    every, _ = detectors.load(name)(image, 60 * POOL)
    assert {frame.tobytes() for frame in frames} <= {frame.tobytes() for frame in every}


def test_all_ways_to_ask_for_features_spread_them(camera: np.ndarray) -> None:
    image = half_faint(camera)
    how = {"descriptor": "rootsift", "keypoints": 50}
    turned = hardnet.extract(image, **how, spread=True)
    upright = hardnet.extract(image, **how, spread=True, upright=True)
    np.testing.assert_array_equal(turned.frames, detectors.load("dog", True)(image, 50)[0])
    auto = hardnet.extract(image, **how, spread=True, orientation="auto")
    np.testing.assert_array_equal(auto.frames, upright.frames)
    assert auto.turned is not None
    np.testing.assert_array_equal(auto.turned().frames, turned.frames)
    matched = hardnet.match(image, image, **how, spread=True, orientation="dominant")
    np.testing.assert_array_equal(matched.a.frames, turned.frames)
    with pytest.raises(hardnet.HardnetError, match="spread are for images"):
        hardnet.match(turned, turned, spread=True)


def test_a_detector_of_a_user_is_spread(camera: np.ndarray) -> None:
    crowd = [(250 + i % 6, 250 + i // 6) for i in range(36)]
    corners = [(20, 20), (490, 20), (20, 490), (490, 490)]

    def mine(image: np.ndarray, keypoints: int) -> tuple[np.ndarray, np.ndarray]:
        frames = np.zeros((40, 2, 3), np.float32)
        frames[:, [0, 1], [0, 1]], frames[:, :, 2] = 6, crowd + corners
        return frames[:keypoints], np.arange(40, 0, -1, dtype=np.float32)[:keypoints]

    found = find(prepare(camera), detectors.load(mine, spread=True), 10)
    assert len(found.frames) == 10
    assert {tuple(place) for place in centres(found.frames)} >= set(corners)
