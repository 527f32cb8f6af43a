from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.features import Features, extract
from hardnet.frames import from_similarity
from hardnet.images import read_image
from hardnet.matching.geometry import relative_pose, sampson_error, transfer_error
from hardnet.matching.matches import MODS, Matches, Strategy, match, without_duplicates

TRUTH = np.array([[0.8, -0.25, 120], [0.22, 0.85, 10], [1e-4, 5e-5, 1]])
Pair = tuple[Features, Features]


def features(image: object, **options: object) -> Features:
    return extract(image, descriptor="rootsift", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def warped(photos: Path) -> Pair:
    """Features of a photograph, and of the same under a homography."""
    image = read_image(photos / "astronaut.png")
    return features(image), features(cv2.warpPerspective(image, TRUTH, (560, 560)))


@pytest.fixture(scope="module")
def matched(warped: Pair) -> Callable[[Strategy], Matches]:
    """Matches of the warped photograph by a strategy; made once."""
    return cache(lambda strategy: match(*warped, strategy=strategy))


@pytest.fixture(scope="module")
def stereo(photos: Path) -> Pair:
    left, right = (features(photos / f"motorcycle_{side}.png") for side in ("left", "right"))
    return left, right


def moved(points: np.ndarray) -> np.ndarray:
    target = np.hstack([points, np.ones((len(points), 1))]) @ TRUTH.T
    return np.asarray(target[:, :2] / target[:, 2:])


def correct(result: Matches) -> np.ndarray:
    xy_a, xy_b = result.xy_a.astype(float), result.xy_b.astype(float)
    return (transfer_error(TRUTH, xy_a, xy_b) < 3) & result.inliers


def test_homography_of_a_warped_photo(matched: Callable[[Strategy], Matches]) -> None:
    result = matched(Strategy())
    assert result.geometry.kind == "homography"
    assert result.inliers.sum() > 300
    corners = np.array([[100.0, 100], [400, 100], [400, 400], [100, 400]])
    assert transfer_error(result.geometry.model, corners, moved(corners)).max() < 0.7


def test_geometry_is_in_pixels_of_the_originals(photos: Path, warped: Pair) -> None:
    image = read_image(photos / "astronaut.png")
    large = cv2.resize(image, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC)
    result = match(features(large, max_size=500), warped[1])
    assert result.geometry.kind == "homography"
    points = np.array([[100.0, 100], [400, 150], [300, 400]])
    error = transfer_error(result.geometry.model, (points + 0.5) * 3 - 0.5, moved(points))
    assert error.max() < 1


def test_fundamental_matrix_of_a_stereo_pair(stereo: Pair, tmp_path: Path) -> None:
    a, b = stereo
    result = match(a, b)
    assert result.geometry.kind == "fundamental"
    assert result.inliers.sum() > 500
    assert result.inliers.mean() > 0.7
    left, right = result.xy_a[result.inliers], result.xy_b[result.inliers]
    assert np.abs(left[:, 1] - right[:, 1]).mean() < 1  # the pair is rectified: rows agree
    assert sampson_error(result.geometry.model, left, right).max() < 3
    # The fields belong together.
    assert len(result) == len(result.indices) == len(result.scores) == len(result.inliers)
    np.testing.assert_array_equal(result.xy_a, a.xy[result.indices[:, 0]])
    np.testing.assert_array_equal(result.xy_b, b.xy[result.indices[:, 1]])
    assert (np.diff(result.scores) <= 0).all()
    assert result.geometry.model.shape == (3, 3)
    assert list(result.seconds) == ["match", "verify"]
    result.draw(tmp_path / "matches.png")
    picture = read_image(tmp_path / "matches.png")
    assert picture.shape[1] > 2 * 741
    assert picture.ndim == 3


def test_unrelated_photos_are_not_verified(photos: Path) -> None:
    names = ["astronaut", "chelsea", "coffee", "brick"]
    found = [features(photos / f"{name}.png", keypoints=600) for name in names]
    for i, ratio in product(range(len(found)), (0.9, 1.0)):
        result = match(found[i], found[i - 1], ratio=ratio)
        assert result.geometry.kind is None, (names[i], names[i - 1], result.inliers.sum())


def test_picture_of_arrays(camera: np.ndarray, tmp_path: Path) -> None:
    found = features(camera, keypoints=300)
    result = match(found, found)
    assert result.geometry.kind == "homography"
    result.draw(tmp_path / "self.jpg")
    assert (tmp_path / "self.jpg").stat().st_size > 10_000


def test_mixed_descriptors_are_refused(camera: np.ndarray) -> None:
    with pytest.raises(HardnetError, match="cannot match rootsift with sift"):
        match(features(camera, keypoints=9), extract(camera, descriptor="sift", keypoints=9))


def test_real_planes(data: Path) -> None:
    folder = data / "oxford-affine" / "wall"
    result = match(features(folder / "1.png"), features(folder / "3.png"))
    assert result.geometry.kind == "homography"
    homography = np.loadtxt(folder / "H_1_3")
    error = transfer_error(homography, result.xy_a, result.xy_b)
    assert (error[result.inliers] < 5).mean() > 0.98
    assert (error < 3).sum() > 500


def made_features(xy: np.ndarray, vectors: np.ndarray, scale: float = 1.0) -> Features:
    frames = from_similarity(xy, 3.0)
    rows = vectors if vectors.dtype == np.uint8 else vectors.astype(np.float32)
    return Features(frames, np.ones(len(xy), np.float32), rows, (640, 640), "made", scale)


def whole_numbers() -> tuple[Features, Features]:
    """Descriptors of whole numbers, so that every sum is exact on every machine."""
    rng = np.random.default_rng(11)
    xy = rng.integers(0, 400, (40, 2)).astype(float)
    a = rng.integers(0, 9, (40, 12)).astype(np.float32)
    order = rng.permutation(40)[:34]
    b = a[order] + rng.integers(-2, 3, (34, 12))
    to = np.stack([1.5 * xy[order, 0] + 20, 1.5 * xy[order, 1] - 10], 1)
    to += rng.integers(-4, 5, (34, 2)) / 4
    to[:6] = rng.integers(0, 400, (6, 2))
    return made_features(xy, a, 0.5), made_features(to, b, 0.5)


@pytest.mark.parametrize("strategy", ["default", Strategy()])
def test_the_default_is_what_it_was(strategy: Strategy | None) -> None:
    """Numbers of the first release."""
    result = match(*whole_numbers(), strategy=strategy)
    assert result.indices[:, 0].tolist() == [
        33, 32, 31, 9, 11, 1, 3, 4, 37, 24, 19, 20, 39, 27, 29, 21, 15, 22, 34, 13, 5, 38, 10, 2,
        30, 35, 17, 26, 16, 8, 0, 28, 18,
    ]  # fmt: skip
    assert result.indices[:, 1].tolist() == [
        28, 3, 9, 5, 29, 24, 16, 31, 20, 21, 13, 0, 26, 23, 19, 8, 12, 4, 25, 17, 11, 18, 2, 32,
        14, 27, 30, 33, 7, 1, 15, 6, 22,
    ]  # fmt: skip
    assert np.flatnonzero(~result.inliers).tolist() == [1, 3, 11, 17, 22, 29]
    np.testing.assert_allclose(
        result.scores[[0, 1, 10, 32]], [0.6278958, 0.5862716, 0.5, 0.2094306], atol=1e-7
    )
    assert result.geometry.kind == "homography"
    np.testing.assert_allclose(
        result.geometry.model,
        [
            [1.4952466344583892, 0.0055388177189014684, 19.879099086425832],
            [-0.0019295166194307116, 1.5018200946191436, -9.893164865373794],
            [-8.690338968367204e-06, 8.040050722310523e-06, 1.0],
        ],
        rtol=1e-4,
    )


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(symmetric=True),
        Strategy(mutual=False),
        Strategy(fginn=10),
        Strategy(duplicates=2),
        Strategy(guided=True),
        Strategy(frame_check=True),
        Strategy(neighbours="flann"),
        Strategy(threshold=1.0),
        replace(MODS, guided=True, symmetric=True),
        MODS,
    ],
)
def test_every_strategy_finds_the_homography_twice_alike(
    warped: Pair, matched: Callable[[Strategy], Matches], strategy: Strategy
) -> None:
    result = matched(strategy)
    assert result.geometry.kind == "homography"
    assert correct(result).sum() > 0.6 * correct(matched(Strategy())).sum()
    assert correct(result).sum() > 0.97 * result.inliers.sum()
    assert len(np.unique(result.indices, axis=0)) == len(result)
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(4)
        again = match(*warped, strategy=strategy)
    finally:
        cv2.setNumThreads(threads)
    np.testing.assert_array_equal(again.indices, result.indices)
    np.testing.assert_array_equal(again.scores, result.scores)
    np.testing.assert_array_equal(again.inliers, result.inliers)
    np.testing.assert_array_equal(again.geometry.model, result.geometry.model)


