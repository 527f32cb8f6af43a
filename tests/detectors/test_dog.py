from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.detectors import dog
from hardnet.frames import centres, to_similarity, transform


def blob(x: float, y: float, spread: float) -> np.ndarray:
    yy, xx = np.mgrid[:200, :200]
    hill = np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * spread**2))
    return np.round(40 + 150 * hill).astype(np.uint8)


@pytest.mark.parametrize("spread", [3.0, 6.0])
def test_a_blob_is_found_where_it_is(spread: float) -> None:
    frames, _ = dog.detect(blob(100.3, 90.6, spread), 1)
    xy, sigma, _ = to_similarity(frames)
    # OpenCV's default doubling of the image would be off by 0.25.
    np.testing.assert_allclose(xy[0], [100.3, 90.6], atol=0.05)
    assert sigma[0] == pytest.approx(0.89 * spread, rel=0.05)


def test_faint_images_still_fill_the_budget(camera: np.ndarray) -> None:
    faint = (100 + camera * 0.15).astype(np.uint8)
    assert len(cv2.SIFT_create().detect(faint, None)) < 150
    assert len(dog.detect(faint, 500)[0]) == 500


def test_upright_gives_every_place_once(camera: np.ndarray) -> None:
    turned, _ = dog.detect(camera, 100_000)
    upright, scores = dog.detect(camera, 100_000, upright=True)
    np.testing.assert_array_equal(upright[:, 0, 1], 0)
    np.testing.assert_array_equal(upright[:, 0, 0], upright[:, 1, 1])
    assert (np.diff(scores) <= 0).all()
    xy, sigma, _ = to_similarity(turned)
    places = {(*p, s) for p, s in zip(xy.tolist(), np.round(sigma, 3).tolist(), strict=True)}
    assert len(places) == len(upright) < len(turned)


def test_keypoints_repeat_on_a_real_pair(data: Path) -> None:
    first, second = (
        cv2.imread(str(data / "oxford-affine" / "graf" / f"{k}.png"), 0) for k in (1, 2)
    )
    homography = np.loadtxt(data / "oxford-affine" / "graf" / "H_1_2")
    moved = centres(transform(dog.detect(first)[0], homography))
    found = centres(dog.detect(second)[0])
    height, width = second.shape
    inside = ((moved > 0) & (moved < (width, height))).all(1)
    nearest = np.linalg.norm(moved[inside][:, None] - found[None], axis=2).min(1)
    assert (nearest < 2).mean() > 0.4  # 2048 random positions: 0.05


@pytest.mark.parametrize("brightness", [1.0, 0.1])
def test_a_budget_keeps_the_first_of_all(camera: np.ndarray, brightness: float) -> None:
    image = np.uint8(camera * brightness)
    frames, scores = dog.detect(image, 1_000_000)
    for budget in (1, 50, 400):
        few, few_scores = dog.detect(image, budget)
        np.testing.assert_array_equal(few, frames[:budget])
        np.testing.assert_array_equal(few_scores, scores[:budget])


@pytest.mark.parametrize("keypoints", [1, 300, 100_000])
def test_both_ways_at_once_are_both_ways(camera: np.ndarray, keypoints: int) -> None:
    for image in (camera[:300, :300].copy(), np.zeros((90, 80), np.uint8)):
        for upright, found in zip((True, False), dog.detect_both(image, keypoints), strict=True):
            for one, other in zip(found, dog.detect(image, keypoints, upright), strict=True):
                np.testing.assert_array_equal(one, other)


def keys_of(image: np.ndarray, places: int, side: int | None) -> np.ndarray:
    """(N, 5) of the strongest places: in tiles of ``side``, or by OpenCV for None."""
    if side is not None:
        return dog.find_keys(image, dog.CONTRAST, places, side)
    sift = cv2.SIFT.create(contrastThreshold=dog.CONTRAST, enable_precise_upscale=True)
    keys = dog.sorted_keys(sift.detect(image, None))
    return keys[np.cumsum(dog.is_new_place(keys)) <= places]


