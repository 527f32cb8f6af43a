from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hardnet
from hardnet.errors import HardnetError
from hardnet.features import extract
from hardnet.images import write_image
from hardnet.matching.matches import match


class MeanGrey:
    """The smallest possible Descriptor."""

    name = "mean"
    dim = 2

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        mean = patches.reshape(len(patches), -1).mean(1) / 255
        return np.stack([mean, 1 - mean], 1).astype(np.float32)


def test_features_of_a_photo(photos: Path) -> None:
    found = extract(photos / "astronaut.png", descriptor="rootsift", keypoints=300)
    assert len(found) == 300
    assert found.frames.shape == (300, 2, 3)
    assert found.xy.shape == (300, 2)
    assert found.scores.shape == (300,)
    assert found.descriptors.shape == (300, 128)
    assert found.descriptors.dtype == np.float32
    assert found.image_size == (512, 512)
    assert found.path == str(photos / "astronaut.png")
    assert list(found.seconds) == ["load", "read", "detect", "cut", "describe"]
    np.testing.assert_allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-3)


def test_array_and_file_give_the_same(camera: np.ndarray, tmp_path: Path) -> None:
    write_image(tmp_path / "camera.png", camera)
    a = extract(camera, descriptor="rootsift", keypoints=200)
    b = extract(tmp_path / "camera.png", descriptor="rootsift", keypoints=200)
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.descriptors, b.descriptors)
    assert a.path is None
    np.testing.assert_array_equal(a.read_pixels(), camera)


def test_twice_gives_the_same(camera: np.ndarray) -> None:
    a, b = (extract(camera, descriptor="rootsift") for _ in range(2))
    np.testing.assert_array_equal(a.frames, b.frames)
    np.testing.assert_array_equal(a.descriptors, b.descriptors)


@pytest.mark.parametrize("max_size", [None, 333, 150])
def test_positions_are_in_pixels_of_the_original(max_size: int | None) -> None:
    yy, xx = np.mgrid[:600, :401]
    x, y = 251.3, 487.6
    hill = np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * 14.0**2))
    image = np.round(40 + 150 * hill).astype(np.uint8)
    found = extract(image, descriptor=MeanGrey(), keypoints=1, max_size=max_size)
    np.testing.assert_allclose(found.xy[0], [x, y], atol=0.15)
    side = 2 * np.sqrt(np.linalg.det(found.frames[0, :, :2]))
    assert side == pytest.approx(12 * 0.89 * 14, rel=0.05)
    assert found.image_size == (401, 600)


def test_any_callable_can_describe(camera: np.ndarray) -> None:
    found = extract(camera, descriptor=MeanGrey(), keypoints=50)
    assert found.descriptor == "mean"
    assert found.descriptors.shape == (50, 2)


def test_a_descriptor_is_not_asked_about_nothing() -> None:
    # MeanGrey, like many a user's, cannot handle an empty batch.
    empty = extract(np.full((80, 90), 128, np.uint8), descriptor=MeanGrey())
    assert empty.descriptors.shape == (0, 2)


def test_an_even_image_has_no_features_and_no_match(camera: np.ndarray) -> None:
    empty = extract(np.full((80, 90), 128, np.uint8), descriptor="rootsift")
    assert len(empty) == 0
    assert empty.descriptors.shape == (0, 128)
    assert empty.xy.shape == (0, 2)
    full = extract(camera, descriptor="rootsift", keypoints=100)
    for a, b in ((empty, full), (full, empty), (empty, empty)):
        result = match(a, b)
        assert len(result) == 0
        assert result.geometry.kind is None
        assert result.inliers.shape == (0,)


@pytest.mark.parametrize("wrong", [{"keypoints": 0}, {"max_size": 0}, {"detector": "surf"}])
def test_wrong_options_are_named(camera: np.ndarray, wrong: dict[str, int]) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        extract(camera, descriptor=MeanGrey(), **wrong)


def test_noise_does_not_crash() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    assert len(extract(noise, descriptor="rootsift")) > 0


def test_import_is_light() -> None:
    code = "import hardnet, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "'hardnet'" in loaded
    for heavy in ("torch", "cv2", "numpy", "onnxruntime"):
        assert f"'{heavy}'" not in loaded


def test_public_names() -> None:
    assert hardnet.extract is extract
    assert hardnet.__version__.count(".") == 2
    assert set(dir(hardnet)) >= {"Features", "Matches", "extract", "load", "match"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = hardnet.nothing