def test_guided_keeps_the_inliers_and_finds_more(
    matched: Callable[[Strategy], Matches],
) -> None:
    strict, result = matched(Strategy(ratio=0.6)), matched(Strategy(ratio=0.6, guided=True))
    old, new = (set(map(tuple, r.indices[r.inliers].tolist())) for r in (strict, result))
    assert len(new) > 1.03 * len(old)
    assert len(old - new) < 0.02 * len(old)
    assert correct(result).sum() > 0.97 * len(new)
    assert (result.scores[-20:] == 0).all()
    assert (np.diff(result.scores) <= 0).all()
    for column in (0, 1):  # mutual: nothing is matched twice
        assert len(set(result.indices[result.inliers, column])) == result.inliers.sum()


def test_fginn_keeps_what_is_found_twice(matched: Callable[[Strategy], Matches]) -> None:
    strict, result = matched(Strategy(ratio=0.6)), matched(Strategy(ratio=0.6, fginn=10))
    assert correct(result).sum() > correct(strict).sum()
    assert set(map(tuple, strict.indices)) < set(map(tuple, result.indices))


def test_pixels_are_those_that_were_looked_at() -> None:
    """Half the scale and twice the distance is the same image."""
    a, b = whole_numbers()
    strategy = Strategy(fginn=30, duplicates=40, guided=True, frame_check=True)
    expected = match(a, b, strategy=strategy)
    for factor in (0.25, 4.0):
        large = [
            replace(f, frames=f.frames * np.float32(factor), scale=f.scale / factor) for f in (a, b)
        ]
        result = match(large[0], large[1], strategy=strategy)
        np.testing.assert_array_equal(result.indices, expected.indices)
        np.testing.assert_array_equal(result.inliers, expected.inliers)


