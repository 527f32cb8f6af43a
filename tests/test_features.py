from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

import hardnet
from hardnet import descriptors, detectors
from hardnet.errors import HardnetError, InputError
from hardnet.features import (
    DescribeSettings,
    describe,
    extract,
    extract_together,
    find,
    prepare,
)
from hardnet.frames import from_opencv, from_similarity
from hardnet.image_files import file_digest
from hardnet.images import read_image, write_image
from hardnet.interop.feature_files import read_hdf5, read_npz, write_hdf5, write_npz
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


def test_import_is_light() -> None:
    code = "import hardnet, sys; print(sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "'hardnet'" in loaded
    for heavy in ("torch", "cv2", "numpy", "onnxruntime"):
        assert f"'{heavy}'" not in loaded


def test_public_names() -> None:
    assert hardnet.extract is extract
    assert hardnet.__version__.count(".") == 2
    assert set(dir(hardnet)) >= {"Features", "Matches", "extract", "extract_many", "load", "match"}
    with pytest.raises(AttributeError, match="nothing"):
        _ = hardnet.nothing


def test_the_stages_are_extract(photos: Path) -> None:
    path = photos / "motorcycle_left.png"
    whole = extract(path, descriptor="rootsift", keypoints=200, max_size=400)
    prepared = prepare(path, 400)
    found = find(prepared, detectors.load("dog"), 200)
    describer = descriptors.load("rootsift")
    parts = describe(found, describer)
    assert found.patches(describer).shape == (200, 32, 32)
    for name in ("frames", "scores", "descriptors"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    for name in ("image_size", "descriptor", "scale", "path", "pixels"):
        assert getattr(whole, name) == getattr(parts, name)
    assert ["load", *parts.seconds] == list(whole.seconds)


def test_given_frames_are_described_in_order_and_returned_unchanged(camera: np.ndarray) -> None:
    found = extract(camera, descriptor="rootsift", keypoints=60)
    backwards = found.frames[::-1]
    again = extract(camera, descriptor="rootsift", keypoints=1, frames=backwards)
    np.testing.assert_array_equal(again.frames, backwards)
    np.testing.assert_array_equal(again.descriptors, found.descriptors[::-1])
    assert (again.scores == 0).all()


def test_given_frames_are_in_pixels_of_the_original(camera: np.ndarray) -> None:
    # Shrunk by two, the patch of a large frame shows the same as before.
    frame = from_similarity([[250.0, 130.0]], 12.0, 0.7)
    full = find(prepare(camera, None), detectors.load("dog"), frames=frame)
    half = find(prepare(camera, 256), detectors.load("dog"), frames=frame)
    np.testing.assert_array_equal(half.frames, frame)
    large, small = (found.patches(descriptors.load("rootsift")) for found in (full, half))
    assert np.abs(large.astype(int) - small).mean() < 3


def test_frames_of_keypoints_carry_their_response(camera: np.ndarray) -> None:
    keypoints = cv2.ORB_create(30).detect(camera, None)
    found = extract(camera, descriptor=MeanGrey(), frames=keypoints)
    np.testing.assert_array_equal(found.frames, from_opencv(keypoints))
    np.testing.assert_array_equal(found.scores, [np.float32(k.response) for k in keypoints])


def test_frames_of_an_oxford_file(camera: np.ndarray, tmp_path: Path) -> None:
    (tmp_path / "ellipses.txt").write_text("1.0\n2\n100 50 0.01 0 0.01\n300 200 0.0025 0 0.0025\n")
    found = extract(camera, descriptor=MeanGrey(), frames=tmp_path / "ellipses.txt")
    np.testing.assert_allclose(found.xy, [[100, 50], [300, 200]])
    sides = np.sqrt(np.linalg.det(found.frames[:, :, :2]))
    assert sides[1] == pytest.approx(2 * sides[0])  # radii of 10 and 20 pixels


def test_no_frames_give_no_features(camera: np.ndarray) -> None:
    for none in ([], (), np.zeros((0, 2, 3))):
        found = extract(camera, descriptor=MeanGrey(), frames=none)
        assert found.frames.shape == (0, 2, 3)
        assert found.descriptors.shape == (0, 2)


@pytest.mark.parametrize(
    "wrong", [np.zeros((3, 6)), np.full((1, 2, 3), np.nan), [[1.0, 2.0]], "none.txt"]
)
def test_wrong_frames_are_a_clear_error(camera: np.ndarray, wrong: object) -> None:
    with pytest.raises(HardnetError):
        extract(camera, descriptor=MeanGrey(), frames=wrong)


def test_frames_are_not_turned_upright(camera: np.ndarray) -> None:
    with pytest.raises(HardnetError, match="upright"):
        extract(camera, descriptor=MeanGrey(), upright=True, frames=np.zeros((1, 2, 3)))


def test_any_callable_can_detect(camera: np.ndarray) -> None:
    def middle(image: np.ndarray, keypoints: int = 1) -> tuple[np.ndarray, np.ndarray]:
        centre = [[image.shape[1] / 2, image.shape[0] / 2]]
        return from_similarity(centre, 5.0), np.ones(1, np.float32)

    found = extract(camera, detector=middle, descriptor=MeanGrey(), max_size=256)
    np.testing.assert_allclose(found.xy, [[256.5, 256.5]], atol=1e-4)


def test_upright_frames_are_not_turned(camera: np.ndarray) -> None:
    found = extract(camera, descriptor=MeanGrey(), keypoints=100, upright=True)
    assert len(found) == 100
    np.testing.assert_array_equal(found.frames[:, 1, 0], 0)
    np.testing.assert_array_equal(found.frames[:, 0, 1], 0)
    assert (found.frames[:, 0, 0] > 0).all()


def test_a_pair_is_two_images(photos: Path, camera: np.ndarray) -> None:
    images = photos / "motorcycle_left.png", camera
    options = {"descriptor": "rootsift", "keypoints": 300, "max_size": 400, "upright": True}
    both = extract_together(images, DescribeSettings(**options))
    for one, image in zip(both, images, strict=True):
        alone = extract(image, **options)
        for name in ("frames", "scores", "descriptors"):
            np.testing.assert_array_equal(getattr(one, name), getattr(alone, name))
        assert one.path == alone.path
        assert list(one.seconds) == list(alone.seconds)
    with pytest.raises(HardnetError, match=r"none\.jpg"):
        extract_together([camera, "none.jpg"], DescribeSettings(descriptor="rootsift"))


def test_matching_two_images_is_matching_their_features(photos: Path) -> None:
    names = "motorcycle_left.png", "motorcycle_right.png"
    images = [read_image(photos / name)[100:260, 200:420] for name in names]
    at_once = match(*images, descriptor="rootsift")
    one_by_one = match(
        *(extract(image, descriptor="rootsift", orientation="auto") for image in images)
    )
    assert at_once.inliers.sum() > 20
    np.testing.assert_array_equal(at_once.indices, one_by_one.indices)
    np.testing.assert_array_equal(at_once.inliers, one_by_one.inliers)
    np.testing.assert_array_equal(at_once.geometry.model, one_by_one.geometry.model)


@pytest.mark.parametrize("detector", ["dog", "hessian"])
def test_features_that_can_be_turned_are_turned_as_if_asked_at_once(
    camera: np.ndarray, detector: str
) -> None:
    options = {"detector": detector, "descriptor": "rootsift", "keypoints": 200, "max_size": 300}
    either = extract(camera, orientation="auto", **options)
    assert either.turned is not None
    for way, found in (("upright", either), ("dominant", either.turned())):
        expected = extract(camera, orientation=way, **options)
        assert found.orientation == way
        np.testing.assert_array_equal(found.frames, expected.frames)
        np.testing.assert_array_equal(found.scores, expected.scores)
        np.testing.assert_array_equal(found.descriptors, expected.descriptors)


def test_match_describes_images_as_it_is_told(photos: Path) -> None:
    paths = [photos / "motorcycle_left.png", photos / "motorcycle_right.png"]
    options = {"detector": "hessian", "descriptor": "rootsift", "keypoints": 300, "max_size": 400}
    expected = match(*(extract(path, **options) for path in paths))
    turned = {"orientation": "dominant"}
    for a, b, way in ((*paths, turned), (paths[0], extract(paths[1], **options), {})):
        result = hardnet.match(a, b, **options, **way)
        assert result.a.descriptor == "rootsift"
        np.testing.assert_array_equal(result.indices, expected.indices)
        np.testing.assert_array_equal(result.inliers, expected.inliers)
    with pytest.raises(hardnet.InputError, match="features are described already"):
        match(expected.a, expected.b, keypoints=100)


def test_one_line_says_what_it_is(photos: Path, camera: np.ndarray) -> None:
    a = extract(photos / "camera.png", descriptor="rootsift", keypoints=200)
    b = extract(camera, descriptor="rootsift", keypoints=200)
    assert str(a) == "Features: 200 keypoints of camera.png (512 x 512), rootsift 128-D"
    result = match(a, b)
    count = int(result.inliers.sum())
    assert str(result) == (
        f"Matches: {count} of {len(result)} matches verified (homography), camera.png and an array"
    )
    bits = replace(b, descriptors=np.zeros((200, 64), np.uint8), descriptor="beblid")
    assert str(bits).endswith("of an array (512 x 512), beblid 512 bits")


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: extract(np.zeros((50, 50), np.uint8), keypoints=0),
        lambda: extract(np.zeros((50, 50), np.uint8), max_size=0),
        lambda: extract(np.zeros((50, 50), np.uint8), detector="surf"),
        lambda: extract(np.zeros((50, 50), np.uint8), frames=np.zeros((3, 6))),
        lambda: hardnet.load("harndet"),
        lambda: hardnet.load("pixels")(np.zeros((4, 32, 30), np.uint8)),
        lambda: hardnet.Strategy(ratio=2.0),
        lambda: next(hardnet.extract_many([], workers=0)),
    ],
)
def test_wrong_arguments_are_value_errors_and_ours(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r".+") as caught:
        wrong()
    assert isinstance(caught.value, hardnet.InputError)
    assert isinstance(caught.value, hardnet.HardnetError)