def share_without_like(one: np.ndarray, other: np.ndarray) -> float:
    """Part of the keys in ``one`` that ``other`` has nothing like."""
    near = np.array([1e-5, 1e-2, 1e-2, 1e-2, 0.1])
    return float(np.mean([(np.abs(other - key) > near).any(1).all() for key in one]))


# Tiles that end inside the image, odd sides, and sides that are no multiple of a tile's.
@pytest.mark.parametrize(
    ("height", "width", "side", "places"),
    [(301, 420, 128, 400), (301, 420, 128, 100_000), (512, 512, 200, 400)],
)
def test_tiles_find_what_opencv_finds(
    camera: np.ndarray, height: int, width: int, side: int, places: int
) -> None:
    image = np.ascontiguousarray(camera[:height, :width])
    whole, tiled = keys_of(image, places, None), keys_of(image, places, side)
    assert abs(len(tiled) - len(whole)) <= 3e-3 * len(whole)
    assert share_without_like(whole, tiled) <= 3e-3
    assert share_without_like(tiled, whole) <= 3e-3


def test_coarse_octaves_of_tiles_are_those_of_opencv(camera: np.ndarray) -> None:
    whole, tiled = (keys_of(camera, 10**6, side) for side in (None, 200))
    whole, tiled = (keys[keys[:, 3] > 20] for keys in (whole, tiled))
    assert len(whole) == len(tiled) > 10
    np.testing.assert_allclose(tiled, whole, rtol=1e-3, atol=1e-2)


def test_tiles_do_not_depend_on_threads(camera: np.ndarray) -> None:
    image, threads = np.ascontiguousarray(camera[:300, :300]), cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        one = keys_of(image, 300, 128)
        cv2.setNumThreads(2)
        two = keys_of(image, 300, 128)
    finally:
        cv2.setNumThreads(threads)
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("shape", [(16, 16), (17, 3000)])
def test_tiles_of_even_and_narrow_images(shape: tuple[int, int]) -> None:
    assert dog.find_keys(np.full(shape, 128, np.uint8), dog.CONTRAST, 10).shape == (0, 5)


def test_a_large_image_is_searched_in_tiles(
    camera: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = np.ascontiguousarray(camera[100:400, 100:400])
    monkeypatch.setattr(dog, "LARGE", image.size - 1)  # a photo beyond its true value takes long
    upright, turned = dog.detect_both(image, 400)
    for found, is_upright in ((upright, True), (turned, False)):
        for one, other in zip(found, dog.detect(image, 400, is_upright), strict=True):
            np.testing.assert_array_equal(one, other)
    frames, scores = turned
    assert len(frames) == 400
    assert (np.diff(scores) <= 0).all()
    keys = keys_of(image, 400, dog.SIDE)
    np.testing.assert_allclose(scores, -keys[:400, 0].astype(np.float32))
    xy, sigma, _ = to_similarity(frames)
    np.testing.assert_allclose(xy, keys[:400, [2, 1]], rtol=1e-5)
    np.testing.assert_allclose(2 * sigma, keys[:400, 3], rtol=1e-4)


def test_places_of_many_orientations_fill_the_budget() -> None:
    image = np.full((400, 400), 128, np.uint8)
    for row in range(5):
        for column in range(5):  # squares: four orientations each, of different contrast
            y, x = 30 + 75 * row, 30 + 75 * column
            image[y : y + 24, x : x + 24] = 140 + 4 * (5 * row + column)
    every = dog._opencv_keys(image, 0)
    places = dog.is_new_place(every)
    assert places.sum() < len(every) / 2
    frames, _ = dog.detect(image, 20, upright=True)
    assert len(frames) == 20
    np.testing.assert_allclose(centres(frames), every[places][:20, [2, 1]], atol=1e-3)
