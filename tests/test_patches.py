from __future__ import annotations

import math

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.frames import cut_patches, empty_frames, from_similarity


def slow_patch(image: np.ndarray, frame: np.ndarray, size: int) -> np.ndarray:
    """Bilinear samples of the full-size image, one by one."""
    out = np.zeros((size, size))
    height, width = image.shape

    def pixel(x: int, y: int) -> float:
        return float(image[min(max(y, 0), height - 1), min(max(x, 0), width - 1)])

    for row in range(size):
        for column in range(size):
            u, v = (2 * column + 1) / size - 1, (2 * row + 1) / size - 1
            x, y = frame @ np.array([u, v, 1.0])
            x0, y0 = math.floor(x), math.floor(y)
            fx, fy = x - x0, y - y0
            out[row, column] = (
                pixel(x0, y0) * (1 - fx) * (1 - fy)
                + pixel(x0 + 1, y0) * fx * (1 - fy)
                + pixel(x0, y0 + 1) * (1 - fx) * fy
                + pixel(x0 + 1, y0 + 1) * fx * fy
            )
    return out


def square(x: float, y: float, side: float) -> np.ndarray:
    """An upright frame of ``side`` pixels around (x, y)."""
    return from_similarity([[x, y]], side / 12.0)


def test_frame_on_the_pixels_reproduces_them(camera: np.ndarray) -> None:
    patch = cut_patches(camera, square(100 + 15.5, 200 + 15.5, 32))[0]
    np.testing.assert_array_equal(patch, camera[200:232, 100:132])


def test_quarter_turn_is_numpys(camera: np.ndarray) -> None:
    frame = from_similarity([[115.5, 215.5]], 32 / 12, np.pi / 2)
    np.testing.assert_array_equal(cut_patches(camera, frame)[0], np.rot90(camera[200:232, 100:132]))


@pytest.mark.parametrize("size", [7, 32])
def test_values_equal_a_slow_sampler(camera: np.ndarray, size: int) -> None:
    rng = np.random.default_rng(0)
    # Steps of up to 1.4 pixels: all on the finest level. Some reach over the border.
    half = rng.uniform(0.2, 0.7, 12) * size
    angle = rng.uniform(-3, 3, 12)
    frames = from_similarity(rng.uniform(0, 511, (12, 2)), half / 6, angle)
    frames[:6, :, 0] *= 0.8  # some affine ones
    found = cut_patches(camera, frames, size)
    slow = np.array([slow_patch(camera, frame, size) for frame in frames])
    # OpenCV rounds positions to 1/32 pixel: a step of 255 grey levels may be 8 off, seldom.
    assert np.abs(found - slow).max() <= 8
    assert np.abs(found - slow).mean() < 0.6


@pytest.mark.parametrize("level", [1, 2, 3])
def test_pyramid_levels_keep_sub_pixel_positions(level: int) -> None:
    # The centroid of a blob, seen through a frame around it, is the middle of the patch. A pyramid
    # aligned by pixel corners would put it off by (1 - 2^-level) / 2 of a patch pixel or more.
    side = 32 * 2.0**level
    yy, xx = np.mgrid[:600, :600]
    x, y = 301.37, 288.61
    spread = side / 10
    blob = 250 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * spread**2))
    patch = cut_patches(np.round(blob).astype(np.uint8), square(x, y, side))[0].astype(float)
    v, u = np.mgrid[:32, :32]
    assert (u * patch).sum() / patch.sum() == pytest.approx(15.5, abs=0.05)
    assert (v * patch).sum() / patch.sum() == pytest.approx(15.5, abs=0.05)


def test_fine_texture_is_averaged_not_skipped() -> None:
    stripes = np.zeros((400, 400), np.uint8)
    stripes[:, ::2] = 255
    frame = square(200.0, 200.0, 32 * 4.3)
    skipped = slow_patch(stripes, frame[0], 32)
    assert skipped.std() > 30  # what sampling the full-size image would give
    assert cut_patches(stripes, frame)[0].std() < 2
    assert abs(cut_patches(stripes, frame)[0].mean() - 127.5) < 2


def test_outside_repeats_the_border(camera: np.ndarray) -> None:
    corner = cut_patches(camera, square(-300.0, -300.0, 20))[0]
    np.testing.assert_array_equal(corner, np.full((32, 32), camera[0, 0]))
    far = cut_patches(camera, square(1e7, 1e7, 20))[0]
    np.testing.assert_array_equal(far, np.full((32, 32), camera[-1, -1]))


def test_no_frames(camera: np.ndarray) -> None:
    found = cut_patches(camera, empty_frames())
    assert found.shape == (0, 32, 32)
    assert found.dtype == np.uint8


def mixed_frames(count: int) -> np.ndarray:
    """Frames of all sizes, so that several pyramid levels are in use."""
    rng = np.random.default_rng(2)
    return from_similarity(
        rng.uniform(0, 511, (count, 2)), np.exp(rng.uniform(0, 4, count)), rng.uniform(0, 6, count)
    )


@pytest.mark.parametrize("size", [32, 64, 65])
def test_a_patch_does_not_depend_on_its_company(camera: np.ndarray, size: int) -> None:
    frames = mixed_frames(1500)
    frames[:1100, :, :2] /= 20  # more on one level than fit into one call of OpenCV at size 64
    together = cut_patches(camera, frames, size)
    order = np.random.default_rng(0).permutation(len(frames))
    np.testing.assert_array_equal(cut_patches(camera, frames[order], size), together[order])
    for i in (0, 700, 1200, 1499):
        np.testing.assert_array_equal(cut_patches(camera, frames[i : i + 1], size)[0], together[i])


def test_tiny_image_and_huge_frame() -> None:
    tiny = np.full((3, 3), 77, np.uint8)
    np.testing.assert_array_equal(cut_patches(tiny, square(1, 1, 5000))[0], np.full((32, 32), 77))


def test_frame_without_area_is_one_pixel(camera: np.ndarray) -> None:
    point = np.zeros((1, 2, 3), np.float32)
    point[0, :, 2] = 30, 40
    np.testing.assert_array_equal(cut_patches(camera, point)[0], np.full((32, 32), camera[40, 30]))


@pytest.mark.parametrize(
    "image", [np.zeros((9, 9, 3), np.uint8), np.zeros((9, 9), np.float32)], ids=["colour", "float"]
)
def test_wrong_image_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        cut_patches(image, square(4, 4, 4))


def test_image_beyond_opencvs_limit_is_refused() -> None:
    with pytest.raises(HardnetError, match="max_size"):
        cut_patches(np.zeros((20, 40_000), np.uint8), square(4, 4, 4))
