"""Every descriptor treats every input the same way."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.descriptors import Descriptor, load, unit_rows
from hardnet.errors import HardnetError
from hardnet.frames import check_patches, resize_patches

ALL = ["net.onnx", "net.safetensors", "sift", "rootsift", "pixels"]


@pytest.fixture(params=ALL)
def describe(request: pytest.FixtureRequest, weights: Path) -> Descriptor:
    name = request.param
    return load(weights / name if name.startswith("net") else name, threads=2)


def _assert_unit(descriptors: np.ndarray, shape: tuple[int, int]) -> None:
    assert descriptors.shape == shape
    assert descriptors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(descriptors, axis=1), 1, atol=1e-5)


def test_unit_vectors_of_uint8_and_of_one_channel(
    describe: Descriptor, patches: np.ndarray
) -> None:
    out = describe(patches)
    _assert_unit(out, (len(patches), describe.dim))
    np.testing.assert_array_equal(describe(patches[:, None]), out)


def test_float_patches_give_the_same(describe: Descriptor, patches: np.ndarray) -> None:
    expected = describe(patches)
    for scale in (1.0, 1 / 255):
        cosine = (describe(patches * np.float64(scale)) * expected).sum(1)
        # SIFT rounds to 8 bits after stretching, so not exactly; the others are invariant.
        assert cosine.min() > (0.98 if "sift" in describe.name else 0.99999)


def test_no_patches_no_descriptors(describe: Descriptor) -> None:
    for empty in ([], np.zeros((0, 32, 32), np.uint8), np.zeros((0, 1, 64, 64))):
        assert describe(empty).shape == (0, describe.dim)


def test_constant_patch_is_a_finite_unit_vector(describe: Descriptor) -> None:
    for value in (0, 7, 255, 0.1, -3.3e5):
        kind = np.uint8 if isinstance(value, int) else np.float32
        _assert_unit(describe(np.full((2, 32, 32), value, kind)), (2, describe.dim))


def test_any_size_is_described(describe: Descriptor, patches: np.ndarray) -> None:
    few = patches[:30]
    expected = describe(few)
    for size in (1, 5, 31, 64, 65, 200):
        other = np.stack([cv2.resize(p, (size, size), interpolation=cv2.INTER_AREA) for p in few])
        out = describe(other)
        _assert_unit(out, (len(few), describe.dim))
        if size >= 31:
            assert (out * expected).sum(1).mean() > 0.85


def test_values_do_not_depend_on_the_neighbours_in_the_batch(
    describe: Descriptor, patches: np.ndarray
) -> None:
    all_at_once = describe(patches)
    one_by_one = np.concatenate([describe(p[None]) for p in patches[:20]])
    np.testing.assert_allclose(all_at_once[:20], one_by_one, atol=2e-6)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.zeros((4, 32, 30), np.uint8), "square, got 32 x 30"),
        (np.zeros((32, 32), np.uint8), r"\(32, 32\); one patch is patch\[None\]"),
        (
            np.zeros((4, 3, 32, 32), np.uint8),
            r"\(N, S, S\) or \(N, 1, S, S\), got \(4, 3, 32, 32\)",
        ),
        (np.zeros((4, 0, 0), np.uint8), "no pixels"),
        (np.full((3, 32, 32), np.nan), "3 of 3 patches contain NaN or infinity"),
        (np.array([["a"]])[:, :, None], "must be numbers"),
        ([np.zeros((8, 8)), np.zeros((9, 9))], "one size"),
    ],
)
def test_bad_input_says_what_is_wrong(bad: object, message: str) -> None:
    with pytest.raises(HardnetError, match=message):
        load("pixels")(bad)


def test_nan_names_the_patch(patches: np.ndarray) -> None:
    bad = patches.astype(np.float32)
    bad[5, 3, 3] = np.inf
    with pytest.raises(HardnetError, match=r"1 of 70 patches.*the first is number 5"):
        check_patches(bad)


def test_64_to_32_is_the_mean_of_four_pixels() -> None:
    large = np.random.default_rng(0).random((3, 64, 64), np.float32)
    mean = large.reshape(3, 32, 2, 32, 2).mean((2, 4))
    np.testing.assert_allclose(resize_patches(large, 32), mean, atol=1e-6)


def test_patches_are_resized_individually() -> None:
    """A strip of patches resized at once would bleed from one into the next."""
    pair = np.stack([np.zeros((65, 65), np.uint8), np.full((65, 65), 255, np.uint8)])
    out = resize_patches(pair, 32)
    assert (out[0] == 0).all()
    assert (out[1] == 255).all()


def test_zero_rows_become_the_uniform_vector() -> None:
    out = unit_rows(np.array([[0, 0, 0, 0], [3, 0, 4, 0]], np.float32))
    np.testing.assert_allclose(out, [[0.5] * 4, [0.6, 0, 0.8, 0]])
