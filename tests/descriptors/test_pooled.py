"""Descriptors of several windows: values by hand, and the same pixels as one window has."""

from __future__ import annotations

import numpy as np
import pytest

import hardnet
from hardnet import descriptors
from hardnet.descriptors import split_windows as split
from hardnet.descriptors.base import PooledDescriptor
from hardnet.errors import HardnetError, InputError
from hardnet.frames import from_similarity
from hardnet.patches import cut_patches, window_of


def picture(seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 256, (300, 400), np.uint8)
    return np.kron(noise[::4, ::4], np.ones((4, 4), np.uint8))


def test_names_with_and_without_windows() -> None:
    assert split("hardnet") == ("hardnet", ())
    assert split("hardnet@16") == ("hardnet", (16.0,))
    assert split("a@b/net.onnx@12+22.5") == ("a@b/net.onnx", (12.0, 22.5))
    assert split("me@home/net.onnx") == ("me@home/net.onnx", ())


def test_it_is_the_mean_of_the_middles_at_unit_length() -> None:
    inner = descriptors.load("pixels")
    wide = np.random.default_rng(1).integers(0, 256, (5, 64, 64), np.uint8)
    found = PooledDescriptor(inner, (12, 24))(wide)
    for vector, patch in zip(found, wide, strict=True):
        narrow, whole = inner(patch[None, 16:48, 16:48])[0], inner(patch[None])[0]
        expected = (narrow + whole) / np.linalg.norm(narrow + whole)
        np.testing.assert_allclose(vector, expected, atol=1e-6)


def test_the_narrow_window_sees_the_pixels_that_one_window_alone_sees() -> None:
    frames = from_similarity([[200, 150], [90, 200]], [4.0, 2.5], [0.3, -1.0])
    wide = frames.copy()
    wide[:, :, :2] *= 2
    pooled = descriptors.load("pixels@12+24")
    assert window_of(pooled) == (24, 64)
    cut = cut_patches(picture(), wide, 64)
    np.testing.assert_array_equal(cut[:, 16:48, 16:48], cut_patches(picture(), frames))


def test_one_window_of_the_default_width_changes_nothing() -> None:
    plain = hardnet.extract(picture(), descriptor="rootsift", keypoints=50)
    same = hardnet.extract(picture(), descriptor="rootsift@12", keypoints=50)
    np.testing.assert_array_equal(plain.descriptors, same.descriptors)
    assert same.descriptor == "rootsift"
    wider = hardnet.extract(picture(), descriptor="rootsift@16", keypoints=50)
    assert np.abs(wider.descriptors - plain.descriptors).max() > 0.1


def test_features_of_several_windows_are_those_of_each_window_averaged() -> None:
    of = {
        name: hardnet.extract(picture(2), descriptor=name, keypoints=80).descriptors
        for name in ("rootsift@12", "rootsift@24", "rootsift@12+24")
    }
    mean = of["rootsift@12"] + of["rootsift@24"]
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    agreement = (mean * of["rootsift@12+24"]).sum(1)
    assert np.median(agreement) > 0.98  # the wide one is shrunk here, and cut from an octave there


def test_windows_tell_features_apart() -> None:
    image = picture(3)
    one, two = (hardnet.extract(image, descriptor=n) for n in ("hardnet-small", "hardnet-small@16"))
    assert one.weights != two.weights
    with pytest.raises(HardnetError, match="hardnet-small@16"):
        hardnet.match(one, two)


@pytest.mark.parametrize("name", ["hardnet@0", "hardnet@5+40", "rootsift@0+12"])
def test_windows_that_make_no_sense_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="windows in sigmas"):
        descriptors.load(name)


def test_an_unknown_name_is_the_same_error_as_without_windows() -> None:
    with pytest.raises(InputError, match="unknown descriptor 'hardnt'"):
        descriptors.load("hardnt@12+24")


def test_the_form_of_a_network_is_chosen_as_without_windows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HARDNET_PRECISION", "int8")
    assert descriptors.for_photos("hardnet-small@12+24") == "hardnet-small-int8@12+24"
    assert descriptors.for_photos("rootsift@16") == "rootsift@16"


def test_no_patch_gives_no_vector() -> None:
    assert descriptors.load("hardnet-small@12+24")([]).shape == (0, 128)