def test_many_images_by_their_names(photos: Path) -> None:
    names = [str(photos / "camera.png"), "none.jpg"]
    (path, found), (_, error) = hardnet.extract_many(names, descriptor="pixels", keypoints=9)
    assert str(path) == names[0]
    assert len(found) == 9
    assert isinstance(error, hardnet.HardnetError)


def test_saved_features_come_back(photos: Path, tmp_path: Path) -> None:
    found = extract(photos / "camera.png", descriptor="rootsift", keypoints=70, max_size=300)
    found.save(tmp_path / "a.npz")
    again = hardnet.Features.load(tmp_path / "a.npz")
    for name in ("frames", "scores", "descriptors"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
        assert getattr(again, name).dtype == getattr(found, name).dtype
    for name in ("image_size", "descriptor", "scale"):
        assert getattr(again, name) == getattr(found, name)
    assert Path(again.path) == (photos / "camera.png").resolve()
    assert match(found, again).inliers.sum() > 50
    assert [file.name for file in tmp_path.iterdir()] == ["a.npz"]


def test_saved_features_of_arrays_and_bits(camera: np.ndarray, tmp_path: Path) -> None:
    found = extract(camera, descriptor=MeanGrey(), keypoints=5)
    for vectors in (found.descriptors, np.eye(5, 8, dtype=np.uint8), np.zeros((5, 3), np.float32)):
        replace(found, descriptors=vectors).save(tmp_path / "a.npz")
        again = hardnet.Features.load(tmp_path / "a.npz")
        np.testing.assert_array_equal(again.descriptors, vectors)
        assert again.descriptors.dtype == vectors.dtype
        assert again.path is None
    none = extract(np.full((50, 50), 9, np.uint8), descriptor=MeanGrey())
    none.save(tmp_path / "none.npz")
    assert hardnet.Features.load(tmp_path / "none.npz").descriptors.shape == (0, 2)


def test_files_that_hold_no_features_are_named(camera: np.ndarray, tmp_path: Path) -> None:
    load = hardnet.Features.load
    with pytest.raises(HardnetError, match=r"none\.npz does not exist"):
        load(tmp_path / "none.npz")
    extract(camera, descriptor=MeanGrey(), keypoints=5).save(tmp_path / "whole.npz")
    data = (tmp_path / "whole.npz").read_bytes()
    with np.load(tmp_path / "whole.npz") as file:
        arrays = dict(file)
    np.savez(tmp_path / "fewer.npz", **arrays | {"scores": arrays["scores"][1:]})
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.savez(tmp_path / "objects.npz", **arrays | {"scores": np.array([{}], object)})
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no features")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "half.npz").write_bytes(data[: len(data) // 2])
    for name in ("fewer.npz", "other.npz", "objects.npz", "one.npy", "text.npz", "empty.npz",
                 "half.npz"):  # fmt: skip
        with pytest.raises(HardnetError, match=f"{name} (is damaged|has no keypoints)"):
            load(tmp_path / name)
    with pytest.raises(HardnetError, match="cannot be written"):
        extract(camera, descriptor=MeanGrey(), keypoints=5).save(tmp_path / "no" / "a.npz")


def kept(features: hardnet.Features, folder: Path) -> list[hardnet.Features]:
    """The features, written and read again in every way."""
    features.save(folder / "a.npz")
    write_npz(folder / "b.npz", features)
    write_hdf5(folder / "c.h5", "x", features)
    ways = hardnet.Features.load(folder / "a.npz"), read_npz(folder / "b.npz")
    return [*ways, read_npz(folder / "a.npz"), read_hdf5(folder / "c.h5", "x")]


@pytest.mark.parametrize("way", ["upright", "dominant"])
def test_files_say_which_way_up(camera: np.ndarray, tmp_path: Path, way: str) -> None:
    found = extract(camera, descriptor=MeanGrey(), keypoints=5, orientation=way)
    for again in kept(found, tmp_path):
        assert again.orientation == way
        np.testing.assert_array_equal(again.frames, found.frames)


def named_hardnet(folder: Path, weights: str) -> Path:
    """A weights file that is called as the shipped one is."""
    folder.mkdir()
    shutil.copy(descriptors.WEIGHTS / weights, folder / "hardnet.onnx")
    return folder / "hardnet.onnx"


def test_features_of_other_weights_are_not_mixed(camera: np.ndarray, tmp_path: Path) -> None:
    crop = camera[:128, :128]
    mine = named_hardnet(tmp_path / "mine", "hardtfeat.onnx")
    same = named_hardnet(tmp_path / "same", "hardnet.onnx")
    shipped, other, copy = (
        extract(crop, descriptor=str(name), keypoints=20) for name in ("hardnet@12", mine, same)
    )
    assert shipped.descriptor == other.descriptor == "hardnet"
    assert shipped.weights == copy.weights == file_digest(same)
    assert other.weights == file_digest(mine)
    with pytest.raises(HardnetError, match=f"hardnet .weights {other.weights[:12]}"):
        match(shipped, other)
    assert len(match(shipped, copy).indices)
    assert len(match(shipped, replace(copy, descriptor="another name")).indices)
    assert len(match(shipped, replace(copy, weights="")).indices)  # of a file that does not say it
    for features in kept(other, tmp_path):
        assert features.weights == other.weights
        with pytest.raises(HardnetError, match="cannot match hardnet"):
            match(features, shipped)


def test_a_misspelt_descriptor_is_reported_before_any_photo_is_read() -> None:
    with pytest.raises(InputError, match="did you mean 'hardnet'"):
        hardnet.extract("no such photo.jpg", descriptor="hardnte")


@pytest.mark.parametrize("keypoints", [0, 2**31, 99999999999, 10.5, True])
def test_numbers_of_keypoints_that_make_no_sense(keypoints: int) -> None:
    with pytest.raises(InputError, match="keypoints is"):
        DescribeSettings(keypoints=keypoints)


def test_features_are_not_saved_without_a_name_nor_loaded_from_a_photo(
    tmp_path: Path, camera: np.ndarray
) -> None:
    with pytest.raises(HardnetError, match="a path is empty"):
        extract(camera, descriptor=MeanGrey(), keypoints=10).save("")
    cv2.imwrite(str(tmp_path / "a.png"), camera)
    with pytest.raises(HardnetError, match="holds no features") as raised:
        hardnet.Features.load(tmp_path / "a.png")
    assert "pickle" not in str(raised.value)
