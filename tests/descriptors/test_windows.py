"""Descriptors of several windows: values by hand and by loops, and the pixels of each window."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import hardnet
from hardnet import descriptors
from hardnet.descriptors import (
    Projection,
    WindowsDescriptor,
    learn_projection,
    save_projections,
    windows_file,
)
from hardnet.descriptors import split_windows as split
from hardnet.errors import HardnetError, InputError
from hardnet.frames import cut_for, cut_patches, from_similarity
from hardnet.image_files import file_digest

USUAL = descriptors.WINDOWS["hardnet"]
WINDOWS = [float(window) for window in USUAL.split("+")]


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
    found = WindowsDescriptor(inner, (12, 24))(wide)
    for vector, patch in zip(found, wide, strict=True):
        narrow, whole = inner(patch[None, 16:48, 16:48])[0], inner(patch[None])[0]
        expected = (narrow + whole) / np.linalg.norm(narrow + whole)
        np.testing.assert_allclose(vector, expected, atol=1e-6)
    both = np.stack([wide[:, 16:48, 16:48], wide[:, :32, :32]], axis=1)
    mean = inner(both[:, 0]) + inner(both[:, 1])
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(WindowsDescriptor(inner, (12, 24))(both), mean, atol=1e-6)


def test_every_window_sees_the_pixels_that_it_sees_alone() -> None:
    frames = from_similarity([[200, 150], [90, 200]], [4.0, 2.5], [0.3, -1.0])
    wide = frames.copy()
    wide[:, :, :2] *= 2
    cut = cut_for(descriptors.load("pixels@12+24"), picture(), frames)
    assert cut.shape == (2, 2, 32, 32)
    np.testing.assert_array_equal(cut[:, 0], cut_patches(picture(), frames))
    np.testing.assert_array_equal(cut[:, 1], cut_patches(picture(), wide))


def test_one_window_of_the_default_width_changes_nothing() -> None:
    plain = hardnet.extract(picture(), descriptor="rootsift", keypoints=50)
    same = hardnet.extract(picture(), descriptor="rootsift@12", keypoints=50)
    np.testing.assert_array_equal(plain.descriptors, same.descriptors)
    assert same.descriptor == "rootsift"
    wider = hardnet.extract(picture(), descriptor="rootsift@16", keypoints=50)
    assert np.abs(wider.descriptors - plain.descriptors).max() > 0.1


def test_features_without_a_projection_are_those_of_each_window_averaged() -> None:
    of = {
        name: hardnet.extract(picture(2), descriptor=name, keypoints=80).descriptors
        for name in ("rootsift@12", "rootsift@24", "rootsift@12+24")
    }
    mean = of["rootsift@12"] + of["rootsift@24"]
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(of["rootsift@12+24"], mean, atol=1e-6)


def joined_slowly(
    vectors: list[list[float]], mean: list[float], matrix: list[list[float]]
) -> list[list[float]]:
    """The projection of vectors side by side, at unit length, in explicit loops."""
    rows = []
    for vector in vectors:
        row = []
        for column in range(len(matrix[0])):
            total = 0.0
            for k, value in enumerate(vector):
                total += (value - mean[k]) * matrix[k][column]
            row.append(total)
        length = sum(value * value for value in row) ** 0.5
        rows.append([value / length for value in row])
    return rows


@pytest.mark.parametrize("name", ["hardnet-small", "hardnet"])
def test_shipped_networks_join_their_windows_by_the_projection_beside_them(name: str) -> None:
    joined, alone = descriptors.load(f"{name}@{USUAL}"), descriptors.load(name)
    patches = np.random.default_rng(4).integers(0, 256, (3, len(WINDOWS), 32, 32), np.uint8)
    side_by_side = np.concatenate([alone(patches[:, k]) for k in range(len(WINDOWS))], axis=1)
    with np.load(windows_file(descriptors.WEIGHTS / f"{name}.onnx")) as kept:
        mean, matrix = kept[f"{USUAL}.mean"], kept[f"{USUAL}.matrix"]
    assert matrix.shape == (128 * len(WINDOWS), 128)
    slow = joined_slowly(side_by_side.tolist(), mean.tolist(), matrix.tolist())
    np.testing.assert_allclose(joined(patches), slow, atol=1e-5)


def test_the_forms_of_a_network_share_a_projection() -> None:
    patches = np.stack([picture(seed)[:64, :64] for seed in range(8)])
    form, other = (descriptors.load(f"hardnet-small{end}@{USUAL}") for end in ("", "-int8"))
    assert (form(patches) * other(patches)).sum(axis=1).min() > 0.95


def test_a_projection_keeps_the_axes_that_vary_most_and_evens_them_a_little() -> None:
    random = np.random.default_rng(5)
    deviations = np.array([8.0, 0.01, 2.0, 0.01])
    vectors = (random.normal(size=(4000, 4)) * deviations + 3).astype(np.float32)
    found = learn_projection(vectors, 2)
    np.testing.assert_allclose(found.mean, vectors.mean(axis=0), atol=1e-5)
    # The axes of the deviations 8 and 2, divided by the fourth root of each: 8^0.75 and 2^0.75.
    np.testing.assert_allclose(np.abs(found.matrix), by_hand(8**-0.25, 2**-0.25), atol=0.02)
    np.testing.assert_allclose(found(vectors).std(axis=0), [8**0.75, 2**0.75], rtol=0.05)
    assert found.matrix[0, 0] > 0  # whatever sign the solver gave


def by_hand(first: float, second: float) -> np.ndarray:
    return np.array([[first, 0], [0, 0], [0, second], [0, 0]])


def test_a_projection_of_too_few_vectors_is_refused() -> None:
    with pytest.raises(HardnetError, match="give more photographs"):
        learn_projection(np.zeros((100, 256), np.float32), 128)


@pytest.fixture
def beside(tmp_path: Path) -> Path:
    """The small network alone in a folder; returns where its projection belongs."""
    shutil.copy(descriptors.WEIGHTS / "hardnet-small.onnx", tmp_path / "net.onnx")
    return tmp_path / "net.windows.npz"


def some_projection(rows: int = 256) -> Projection:
    random = np.random.default_rng(6)
    return Projection(
        random.normal(size=rows).astype(np.float32),
        random.normal(size=(rows, 128)).astype(np.float32),
    )


def test_weights_files_of_a_user_may_have_a_projection_too(beside: Path) -> None:
    weights = beside.with_name("net.onnx")
    patches = np.stack([picture(seed)[:64, :64] for seed in range(8)])
    averaged = descriptors.load(f"{weights}@12+24")
    save_projections(beside, {"12+24": some_projection()}, [file_digest(weights)])
    joined = descriptors.load(f"{weights}@12+24")
    assert joined.weights != averaged.weights  # their features do not mix
    assert np.abs(joined(patches) - averaged(patches)).max() > 0.1
    other = descriptors.load(f"{weights}@12+20")  # windows that it says nothing about
    mean = other.side_by_side(patches).reshape(8, 2, 128).sum(axis=1)
    mean /= np.linalg.norm(mean, axis=1, keepdims=True)
    np.testing.assert_allclose(other(patches), mean, atol=1e-6)


def test_a_projection_of_other_weights_is_refused(beside: Path) -> None:
    save_projections(beside, {"12+24": some_projection()}, ["0" * 64])
    with pytest.raises(HardnetError, match="learned for other weights"):
        descriptors.load(f"{beside.with_name('net.onnx')}@12+24")


@pytest.mark.parametrize("damage", ["empty", "text", "cut", "shape", "nan"])
def test_a_damaged_projection_is_named(beside: Path, damage: str) -> None:
    weights = beside.with_name("net.onnx")
    projection = some_projection(384 if damage == "shape" else 256)
    if damage == "nan":
        projection.matrix[7, 7] = np.nan
    save_projections(beside, {"12+24": projection}, [file_digest(weights)])
    content = beside.read_bytes()
    given = {"empty": b"", "text": b"no archive", "cut": content[: len(content) // 2]}
    beside.write_bytes(given.get(damage, content))
    with pytest.raises(HardnetError, match=r"net\.windows\.npz"):
        descriptors.load(f"{weights}@12+24")


def test_windows_tell_features_apart() -> None:
    image = picture(3)
    one, two = (
        hardnet.extract(image, descriptor=name, keypoints=20)
        for name in ("hardnet-small", "hardnet-small@16")
    )
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


def test_no_patch_gives_no_vector() -> None:
    assert descriptors.load("hardnet-small@12+24")([]).shape == (0, 128)
