from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.features import extract
from hardnet.image_pair import extract_pair
from hardnet.images import read_image
from hardnet.matching.matches import match


def test_a_pair_is_two_images(photos: Path, camera: np.ndarray) -> None:
    images = photos / "motorcycle_left.png", camera
    options = {"descriptor": "rootsift", "keypoints": 300, "max_size": 400, "upright": True}
    for one, image in zip(extract_pair(*images, **options), images, strict=True):
        alone = extract(image, **options)
        for name in ("frames", "scores", "descriptors"):
            np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))
        assert one.path == alone.path
        assert list(one.seconds) == list(alone.seconds)


def test_a_pair_with_a_bad_image(camera: np.ndarray) -> None:
    with pytest.raises(HardnetError, match=r"none\.jpg"):
        extract_pair(camera, "none.jpg", descriptor="rootsift")


def test_matching_two_images_is_matching_their_features(photos: Path) -> None:
    names = "motorcycle_left.png", "motorcycle_right.png"
    images = [read_image(photos / name)[100:260, 200:420] for name in names]
    at_once = match(*images)
    one_by_one = match(*map(extract, images))
    assert at_once.inliers.sum() > 20
    np.testing.assert_array_equal(at_once.indices, one_by_one.indices)
    np.testing.assert_array_equal(at_once.inliers, one_by_one.inliers)
    np.testing.assert_array_equal(at_once.geometry.model, one_by_one.geometry.model)