def test_duplicates_are_gone(matched: Callable[[Strategy], Matches]) -> None:
    result = matched(Strategy(duplicates=2))
    ends = np.hstack([result.xy_a, result.xy_b]).astype(float)
    offset = ends[:, None] - ends
    close = np.hypot(offset[..., 0], offset[..., 1]) <= 2
    close &= np.hypot(offset[..., 2], offset[..., 3]) <= 2
    assert close.sum() == len(result)  # each with itself


def test_frames_that_disagree_are_dropped() -> None:
    a, b = whole_numbers()
    loose = match(a, b, "homography")
    large = [replace(f, frames=np.concatenate([f.frames[:, :, :2] * 20, f.frames[:, :, 2:]], 2))
             for f in (a, b)]  # fmt: skip
    turned = large[1].frames.copy()
    turned[10:20, :, :2] *= -1  # half a turn
    result = match(
        large[0],
        replace(large[1], frames=turned),
        "homography",
        strategy=Strategy(frame_check=True),
    )
    np.testing.assert_array_equal(result.indices, loose.indices)
    wrong = (result.indices[:, 1] >= 10) & (result.indices[:, 1] < 20)
    assert wrong.any()
    np.testing.assert_array_equal(result.inliers, loose.inliers & ~wrong)
    turned[:, :, :2] *= -1
    turned[10:20, :, :2] *= -1
    none = match(
        large[0],
        replace(large[1], frames=turned),
        "homography",
        strategy=Strategy(frame_check=True),
    )
    assert none.geometry.kind is None
    assert none.geometry.model is None
    assert not none.inliers.any()


