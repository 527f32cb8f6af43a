"""SIFT of patches against OpenCV's own, patch by patch and in the photograph."""

from __future__ import annotations

import cv2
import numpy as np

from hardnet.descriptors import load
from hardnet.descriptors.sift import SMOOTHING, lay_out
from hardnet.frames import from_opencv
from hardnet.patches import cut_patches


def test_many_on_one_image_equal_each_alone(patches: np.ndarray) -> None:
    sift = cv2.SIFT.create(nOctaveLayers=1, sigma=SMOOTHING)
    together = sift.compute(*lay_out(patches))[1]
    alone = np.concatenate([sift.compute(*lay_out(p[None]))[1] for p in patches])
    np.testing.assert_array_equal(together, alone)


def test_neighbours_of_the_opposite_brightness_do_not_leak() -> None:
    patch = np.random.default_rng(0).integers(0, 256, (32, 32)).astype(np.uint8)
    describe = load("sift")
    for fill in (0, 255):
        crowd = np.full((35, 32, 32), fill, np.uint8)
        crowd[17] = patch
        np.testing.assert_array_equal(describe(crowd)[17], describe(patch[None])[0])


def test_window_is_that_of_opencv_in_the_photograph(camera: np.ndarray) -> None:
    """Cut a patch by our frame of a keypoint: its SIFT is the keypoint's own SIFT."""
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
