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


@pytest.fixture(scope="module")
def left(pair: tuple[np.ndarray, np.ndarray]) -> Features:
    return extract(pair[0], orientation="auto", **OPTIONS)


def test_level_photos_are_matched_upright(pair: tuple[np.ndarray, np.ndarray]) -> None:
    result = hardnet.match(*pair, **OPTIONS)
    upright = hardnet.match(*pair, orientation="upright", **OPTIONS)
    assert result.a.orientation == result.b.orientation == "upright"
    np.testing.assert_array_equal(result.indices, upright.indices)
    assert not np.any(result.a.frames[:, 0, 1])


@pytest.mark.parametrize("quarters", [1, 2])
def test_turned_photos_lose_nothing(
    pair: tuple[np.ndarray, np.ndarray], left: Features, quarters: int
) -> None:
    turned = np.ascontiguousarray(np.rot90(pair[1], quarters))
    right, fixed = (extract(turned, orientation=way, **OPTIONS) for way in ("auto", "dominant"))
    assert left.orientation == right.orientation == "upright"
    result = match(left, right)
    assert result.a.orientation == result.b.orientation == "dominant"
    assert result.inliers.sum() > 100
    # With features that are turned already, those of the other photo are turned as well.
    for again in (match(left, fixed), match(left.turned(), fixed)):
        assert again.a.orientation == "dominant"
        np.testing.assert_array_equal(again.indices, result.indices)
    assert match(fixed, left).b.orientation == "dominant"


def test_a_second_description_is_made_once_and_adds_its_time(left: Features) -> None:
    turned = left.turned()
    assert turned is left.turned()
    assert turned.seconds.keys() == left.seconds.keys()
    assert turned.seconds["read"] == left.seconds["read"]
    assert turned.seconds["describe"] > left.seconds["describe"]


def test_saved_and_pickled_features_know_their_orientation(left: Features, tmp_path: Path) -> None:
    left.save(tmp_path / "a.npz")
    for copy in (Features.load(tmp_path / "a.npz"), pickle.loads(pickle.dumps(left))):
        assert copy.orientation == "upright"
        assert copy.turned is None
        np.testing.assert_array_equal(copy.descriptors, left.descriptors)


def test_wrong_words(camera: np.ndarray, left: Features) -> None:
    with pytest.raises(InputError, match="choose auto, upright or dominant"):
        extract(camera, orientation="left", **OPTIONS)
    with pytest.raises(InputError, match="features are described already"):
        match(left, left, orientation="upright")