@pytest.mark.parametrize("strategy", [Strategy(fginn=5, guided=True, symmetric=True), MODS])
def test_packed_bits(strategy: Strategy) -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 256, (200, 32), dtype=np.uint8)
    xy = rng.uniform(0, 500, (200, 2))
    flips = np.packbits(rng.random((200, 256)) < 0.15, axis=1)
    a, b = made_features(xy, bits), made_features(xy + 7, bits ^ flips)
    if strategy.neighbours == "flann":
        with pytest.raises(HardnetError, match="packed bits"):
            match(a, b, strategy=strategy)
        strategy = replace(strategy, neighbours="exact")
    result = match(a, b, strategy=strategy)
    assert result.geometry.kind == "homography"
    assert result.inliers.sum() >= 195


@pytest.mark.parametrize("strategy", [Strategy(), MODS, replace(MODS, guided=True, mutual=True)])
@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_degenerate_features(strategy: Strategy, count: int) -> None:
    one_place = made_features(
        np.full((count, 2), 9.0), np.random.default_rng(0).normal(size=(count, 8))
    )
    equal = made_features(np.random.default_rng(0).uniform(0, 99, (count, 2)), np.ones((count, 8)))
    for pair in ((one_place, one_place), (equal, equal), (one_place, equal)):
        result = match(*pair, strategy=strategy)
        assert result.geometry.kind is None
        assert result.inliers.shape == (len(result),)


def known_cameras(scale: float) -> tuple[Features, Features, tuple[np.ndarray, np.ndarray]]:
    """Two views of a scene with depth, in images of which the first was shrunk."""
    rng = np.random.default_rng(3)
    left = np.array([[1400, 0, 800], [0, 1400, 600], [0, 0, 1.0]])
    right = np.array([[900, 0, 380], [0, 920, 310], [0, 0, 1.0]])
    points = rng.uniform([-2, -1.5, 3], [2, 1.5, 9], (150, 3))
    vectors = rng.normal(size=(150, 16))
    places = []
    for camera, move in ((left, np.zeros(3)), (right, np.array([-0.8, 0.1, 0.2]))):
        seen = (points + move) @ camera.T
        places.append(seen[:, :2] / seen[:, 2:] + rng.normal(0, 0.3, (150, 2)))
    return (
        made_features(places[0], vectors, scale),
        made_features(places[1], vectors),
        (left, right),
    )


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize("guided", [False, True])
def test_essential_matrix_and_pose_in_original_pixels(scale: float, guided: bool) -> None:
    a, b, cameras = known_cameras(scale)
    result = match(a, b, "essential", strategy=Strategy(guided=guided), cameras=cameras)
    assert result.geometry.kind == "essential"
    assert result.inliers.sum() > 140
    np.testing.assert_array_equal(result.geometry.cameras, cameras)
    pose = relative_pose(result.geometry, result.xy_a, result.xy_b)
    direction = np.array([-0.8, 0.1, 0.2]) / np.linalg.norm([-0.8, 0.1, 0.2])
    assert pose.translation @ direction > np.cos(np.deg2rad(2))
    assert np.trace(pose.rotation) > 1 + 2 * np.cos(np.deg2rad(1))
    lines = np.c_[result.xy_a, np.ones(len(result))] @ result.geometry.fundamental.T
    off = np.abs((lines * np.c_[result.xy_b, np.ones(len(result))]).sum(1))
    assert np.median(off / np.hypot(lines[:, 0], lines[:, 1])) < 2


