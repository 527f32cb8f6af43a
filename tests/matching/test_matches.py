from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.features import Features, extract
from hardnet.images import read_image
from hardnet.matching.geometry import sampson_error, transfer_error
from hardnet.matching.matches import match


def features(image: object, **options: object) -> Features:
    return extract(image, descriptor="rootsift", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def warped(photos: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A photograph, the same under a homography, and the homography."""
    image = read_image(photos / "astronaut.png")
    homography = np.array([[0.8, -0.25, 120], [0.22, 0.85, 10], [1e-4, 5e-5, 1]])
    return image, cv2.warpPerspective(image, homography, (560, 560)), homography


@pytest.fixture(scope="module")
def stereo(photos: Path) -> tuple[Features, Features]:
    left, right = (features(photos / f"motorcycle_{side}.png") for side in ("left", "right"))
    return left, right


def test_homography_of_a_warped_photo(
    warped: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    image, second, homography = warped
    result = match(features(image), features(second))
    assert result.geometry.kind == "homography"
    assert result.inliers.sum() > 300
    corners = np.array([[100.0, 100], [400, 100], [400, 400], [100, 400]])
    ones = np.ones((4, 1))
    target = np.hstack([corners, ones]) @ homography.T
    assert transfer_error(result.geometry.model, corners, target[:, :2] / target[:, 2:]).max() < 0.7


def test_geometry_is_in_pixels_of_the_originals(
    warped: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    image, second, homography = warped
    large = cv2.resize(image, None, fx=3, fy=3, interpolation=cv2.INTER_CUBIC)
    result = match(features(large, max_size=500), features(second))
    assert result.geometry.kind == "homography"
    points = np.array([[100.0, 100], [400, 150], [300, 400]])
    target = np.hstack([points, np.ones((3, 1))]) @ homography.T
    found = transfer_error(
        result.geometry.model, (points + 0.5) * 3 - 0.5, target[:, :2] / target[:, 2:]
    )
    assert found.max() < 1


def test_fundamental_matrix_of_a_stereo_pair(stereo: tuple[Features, Features]) -> None:
    result = match(*stereo)
    assert result.geometry.kind == "fundamental"
    assert result.inliers.sum() > 500
    assert result.inliers.mean() > 0.7
    a, b = result.xy_a[result.inliers], result.xy_b[result.inliers]
    assert np.abs(a[:, 1] - b[:, 1]).mean() < 1  # the pair is rectified: rows agree
    assert sampson_error(result.geometry.model, a, b).max() < 3


def test_fields_belong_together(stereo: tuple[Features, Features]) -> None:
    a, b = stereo
    result = match(a, b)
    assert len(result) == len(result.indices) == len(result.scores) == len(result.inliers)
    np.testing.assert_array_equal(result.xy_a, a.xy[result.indices[:, 0]])
    np.testing.assert_array_equal(result.xy_b, b.xy[result.indices[:, 1]])
    assert (np.diff(result.scores) <= 0).all()
    assert result.geometry.model.shape == (3, 3)
    assert list(result.seconds) == ["match", "verify"]


def test_same_input_same_output(stereo: tuple[Features, Features]) -> None:
    one, two = match(*stereo), match(*stereo)
    np.testing.assert_array_equal(one.indices, two.indices)
    np.testing.assert_array_equal(one.inliers, two.inliers)
    np.testing.assert_array_equal(one.geometry.model, two.geometry.model)


@pytest.mark.parametrize("ratio", [0.9, 1.0])
def test_unrelated_photos_are_not_verified(photos: Path, ratio: float) -> None:
    names = ["astronaut", "chelsea", "coffee", "brick", "gravel", "camera"]
    found = [features(photos / f"{name}.png", keypoints=1000) for name in names]
    for i in range(len(found)):
        for j in range(i):
            result = match(found[i], found[j], ratio=ratio)
            assert result.geometry.kind is None, (names[i], names[j], result.inliers.sum())


def test_picture(stereo: tuple[Features, Features], tmp_path: Path) -> None:
    match(*stereo).draw(tmp_path / "matches.png")
    picture = read_image(tmp_path / "matches.png")
    assert picture.shape[1] > 2 * 741
    assert picture.ndim == 3


def test_picture_of_arrays(camera: np.ndarray, tmp_path: Path) -> None:
    result = match(features(camera), features(camera[:, ::-1].copy()[:, ::-1]))
    assert result.geometry.kind == "homography"
    result.draw(tmp_path / "self.jpg")
    assert (tmp_path / "self.jpg").stat().st_size > 10_000


def test_mixed_descriptors_are_refused(camera: np.ndarray) -> None:
    with pytest.raises(HardnetError, match="cannot match rootsift with sift"):
        match(features(camera, keypoints=9), extract(camera, descriptor="sift", keypoints=9))


@pytest.mark.parametrize("wrong", [{"ratio": 0.0}, {"ratio": 1.5}, {"model": "affine"}])
def test_wrong_options_are_named(
    stereo: tuple[Features, Features], wrong: dict[str, float]
) -> None:
    with pytest.raises(HardnetError, match=next(iter(wrong))):
        match(*stereo, **wrong)


def test_real_planes(data: Path) -> None:
    folder = data / "oxford-affine" / "wall"
    result = match(features(folder / "1.png"), features(folder / "3.png"))
    assert result.geometry.kind == "homography"
    homography = np.loadtxt(folder / "H_1_3")
    error = transfer_error(homography, result.xy_a, result.xy_b)
    assert (error[result.inliers] < 5).mean() > 0.98
    assert (error < 3).sum() > 500
