"""OpenCV's learned descriptors see the patch, the whole patch and nothing but the patch."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from hardnet.descriptors import available_names, load
from hardnet.descriptors.opencv import KINDS, OpenCVDescriptor, is_available
from hardnet.errors import HardnetError
from hardnet.frames import cut_patches, from_opencv, resize_patches

NAMES = [
    pytest.param(
        name,
        marks=pytest.mark.skipif(
            not is_available(name), reason="needs opencv-contrib-python-headless"
        ),
    )
    for name in KINDS
]


@pytest.fixture
def large(camera: np.ndarray) -> np.ndarray:
    """(300, 64, 64): more than one image full; no sky, of which BoostDesc sees nothing."""
    rng = np.random.default_rng(0)
    cut = np.stack([camera[y : y + 64, x : x + 64] for y, x in rng.integers(0, 448, (700, 2))])
    return cut[cut.std((1, 2)) > 20][:300]


def difference(a: np.ndarray, b: np.ndarray) -> float:
    """Bits that differ, or the largest difference of a value."""
    if a.dtype == np.uint8:
        return float(np.unpackbits(a ^ b).sum())
    return float(np.abs(a - b).max())


@pytest.mark.parametrize("name", list(KINDS))
def test_without_contrib_the_error_names_the_wheel(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(cv2, "xfeatures2d", None, raising=False)
    assert name not in available_names()
    with pytest.raises(
        HardnetError,
        match=f"no {KINDS[name].method}; install opencv-contrib-python-headless instead of",
    ):
        load(name)


@pytest.mark.parametrize("name", NAMES)
def test_type_and_size(name: str, large: np.ndarray) -> None:
    describe = load(name)
    values = describe(large)
    if KINDS[name].binary:
        assert values.dtype == np.uint8
        assert values.shape == (300, describe.dim // 8)
        assert 0.3 < np.unpackbits(values).mean() < 0.9
    else:
        assert values.dtype == np.float32
        assert values.shape == (300, describe.dim)
    assert len(np.unique(values, axis=0)) == 300
    assert describe([]).shape == (0, values.shape[1])
    assert np.isfinite(describe(np.full((2, 32, 32), 7, np.uint8))).all()


@pytest.mark.parametrize("name", NAMES)
def test_many_on_one_image_equal_each_alone(name: str, large: np.ndarray) -> None:
    describe = load(name)
    alone = np.concatenate([describe(patch[None]) for patch in large[250:260]])
    np.testing.assert_array_equal(describe(large)[250:260], alone)


@pytest.mark.parametrize("name", NAMES)
def test_window_is_the_patch(name: str, large: np.ndarray) -> None:
    """Other pixels in a column or row change the descriptor inside the patch, and only there."""
    describe = load(name)
    assert isinstance(describe, OpenCVDescriptor)
    side = KINDS[name].side
    patch = np.asarray(resize_patches(large[:1], side), np.uint8)
    image, keypoints = describe.lay_out(patch)
    margin = (image.shape[1] - side) // 2
    expected = describe._extractor.compute(image, keypoints)[1]
    noise = np.random.default_rng(1).integers(0, 256, (6, *image.shape)).astype(np.uint8)
    for axis in (0, 1):
        changes = np.zeros(len(image))
        for other in noise:
            for at in range(len(image)):
                line = (slice(None), at) if axis else (at, slice(None))
                seen = image.copy()
                seen[line] = other[line]
                value = describe._extractor.compute(seen, keypoints)[1]
                changes[at] = max(changes[at], difference(value, expected))
        inside = changes[margin : margin + side]
        # VGG blurs the image (sigma 1.4 pixels) before it samples its window.
        blur = 6 if name == "vgg" else 0
        assert (inside > 1e-3).all()
        assert (changes[: margin - blur] == 0).all()
        assert (changes[margin + side + blur :] == 0).all()
        if blur:  # as much on both sides: the window is not shifted
            edge = changes[margin - 4], changes[margin + side + 3]
            assert 1 / 8 < edge[0] / edge[1] < 8


@pytest.mark.parametrize("name", NAMES)
def test_finds_the_same_place_again(name: str, large: np.ndarray) -> None:
    from hardnet.matching.neighbours import two_nearest

    noise = np.random.default_rng(2).normal(0, 4, large.shape)
    blurred = np.stack([cv2.GaussianBlur(p, (0, 0), 1.0) for p in large]) + noise
    index, _ = two_nearest(load(name)(large), load(name)(np.clip(np.round(blurred), 0, 255)))
    assert (index[:, 0] == np.arange(300)).mean() > 0.75


@pytest.mark.parametrize("name", NAMES)
def test_grey_values_are_never_stretched(name: str, large: np.ndarray) -> None:
    describe = load(name)
    whole = large[:5].astype(np.float64)
    np.testing.assert_array_equal(describe(whole), describe(large[:5]))
    for wrong in (whole / 255, whole - 300, whole * 2):
        with pytest.raises(HardnetError, match=r"grey values 0\.\.255"):
            describe(wrong)


def test_sift_many_on_one_image_equal_each_alone(patches: np.ndarray) -> None:
    describe = load("sift")
    alone = np.concatenate([describe(patch[None]) for patch in patches])
    np.testing.assert_array_equal(describe(patches), alone)


def test_neighbours_of_the_opposite_brightness_do_not_leak() -> None:
    patch = np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint8)
    describe = load("sift")
    for fill in (0, 255):
        crowd = np.full((35, 32, 32), fill, np.uint8)
        crowd[17] = patch
        np.testing.assert_array_equal(describe(crowd)[17], describe(patch[None])[0])


def test_window_is_that_of_opencv_in_the_photograph(camera: np.ndarray) -> None:
    """Cut a patch by our frame of a keypoint: its SIFT is that of the keypoint."""
    sift = cv2.SIFT.create(600)
    keypoints = [k for k in sift.detect(camera, None) if 2.5 < k.size < 12 and _inside(k)]
    assert len(keypoints) > 100
    keypoints, expected = sift.compute(camera, keypoints)
    expected = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    frames = from_opencv(keypoints)

    def mean_cosine(frames: np.ndarray) -> float:
        return float((load("sift")(cut_patches(camera, frames)) * expected).sum(1).mean())

    ours = mean_cosine(frames)
    assert ours > 0.9
    # Another window or a turned one is further away, so the convention is the right one.
    for factor in (0.5, 0.75, 1.33, 2.0):
        wrong = frames.copy()
        wrong[:, :, :2] *= factor
        assert mean_cosine(wrong) < ours - 0.02
    mirrored = frames.copy()
    mirrored[:, 0, 1], mirrored[:, 1, 0] = frames[:, 1, 0], frames[:, 0, 1]
    assert mean_cosine(mirrored) < ours - 0.1


def test_rootsift_is_the_root_of_sift(patches: np.ndarray) -> None:
    sift, root = load("sift")(patches), load("rootsift")(patches)
    expected = np.sqrt(sift / sift.sum(1, keepdims=True))
    np.testing.assert_allclose(root, expected, atol=1e-6)


def _inside(keypoint: cv2.KeyPoint) -> bool:
    reach = keypoint.size * 5
    return all(reach < c < 511 - reach for c in keypoint.pt)
