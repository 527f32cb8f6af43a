"""Upright or dominant orientation: which one `match` takes, and that turned photos lose nothing."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import hardnet
from hardnet.errors import InputError
from hardnet.features import Features, extract
from hardnet.images import read_image
from hardnet.matching.matches import match

OPTIONS = {"descriptor": "rootsift", "keypoints": 600, "max_size": 500}


@pytest.fixture(scope="module")
def pair(photos: Path) -> tuple[np.ndarray, np.ndarray]:
    """A stereo pair, both the right way up."""
    left, right = (read_image(photos / f"motorcycle_{side}.png") for side in ("left", "right"))
    return left, right


def test_level_photos_are_matched_upright(pair: tuple[np.ndarray, np.ndarray]) -> None:
    result = hardnet.match(*pair, **OPTIONS)
    upright = hardnet.match(*pair, orientation="upright", **OPTIONS)
    assert result.a.orientation == result.b.orientation == "upright"
    np.testing.assert_array_equal(result.indices, upright.indices)
    assert not np.any(result.a.frames[:, 0, 1])


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_turned_photos_lose_nothing(pair: tuple[np.ndarray, np.ndarray], quarters: int) -> None:
    turned = np.ascontiguousarray(np.rot90(pair[1], quarters))
    result = hardnet.match(pair[0], turned, **OPTIONS)
    dominant = hardnet.match(pair[0], turned, orientation="dominant", **OPTIONS)
    assert result.a.orientation == result.b.orientation == "dominant"
    np.testing.assert_array_equal(result.indices, dominant.indices)
    assert result.inliers.sum() > 100


def test_features_of_one_photo_leave_the_choice_to_match(
    pair: tuple[np.ndarray, np.ndarray],
) -> None:
    turned = np.ascontiguousarray(np.rot90(pair[1]))
    a, b = (extract(image, orientation="auto", **OPTIONS) for image in (pair[0], turned))
    assert a.orientation == "upright"
    result = match(a, b)
    assert result.a.orientation == "dominant"
    assert result.inliers.sum() > 100
    # With features that are turned already, those of the other photo are turned as well.
    fixed = extract(turned, **OPTIONS)
    assert match(a, fixed).a.orientation == "dominant"
    assert match(fixed, a).inliers.sum() > 100


def test_a_second_description_is_made_once(pair: tuple[np.ndarray, np.ndarray]) -> None:
    features = extract(pair[0], orientation="auto", **OPTIONS)
    assert features.turned is not None
    assert features.turned() is features.turned()
    plain = extract(pair[0], **OPTIONS)
    np.testing.assert_array_equal(features.turned().descriptors, plain.descriptors)


def test_saved_and_pickled_features_know_their_orientation(
    pair: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    features = extract(pair[0], orientation="auto", **OPTIONS)
    features.save(tmp_path / "a.npz")
    for copy in (Features.load(tmp_path / "a.npz"), pickle.loads(pickle.dumps(features))):
        assert copy.orientation == "upright"
        assert copy.turned is None
        np.testing.assert_array_equal(copy.descriptors, features.descriptors)


def test_wrong_words(pair: tuple[np.ndarray, np.ndarray]) -> None:
    with pytest.raises(InputError, match="choose auto, upright or dominant"):
        extract(pair[0], orientation="left", **OPTIONS)
    features = extract(pair[0], **OPTIONS)
    with pytest.raises(InputError, match="features are described already"):
        match(features, features, orientation="upright")
