"""Detections paired by known geometry: tolerances by values, and real patches of a real photo."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardnet.frames import disturb, from_similarity
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.build.photos import (
    KINDS,
    DetectionSettings,
    PhotoPatches,
    Tolerances,
    build_from_photos,
    cut_photo,
    detect,
    pair_frames,
)

MOST = Tolerances(shift=0.25, octaves=0.5, degrees=25, stretch=1.0)


def moved(frames: np.ndarray, shift=(0.0, 0.0), octaves=0.0, degrees=0.0, stretch=0.0):
    n = len(frames)
    ones = np.ones(n)
    angle = np.deg2rad(degrees) * ones
    return disturb(frames, ones[:, None] * shift, octaves * ones, angle, stretch * ones, 0 * ones)


@pytest.mark.parametrize(
    ("change", "paired"),
    [
        ({}, True),
        ({"shift": (0.2, 0.1)}, True),
        ({"shift": (0.2, 0.2)}, False),
        ({"octaves": 0.45}, True),
        ({"octaves": -0.55}, False),
        ({"degrees": 24}, True),
        ({"degrees": -26}, False),
        ({"stretch": 0.95}, True),
        ({"stretch": 1.05}, False),
    ],
)
def test_tolerances(change: dict, paired: bool) -> None:
    frames = from_similarity([[50, 60]], 3.0, 0.8)
    assert (pair_frames(frames, moved(frames, **change), MOST)[0] == 0) == paired


def test_the_nearer_of_two_is_taken_and_a_detection_only_once() -> None:
    carried = from_similarity([[50, 60], [51, 60]], 4.0)
    found = from_similarity([[52, 60], [50.2, 60], [200, 200]], 4.0)
    assert pair_frames(carried, found, MOST).tolist() == [1, 0]
    assert pair_frames(carried, found[1:], MOST).tolist() == [0, -1]


def test_pairing_is_the_greedy_loop_over_all_pairs() -> None:
    rng = np.random.default_rng(0)
    carried = from_similarity(
        rng.uniform(0, 60, (40, 2)), rng.uniform(2, 6, 40), rng.uniform(0, 6, 40)
    )
    found = moved(carried[rng.permutation(40)], (0.05, -0.05), 0.1, 5, 0.1)
    candidates = []
    for i, frame in enumerate(carried.astype(float)):
        for j, other in enumerate(found.astype(float)):
            half = np.sqrt(np.linalg.det(frame[:, :2]))
            away = np.hypot(*(frame[:, 2] - other[:, 2])) / half
            m = np.linalg.inv(frame[:, :2]) @ other[:, :2]
            octaves = abs(np.log2(np.sqrt(np.linalg.det(m))))
            turn = abs(np.rad2deg(np.arctan2(m[1, 0] - m[0, 1], m[0, 0] + m[1, 1])))
            s = np.linalg.svd(m, compute_uv=False)
            errors = [away / 0.25, octaves / 0.5, turn / 25, np.log2(s[0] / s[1]) / 1.0]
            if max(errors) <= 1:
                candidates.append((sum(e * e for e in errors), i, j))
    expected = np.full(40, -1)
    for _, i, j in sorted(candidates):
        if expected[i] < 0 and j not in expected:
            expected[i] = j
    assert np.array_equal(pair_frames(carried, found, MOST), expected)
    assert (expected >= 0).mean() > 0.9


def test_nothing_found_is_no_pair() -> None:
    frames = from_similarity([[50, 60]], 3.0)
    assert pair_frames(frames, frames[:0], MOST).tolist() == [-1]
    assert pair_frames(frames[:0], frames, MOST).tolist() == []


def test_upright_kinds_point_up_and_have_each_place_once(camera: np.ndarray) -> None:
    found = dict(zip(KINDS, detect(camera, 300), strict=True))
    assert all(len(frames) > 50 for frames in found.values())
    for kind in ("dog upright", "hessian-affine upright"):
        assert np.allclose(found[kind][:, 0, 1], 0, atol=1e-4)  # [[a, 0], [b, c]]
    assert np.allclose(found["dog upright"][:, 1, 0], 0, atol=1e-3)
    places = found["dog upright"][:, :, 2]
    assert len(np.unique(places, axis=0)) == len(places)


@pytest.fixture(scope="module")
def album(tmp_path_factory, photos: Path) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for name in ("astronaut.png", "coffee.png"):
        (folder / name).write_bytes((photos / name).read_bytes())
    (folder / "broken.jpg").write_text("not a picture")
    return folder


SETTINGS = DetectionSettings(points=40, views=2, max_size=400, light=0.3, carried=0)


def patches(album: Path, name: str = "astronaut.png", **changes: object) -> PhotoPatches:
    found = cut_photo((album / name, name), replace(SETTINGS, **changes))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def made(album: Path) -> PhotoPatches:
    return patches(album)


def test_matching_patches_look_alike_and_others_do_not(made: PhotoPatches) -> None:
    """Normalised correlation of patches of one point against patches of neighbouring points."""
    assert (np.diff(made.points) >= 0).all()
    assert np.bincount(made.points).min() >= 2
    x = made.patches.reshape(len(made.points), -1).astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
    same = made.points[:-1] == made.points[1:]
    correlation = (x[:-1] * x[1:]).mean(1)
    assert correlation[same].mean() > 0.6
    assert correlation[same].mean() > correlation[~same].mean() + 0.5
    # Patches of one point are from different views of one kind of keypoint.
    for point in np.unique(made.points):
        images = made.images[made.points == point]
        assert len(set(images.tolist())) == len(images)
        assert len(set((images // 3).tolist())) == 1


def test_every_window_gives_points_of_its_own(album: Path, made: PhotoPatches) -> None:
    """The first window is as without the second; a wide patch has the narrow one in its middle."""
    narrow, both = made, patches(album, windows=(12.0, 24.0))
    images = 3 * len(KINDS)
    first = both.images < images
    assert np.array_equal(both.patches[first], narrow.patches)
    assert np.array_equal(both.points[first], narrow.points)
    assert np.array_equal(both.images[first], narrow.images)
    wide = both[~first]
    assert 10 < len(np.unique(wide.points)) < len(np.unique(narrow.points))
    assert wide.points.min() > narrow.points.max()
    assert wide.images.max() < 2 * images
    middle = wide.patches[:, 16:48, 16:48].reshape(len(wide), -1).astype(np.float64)
    small = narrow.patches.reshape(-1, 32, 2, 32, 2).mean((2, 4)).reshape(len(narrow), -1)
    apart = [np.abs(small - patch).mean(1).min() for patch in middle]
    assert np.median(apart) < 4  # grey levels


def test_carried_frames_only_add(album: Path) -> None:
    without, everything = (patches(album, "coffee.png", light=1.0, carried=k) for k in (0, 1))
    assert len(everything) > 1.3 * len(without)


def test_a_set_of_two_photos(album: Path, tmp_path: Path) -> None:
    settings = DetectionSettings(points=20, views=2, max_size=400, pairs=50)
    report = build_from_photos([album], tmp_path / "set", settings, 1)
    assert report.photos == 2
    assert report.skipped == ("broken.jpg",)
    found = read_brown(tmp_path / "set")
    assert len(found) == report.patches
    assert len(np.unique(found.points)) == report.points
    assert found.images is not None
    assert found.images.max() < 3 * len(KINDS) * 3
    about = json.loads((tmp_path / "set/set.json").read_text())
    assert about["settings"]["views"] == 2


@pytest.mark.slow
def test_the_same_bytes_whatever_the_number_of_processes(album: Path, tmp_path: Path) -> None:
    settings = DetectionSettings(points=20, views=2, pairs=50)
    one, two = (
        build_from_photos([album], tmp_path / str(workers), settings, workers) for workers in (1, 2)
    )
    assert one == two
    for file in (tmp_path / "1").iterdir():
        assert file.read_bytes() == (tmp_path / "2" / file.name).read_bytes()
