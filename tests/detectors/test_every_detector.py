from __future__ import annotations

import cv2
import numpy as np
import pytest

from hardnet import detectors
from hardnet.errors import HardnetError

NAMES = ("dog", "hessian", "hessian-affine", "mser")


def test_names() -> None:
    assert detectors.names() == sorted(NAMES)
    with pytest.raises(HardnetError, match=r"no detector 'surf': .* dog.*affnet:AffNet"):
        detectors.load("surf")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("upright", [False, True])
def test_strongest_first_within_budget_and_always_the_same(
    camera: np.ndarray, name: str, upright: bool
) -> None:
    image = camera[100:400, 100:500]
    detect = detectors.load(name)
    frames, scores = detect(image, 25, upright=upright)
    assert frames.dtype == scores.dtype == np.float32
    assert frames.shape == (25, 2, 3)
    assert np.isfinite(frames).all()
    assert (np.linalg.det(frames[:, :, :2]) > 0).all()
    assert (np.diff(scores) <= 0).all()
    again = detect(image.copy(), 25, upright=upright)
    np.testing.assert_array_equal(frames, again[0])
    np.testing.assert_array_equal(scores, again[1])
    fewer = detect(image, 10, upright=upright)
    np.testing.assert_array_equal(fewer[1], scores[:10])
    np.testing.assert_allclose(fewer[0], frames[:10], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_upright_is_up_and_every_place_once(camera: np.ndarray, name: str) -> None:
    frames, _ = detectors.load(name)(camera, 5000, upright=True)
    np.testing.assert_array_equal(frames[:, 0, 1], 0)  # the patch's y axis is the image's
    assert (frames[:, 1, 1] > 0).all()
    assert len(np.unique(frames, axis=0)) == len(frames)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shape", [(1, 1), (1, 300), (300, 1), (2, 2), (5, 400), (12, 12), (13, 13), (16, 16), (40, 17)]
)
def test_tiny_images_and_strips(name: str, shape: tuple[int, int]) -> None:
    detect = detectors.load(name)
    noise = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for image in (noise, np.full(shape, 77, np.uint8)):
        for upright in (False, True):
            frames, scores = detect(image, 100, upright=upright)
            assert frames.shape == (len(scores), 2, 3)
            assert np.isfinite(frames).all()
    assert not len(scores)


@pytest.mark.parametrize("name", NAMES)
def test_an_even_image_has_no_keypoints(name: str) -> None:
    for grey in (0, 128, 255):
        frames, scores = detectors.load(name)(np.full((200, 150), grey, np.uint8))
        assert frames.shape == (0, 2, 3)
        assert scores.shape == (0,)


@pytest.mark.parametrize("name", NAMES)
def test_threads_do_not_change_the_result(camera: np.ndarray, name: str) -> None:
    detect = detectors.load(name)
    threads = cv2.getNumThreads()
    try:
        cv2.setNumThreads(1)
        one = detect(camera, 300)
        cv2.setNumThreads(3)
        three = detect(camera, 300)
    finally:
        cv2.setNumThreads(threads)
    np.testing.assert_array_equal(one[0], three[0])
    np.testing.assert_array_equal(one[1], three[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hessian", "hessian-affine"])
def test_a_large_image(camera: np.ndarray, name: str) -> None:
    large = cv2.resize(camera, (4500, 4400), interpolation=cv2.INTER_CUBIC)
    frames, _ = detectors.load(name)(large, 2048)
    assert len(frames) > 1500


def test_memory_follows_the_way_an_image_is_searched() -> None:
    """Whole up to six megapixels and for what is unknown; in tiles or strips beyond."""
    megapixel = 1_000_000
    dog, mser = detectors.load("dog"), detectors.load("mser")
    assert detectors.memory(dog, 5 * megapixel) == detectors.memory(mser, 5 * megapixel) > 1e9
    assert detectors.memory(mser, 24 * megapixel) > 4e9
    assert detectors.memory(lambda *_: dog(*_), 24 * megapixel) > 4e9
    tiles = 192 * megapixel + cv2.getNumThreads() * detectors.PART_BYTES
    for name in ("dog", "hessian", "hessian-affine"):
        for spread in (False, True):
            assert detectors.memory(detectors.load(name, spread), 24 * megapixel) == tiles
    assert detectors.memory(detectors.load("hessian"), 100) == 100 * detectors.PYRAMID_BYTES
