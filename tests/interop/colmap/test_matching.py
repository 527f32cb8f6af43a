"""Our geometries in a COLMAP database: checked with points of a known scene in COLMAP's pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hardnet.interop.colmap import CameraSettings, write_database
from hardnet.interop.colmap.database import read_photos
from hardnet.matching.geometry import Geometry
from hardnet.matching.matches import Matches

from .conftest import make_features, make_matches, upright_frames, write_photo

pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")


FOCAL, SIZE = 300.0, (320, 240)  # of the upright photos
ANGLE, SHIFT = np.deg2rad(8), np.array([1.0, 0.2, 0.1])
TURN = np.array([[np.cos(ANGLE), 0, np.sin(ANGLE)], [0, 1, 0], [-np.sin(ANGLE), 0, np.cos(ANGLE)]])
K = np.array([[FOCAL, 0, 159.5], [0, FOCAL, 119.5], [0, 0, 1]])


@dataclass
class Written:
    """What the database says of a pair whose second photo is stored turned."""

    geometry: Any
    a: np.ndarray
    b: np.ndarray
    k_a: np.ndarray
    k_b: np.ndarray


def _cross(x: np.ndarray) -> np.ndarray:
    return np.array([[0, -x[2], x[1]], [x[2], 0, -x[0]], [-x[1], x[0], 0]])


def _see(points: np.ndarray) -> np.ndarray:
    image = points @ K.T
    return image[:, :2] / image[:, 2:]


def _write(
    folder: Path, flat: bool, model: Geometry, orientation: int, matches: int = 40
) -> Written:
    rng = np.random.default_rng(2)
    points = rng.uniform(-1, 1, (60, 3)) + np.array([0, 0, 5])
    if flat:
        points[:, 2] = 5
    features = {
        "a.jpg": make_features(upright_frames(_see(points)), SIZE),
        "b.jpg": make_features(upright_frames(_see(points @ TURN.T + SHIFT)), SIZE),
    }
    write_photo(folder / "in" / "a.jpg", SIZE)
    stored = SIZE[::-1] if orientation > 4 else SIZE
    write_photo(folder / "in" / "b.jpg", stored, orientation)
    rows = np.stack([np.arange(matches)] * 2, 1)
    rows[-1] = 50, 3  # not an inlier
    kept = replace(model, inliers=np.arange(matches) < matches - 1)
    pair = make_matches(features["a.jpg"], features["b.jpg"], rows)
    pair = Matches(pair.indices, pair.scores, kept, pair.a, pair.b)
    path = folder / "database.db"
    cameras = CameraSettings("SIMPLE_PINHOLE", focal=FOCAL)
    write_database(
        path, folder / "in", features, {("a.jpg", "b.jpg"): pair}, cameras, verification="hardnet"
    )
    with pycolmap.Database.open(path) as database:
        photos = read_photos(database, path)
        first, second = photos["a.jpg"], photos["b.jpg"]
        np.testing.assert_array_equal(database.read_matches(first.id, second.id), rows)
        geometry = database.read_two_view_geometry(first.id, second.id)
    inliers = geometry.inlier_matches
    np.testing.assert_array_equal(inliers, rows[:-1] if matches > 15 else rows[:0])
    ones = np.ones((len(inliers), 1))
    return Written(
        geometry,
        np.hstack([first.points[inliers[:, 0]], ones]),
        np.hstack([second.points[inliers[:, 1]], ones]),
        first.camera.calibration_matrix(),
        second.camera.calibration_matrix(),
    )


def _to_lines(matrix: np.ndarray, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Pixels between points of b and the lines of a."""
    lines = a @ matrix.T
    return np.abs((lines * b).sum(1)) / np.hypot(lines[:, 0], lines[:, 1])


@pytest.mark.parametrize("orientation", [1, 3, 6, 7])
def test_a_fundamental_matrix(tmp_path: Path, orientation: int) -> None:
    inverse = np.linalg.inv(K)
    model = inverse.T @ _cross(SHIFT) @ TURN @ inverse
    nothing = np.zeros(0, bool)
    found = _write(tmp_path, False, Geometry("fundamental", model, nothing), orientation)
    assert found.geometry.config == pycolmap.TwoViewGeometryConfiguration.UNCALIBRATED
    assert _to_lines(found.geometry.F, found.a, found.b).max() < 1e-3


@pytest.mark.parametrize("orientation", [1, 8])
def test_a_homography(tmp_path: Path, orientation: int) -> None:
    plane = TURN + np.outer(SHIFT, [0, 0, 1 / 5])
    model = Geometry("homography", K @ plane @ np.linalg.inv(K), np.zeros(0, bool))
    found = _write(tmp_path, True, model, orientation)
    kind = pycolmap.TwoViewGeometryConfiguration.PLANAR_OR_PANORAMIC
    assert found.geometry.config == kind
    carried = found.a @ found.geometry.H.T
    np.testing.assert_allclose(carried / carried[:, 2:], found.b, atol=1e-3)


@pytest.mark.parametrize("orientation", [1, 6])
def test_an_essential_matrix(tmp_path: Path, orientation: int) -> None:
    model = Geometry("essential", _cross(SHIFT) @ TURN, np.zeros(0, bool), (K, K))
    found = _write(tmp_path, False, model, orientation)
    assert found.geometry.config == pycolmap.TwoViewGeometryConfiguration.CALIBRATED
    seen = found.a @ np.linalg.inv(found.k_a).T, found.b @ np.linalg.inv(found.k_b).T
    assert FOCAL * _to_lines(found.geometry.E, *seen).max() < 1e-3
    values = np.linalg.svd(found.geometry.E, compute_uv=False)
    np.testing.assert_allclose(values, [np.sqrt(0.5), np.sqrt(0.5), 0], atol=1e-6)


def test_too_few_inliers_are_not_believed(tmp_path: Path) -> None:
    model = Geometry("homography", np.eye(3), np.zeros(0, bool))
    found = _write(tmp_path, True, model, 1, matches=15)
    assert found.geometry.config == pycolmap.TwoViewGeometryConfiguration.UNDEFINED
