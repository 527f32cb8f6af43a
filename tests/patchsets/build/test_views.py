"""Random views: geometry carried exactly, noise within its limits, light without saturation."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np

from hardnet.frames import cut_patches, from_similarity, to_similarity, transform
from hardnet.patchsets.build.views import (
    SHIFT,
    STRETCH,
    ZOOM,
    forget_affine_shape,
    jitter,
    random_homography,
    random_light_and_sensor,
    render,
)


def test_rendering_and_frames_agree(photos: Path) -> None:
    """The patch cut by the moved frame from the rendering is the patch of the original."""
    image = cv2.imread(str(photos / "astronaut.png"), cv2.IMREAD_GRAYSCALE)
    rng = np.random.default_rng(2)
    frames = from_similarity(rng.uniform(180, 330, (40, 2)), 3.0, rng.uniform(0, 6, 40))
    errors = []
    for _ in range(5):
        homography = random_homography(512, 512, rng)
        moved = transform(frames, homography)
        before = cut_patches(image, frames, 32).astype(float)
        after = cut_patches(render(image, homography), moved, 32).astype(float)
        errors.append(np.abs(before - after).mean())
        off = moved.copy()
        off[:, 0, 2] += 4  # pixels
        shifted = cut_patches(render(image, homography), off, 32)
        assert errors[-1] < 0.5 * np.abs(before - shifted).mean()
    assert np.mean(errors) < 6


def test_jitter_stays_within_its_limits() -> None:
    frames = np.repeat(from_similarity([[100, 50]], 4.0, 0.7), 5000, 0)
    noisy = jitter(frames, np.random.default_rng(0))
    relative = np.linalg.inv(frames[:, :, :2]) @ noisy[:, :, :2]
    shift = np.linalg.inv(frames[:, :, :2]) @ (noisy[:, :, 2:] - frames[:, :, 2:])
    assert 0.98 * SHIFT < np.abs(shift).max() <= SHIFT + 1e-5
    size = np.log2(np.linalg.det(relative)) / 2
    assert 0.98 * ZOOM < np.abs(size).max() <= ZOOM + 1e-4
    singular = np.linalg.svd(relative, compute_uv=False)
    stretch = np.log2(singular[:, 0] / singular[:, 1])
    assert 0.9 * STRETCH < stretch.max() <= STRETCH + 1e-4


def test_amount_scales_every_part_of_the_jitter() -> None:
    frames = np.repeat(from_similarity([[100, 50]], 4.0, 0.7), 3000, 0)
    amount = np.where(np.arange(3000) < 1500, 0.0, 2.0)
    noisy = jitter(frames, np.random.default_rng(0), amount)
    assert np.allclose(noisy[:1500], frames[:1500], atol=1e-4)
    relative = np.linalg.inv(frames[1500:, :, :2]) @ noisy[1500:, :, :2]
    shift = np.linalg.inv(frames[:, :, :2]) @ (noisy[:, :, 2:] - frames[:, :, 2:])
    assert 1.9 * SHIFT < np.abs(shift).max() <= 2 * SHIFT + 1e-5
    size = np.log2(np.linalg.det(relative)) / 2
    assert 1.9 * ZOOM < np.abs(size).max() <= 2 * ZOOM + 1e-4


def test_no_jitter_is_the_identity() -> None:
    frames = from_similarity([[10, 20], [30, 40]], [2, 3], [0.1, 2.0])
    assert np.allclose(jitter(frames, np.random.default_rng(0), 0.0), frames, atol=1e-5)


def test_similarity_frames_keep_centre_area_and_axis() -> None:
    frames = transform(
        from_similarity([[10, 20]], 2, 0.3), [[1.2, 0.4, 3], [-0.1, 0.7, 1], [0, 0, 1]]
    )
    plain = forget_affine_shape(frames)
    for a, b in zip(to_similarity(frames), to_similarity(plain), strict=True):
        assert np.allclose(a, b, atol=1e-5)
    assert np.allclose(np.linalg.norm(plain[:, :, 0]), np.linalg.norm(plain[:, :, 1]))


def test_light_changes_do_not_saturate(photos: Path) -> None:
    image = cv2.imread(str(photos / "coffee.png"), cv2.IMREAD_GRAYSCALE)
    rng = np.random.default_rng(3)
    for _ in range(8):
        out = random_light_and_sensor(image, rng)
        assert ((out <= 1) | (out >= 254)).mean() < 0.05
        assert out.std() > 15


def test_more_wear_leaves_less_of_the_picture(photos: Path) -> None:
    image = cv2.imread(str(photos / "coffee.png"), cv2.IMREAD_GRAYSCALE)

    def similarity(wear: float) -> float:
        worn = [random_light_and_sensor(image, np.random.default_rng(k), wear) for k in range(6)]
        return float(np.mean([np.corrcoef(image.ravel(), w.ravel())[0, 1] for w in worn]))

    assert similarity(2.0) < similarity(1.0) < 1
