"""HDF5 and npz files of features: what is written is what is read, by us and by others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

import hardnet
from hardnet.errors import HardnetError
from hardnet.features import SIGMA, Features
from hardnet.frames import to_similarity
from hardnet.interop import feature_files

FIELDS = ("frames", "scores", "descriptors", "image_size", "descriptor", "scale")


@pytest.fixture(scope="module")
def pair(photos: Path) -> tuple[Features, Features]:
    settings = {"descriptor": "rootsift", "keypoints": 400, "max_size": 500}
    left, right = (photos / f"motorcycle_{side}.png" for side in ("left", "right"))
    return hardnet.extract(left, **settings), hardnet.extract(right, **settings)


@pytest.fixture
def small() -> Features:
    """Three features, every number known."""
    rng = np.random.default_rng(0)
    frames = rng.normal(size=(3, 2, 3)).astype(np.float32)
    scores = np.array([3, 2, 1], np.float32)
    return Features(frames, scores, rng.normal(size=(3, 4)).astype(np.float32), (40, 30), "mine")


def empty(features: Features) -> Features:
    return replace(
        features,
        frames=features.frames[:0],
        scores=features.scores[:0],
        descriptors=features.descriptors[:0],
    )


def same(a: Features, b: Features) -> None:
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("frames", "scores", "descriptors"):
        assert getattr(a, name).dtype == getattr(b, name).dtype
        assert getattr(a, name).shape == getattr(b, name).shape


@pytest.fixture(params=["h5", "npz"])
def round_trip(request: pytest.FixtureRequest, tmp_path: Path):
    def there_and_back(features: Features, **options: bool) -> Features:
        if request.param == "npz":
            feature_files.write_npz(tmp_path / "deep" / "x.npz", features, **options)
            return feature_files.read_npz(tmp_path / "deep" / "x.npz")
        feature_files.write_hdf5(tmp_path / "x.h5", "a/b.jpg", features, **options)
        return feature_files.read_hdf5(tmp_path / "x.h5", "a/b.jpg")

    return there_and_back


def test_features_come_back_bit_by_bit(pair: tuple[Features, Features], round_trip) -> None:
    back = round_trip(pair[0])
    same(back, pair[0])
    assert back.scale < 1
    assert back.path == pair[0].path
    np.testing.assert_array_equal(back.read_pixels(), pair[0].read_pixels())


def test_packed_bits_no_keypoints_and_arrays_come_back(small: Features, round_trip) -> None:
    bits = replace(small, descriptors=np.arange(6, dtype=np.uint8).reshape(3, 2))
    for features in (small, bits, empty(small), empty(bits)):
        back = round_trip(features)
        same(back, features)
        assert back.path is None


def test_half_keeps_three_digits_and_all_of_the_frames(small: Features, round_trip) -> None:
    back = round_trip(small, half=True)
    same(replace(back, descriptors=small.descriptors), small)
    assert back.descriptors.dtype == np.float32
    np.testing.assert_array_equal(
        back.descriptors, small.descriptors.astype(np.float16).astype(np.float32)
    )
    bits = replace(small, descriptors=np.arange(6, dtype=np.uint8).reshape(3, 2))
    same(round_trip(bits, half=True), bits)


def test_read_features_match(pair: tuple[Features, Features], tmp_path: Path) -> None:
    for name, features in zip(("l.png", "r.png"), pair, strict=True):
        feature_files.write_hdf5(tmp_path / "feats.h5", name, features)
    read = [feature_files.read_hdf5(tmp_path / "feats.h5", name) for name in ("l.png", "r.png")]
    result, direct = hardnet.match(*read), hardnet.match(*pair)
    np.testing.assert_array_equal(result.indices, direct.indices)
    np.testing.assert_array_equal(result.inliers, direct.inliers)
    result.draw(tmp_path / "matches.png")
    assert (tmp_path / "matches.png").stat().st_size > 10_000


def test_a_project_can_be_moved_as_a_whole(photos: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "photos").mkdir(parents=True)
    shutil.copy(photos / "camera.png", project / "photos")
    features = hardnet.extract(
        project / "photos" / "camera.png", descriptor="rootsift", keypoints=5, max_size=200
    )
    feature_files.write_hdf5(project / "feats.h5", "camera.png", features)
    project.rename(tmp_path / "moved")
    read = feature_files.read_hdf5(tmp_path / "moved" / "feats.h5", "camera.png")
    assert read.path == str((tmp_path / "moved" / "photos" / "camera.png").resolve())
    os.remove(read.path)
    assert feature_files.read_hdf5(tmp_path / "moved" / "feats.h5", "camera.png").path is None
    with pytest.raises(HardnetError, match="neither their image nor its path"):
        feature_files.read_hdf5(tmp_path / "moved" / "feats.h5", "camera.png").read_pixels()


def test_hloc_reads_it(pair: tuple[Features, Features], tmp_path: Path) -> None:
    """What hloc does with such a file, with plain h5py."""
    path = tmp_path / "feats.h5"
    written = {"db/left.png": pair[0], "query/day 1/ü.png": pair[1], "db/even.png": empty(pair[0])}
    for name, features in written.items():
        feature_files.write_hdf5(path, name, features)
    found = set()
    with h5py.File(path, "r") as file:
        # It takes the parents of all datasets for images...
        file.visititems(
            lambda _, item: (
                found.add(item.parent.name.strip("/")) if isinstance(item, h5py.Dataset) else None
            )
        )
        assert found == set(written)
        for name, features in written.items():
            group = file[name]
            # ... turns every dataset into floats...
            read = {key: item.__array__().astype(np.float32) for key, item in group.items()}
            np.testing.assert_array_equal(read["keypoints"], features.frames[:, :, 2])
            np.testing.assert_array_equal(read["descriptors"], features.descriptors.T)
            np.testing.assert_array_equal(read["scores"], features.scores)
            # ... makes an image of that size, so it must be whole numbers, width first...
            size = tuple(group["image_size"])[::-1]
            assert np.empty((1, *size)).shape == (1, 500, 741)
            # ... and asks for an attribute that need not be there.
            assert group["keypoints"].attrs.get("uncertainty") is None


def test_a_file_of_hloc_is_read(tmp_path: Path) -> None:
    path = tmp_path / "feats-superpoint-n4096-r1024.h5"
    xy = np.array([[10.5, 20], [30, 40]], np.float16)
    vectors = np.arange(6, dtype=np.float16).reshape(3, 2) / 8
    with h5py.File(path, "w", libver="latest") as file:
        group = file.create_group("db/1.jpg")
        group.create_dataset("keypoints", data=xy)
        group["keypoints"].attrs["uncertainty"] = 1.5
        group.create_dataset("descriptors", data=vectors)
        group.create_dataset("scores", data=np.array([0.5, 0.25], np.float16))
        group.create_dataset("image_size", data=np.array([640, 480]))
        file.create_group("global/1.jpg").create_dataset("global_descriptor", data=np.ones(4))
    assert feature_files.hdf5_names(path) == ["db/1.jpg"]
    read = feature_files.read_hdf5(path, "db/1.jpg")
    np.testing.assert_array_equal(read.xy, [[10.5, 20], [30, 40]])
    _, sigma, angle = to_similarity(read.frames)
    np.testing.assert_allclose(sigma, SIGMA)
    np.testing.assert_array_equal(angle, 0)
    np.testing.assert_array_equal(read.descriptors, [[0, 0.25, 0.5], [0.125, 0.375, 0.625]])
    np.testing.assert_array_equal(read.scores, [0.5, 0.25])
    assert read.descriptors.dtype == read.scores.dtype == read.frames.dtype == np.float32
    assert (read.image_size, read.scale, read.path) == ((640, 480), 1.0, None)
    assert read.descriptor == "feats-superpoint-n4096-r1024"
    with pytest.raises(HardnetError, match=r"no image 'global/1\.jpg'"):
        feature_files.read_hdf5(path, "global/1.jpg")


def test_writing_again_replaces_one_entry(small: Features, tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        feature_files.write_hdf5(tmp_path / "x.h5", name, small)
    other = replace(small, scores=small.scores + 1, descriptor="other")
    feature_files.write_hdf5(tmp_path / "x.h5", "a.jpg", other)
    same(feature_files.read_hdf5(tmp_path / "x.h5", "a.jpg"), other)
    same(feature_files.read_hdf5(tmp_path / "x.h5", "b.jpg"), small)


def test_an_entry_that_fails_is_not_there(small: Features, tmp_path: Path) -> None:
    feature_files.write_hdf5(tmp_path / "x.h5", "a.jpg", small)
    unfit = replace(small, scores=np.array([object()] * 3))  # written after the keypoints
    with pytest.raises(TypeError):
        feature_files.write_hdf5(tmp_path / "x.h5", "b.jpg", unfit)
    assert feature_files.hdf5_names(tmp_path / "x.h5") == ["a.jpg"]
    same(feature_files.read_hdf5(tmp_path / "x.h5", "a.jpg"), small)


def test_a_wrong_name_gets_a_hint(small: Features, tmp_path: Path) -> None:
    feature_files.write_hdf5(tmp_path / "x.h5", "church/front.jpg", small)
    for wrong in ("front.jpg", "church", "church/front.jpg/scores"):
        with pytest.raises(HardnetError, match=r"church/front.jpg.* \(1 in all\)"):
            feature_files.read_hdf5(tmp_path / "x.h5", wrong)


@pytest.mark.parametrize("kind", ["missing", "empty", "text", "folder", "cut"])
def test_what_is_no_such_file_is_one_line(small: Features, tmp_path: Path, kind: str) -> None:
    for suffix, read in (
        ("h5", lambda p: feature_files.read_hdf5(p, "a")),
        ("npz", feature_files.read_npz),
    ):
        path = tmp_path / f"x.{suffix}"
        if kind in ("empty", "text"):
            path.write_text("" if kind == "empty" else "words, not numbers " * 99)
        elif kind == "folder":
            path.mkdir()
        elif kind == "cut":
            if suffix == "h5":
                feature_files.write_hdf5(path, "a", small)
            else:
                feature_files.write_npz(path, small)
            path.write_bytes(path.read_bytes()[:900])
        with pytest.raises(HardnetError, match=path.name) as caught:
            read(path)
        assert "\n" not in str(caught.value)


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", keypoints=np.array([{"a": 1}], dtype=object))
    with pytest.raises(HardnetError, match=r"x\.npz"):
        feature_files.read_npz(tmp_path / "x.npz")


def test_counts_that_disagree_are_damage(small: Features, tmp_path: Path) -> None:
    feature_files.write_hdf5(tmp_path / "x.h5", "a", small)
    with h5py.File(tmp_path / "x.h5", "a") as file:
        del file["a/scores"]
        file["a"].create_dataset("scores", data=np.zeros(2))
    with pytest.raises(HardnetError, match=r"x\.h5: a is damaged: 3 keypoints, .* 2 scores"):
        feature_files.read_hdf5(tmp_path / "x.h5", "a")


def test_a_file_that_another_process_writes_is_said(small: Features, tmp_path: Path) -> None:
    path = tmp_path / "x.h5"
    feature_files.write_hdf5(path, "a", small)
    script = "import h5py, sys; f = h5py.File(sys.argv[1], 'a'); print(1, flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(HardnetError, match="another process"):
            feature_files.read_hdf5(path, "a")
        with pytest.raises(HardnetError, match="another process"):
            feature_files.write_hdf5(path, "b", small)
    finally:
        other.communicate(b"\n", timeout=20)
    assert feature_files.hdf5_names(path) == ["a"]