def test_options_that_contradict_are_said() -> None:
    a, b, _ = known_cameras(1.0)
    with pytest.raises(HardnetError, match="needs cameras"):
        match(a, b, "essential")
    with pytest.raises(HardnetError, match=r"shape \(2, 2\)"):
        match(a, b, "essential", cameras=(np.eye(2), np.eye(2)))
    with pytest.raises(HardnetError, match="no model 'affine'"):
        match(a, b, "affine")  # type: ignore[arg-type]


def test_ratio_overrides_that_of_the_strategy() -> None:
    a, b = whole_numbers()
    assert len(match(a, b, ratio=0.6, strategy=MODS)) == len(
        match(a, b, strategy=replace(MODS, ratio=0.6))
    )
    assert len(match(a, b, "auto", 0.6)) < len(match(a, b))


@pytest.mark.parametrize(
    "wrong",
    [
        {"ratio": 0.0},
        {"ratio": 1.01},
        {"neighbours": "annoy"},
        {"estimator": "ransac"},
        {"fginn": 0.0},
        {"duplicates": -1.0},
        {"threshold": float("nan")},
        {"threshold": float("inf")},
    ],
)
def test_wrong_values_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        Strategy(**wrong)  # type: ignore[arg-type]


def slow(a: np.ndarray, b: np.ndarray, pixels: float) -> list[int]:
    """From the best match on: keep it unless it repeats one that is kept."""
    kept: list[int] = []
    for i in range(len(a)):
        if all(math.dist(a[i], a[k]) > pixels or math.dist(b[i], b[k]) > pixels for k in kept):
            kept.append(i)
    return kept


@pytest.mark.parametrize("side", [3.0, 15.0, 200.0])
def test_duplicates_equal_explicit_loops(side: float) -> None:
    rng = np.random.default_rng(0)
    a = rng.uniform(0, side, (150, 2))
    b = a * 1.2 + rng.normal(0, 1.5, (150, 2))
    expected = slow(a, b, 2.0)
    assert 1 < len(expected) < 150 or side == 200
    for block in (1, 7, 64, 1024):
        assert without_duplicates(a, b, 2.0, block).tolist() == expected


def test_duplicates_by_hand() -> None:
    # 1 repeats 0. 2 repeats 1, which is gone, and not 0: it stays. 3 is elsewhere in b.
    a = np.array([[0.0, 0], [1.5, 0], [3, 0], [0, 0]])
    b = np.array([[0.0, 0], [0, 2], [0, 3], [9, 9]])
    assert without_duplicates(a, b, 2.0).tolist() == [0, 2, 3]


@pytest.mark.parametrize("count", [0, 1, 2, 3000])
def test_duplicates_all_in_one_place(count: int) -> None:
    place = np.ones((count, 2), np.float32)
    assert without_duplicates(place, place, 2.0).tolist() == [0][:count]


def test_memory_of_duplicates_does_not_grow_with_the_square() -> None:
    rng = np.random.default_rng(1)
    a = rng.uniform(0, 2000, (12_000, 2))
    a[:6000] = rng.uniform(0, 3, (6000, 2))  # half of them in one place of both images
    tracemalloc.start()
    kept = without_duplicates(a, a, 2.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 3000 < len(kept) < 6020
    assert peak < 150e6


def test_strategies_by_name(camera: np.ndarray) -> None:
    found = extract(camera, descriptor="rootsift", keypoints=100)
    named, given = match(found, found, strategy="mods"), match(found, found, strategy=MODS)
    assert len(named) == len(given)
    with pytest.raises(HardnetError, match="no strategy 'best': choose default, mods"):
        match(found, found, strategy="best")  # type: ignore[arg-type]
