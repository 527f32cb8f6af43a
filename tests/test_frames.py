from __future__ import annotations

import os
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet import frames
from hardnet.errors import HardnetError
from hardnet.frames import cut_patches


def some_frames(count: int = 50, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    xy = rng.uniform(100, 400, (count, 2))
    return frames.from_similarity(xy, rng.uniform(1, 8, count), rng.uniform(-3, 3, count))


def random_homography(seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([[1, 0.2, 5], [-0.1, 0.9, 8], [2e-4, -1e-4, 1]]) + rng.normal(0, 1e-5, (3, 3))


def turned(image: np.ndarray, degrees: float) -> tuple[np.ndarray, np.ndarray]:
    """The image turned clockwise on screen about its centre, and the (3, 3) map of its pixels."""
    height, width = image.shape
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    centre = np.array([(width - 1) / 2, (height - 1) / 2])
    matrix = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1.0]])
    matrix[:2, 2] = centre - matrix[:2, :2] @ centre
    return cv2.warpAffine(image, matrix[:2], (width, height), flags=cv2.INTER_CUBIC), matrix


def test_similarity_by_hand() -> None:
    # Turned clockwise by 90 degrees: the patch's x axis points down, its y axis points left.
    frame = frames.from_similarity([[10, 20]], 2.0, np.pi / 2)[0]
    np.testing.assert_allclose(frame, [[0, -12, 10], [12, 0, 20]], atol=1e-5)


def test_similarity_round_trip() -> None:
    original = some_frames()
    xy, sigma, angle = frames.to_similarity(original)
    np.testing.assert_allclose(frames.from_similarity(xy, sigma, angle), original, atol=1e-4)


@pytest.mark.parametrize("window", [frames.WINDOW_SIGMAS, 24.0, 10.3923])
def test_window_is_side_over_sigma(window: float) -> None:
    frame = frames.from_similarity([[0, 0]], 3.0, window=window)[0]
    assert frame[0, 0] == pytest.approx(3.0 * window / 2)
    assert frames.to_similarity(frame[None], window)[1][0] == pytest.approx(3.0)


def test_affine_frame_reduces_to_similarity_of_equal_area() -> None:
    affine = np.array([[[12.0, 0, 5], [0, 3, 7]]], np.float32)
    assert frames.to_similarity(affine)[1][0] == pytest.approx(1.0)


def test_opencv_round_trip() -> None:
    original = some_frames()
    back = frames.from_opencv(frames.to_opencv(original))
    np.testing.assert_allclose(back, original, atol=1e-3)


def test_opencv_size_is_a_diameter() -> None:
    frame = frames.from_opencv([cv2.KeyPoint(5.0, 6.0, 4.0, -1.0)])[0]
    np.testing.assert_allclose(frame, [[12, 0, 5], [0, 12, 6]])


def test_opencv_angle_turns_with_the_image(camera: np.ndarray) -> None:
    degrees = 40.0
    second, matrix = turned(camera, degrees)
    sift = cv2.SIFT_create(enable_precise_upscale=True)
    a = frames.transform(frames.from_opencv(sift.detect(camera, None)), matrix)
    b = frames.from_opencv(sift.detect(second, None))
    xy_a, sigma_a, angle_a = frames.to_similarity(a)
    xy_b, sigma_b, angle_b = frames.to_similarity(b)
    distance = np.linalg.norm(xy_a[:, None] - xy_b[None], axis=2)
    same = (distance < 1) & (np.abs(np.log(sigma_a[:, None] / sigma_b[None])) < 0.1)
    i, j = np.nonzero(same)
    assert len(i) > 200
    difference = np.angle(np.exp(1j * (angle_a[i] - angle_b[j])))
    # A place with several orientations pairs wrongly now and then: the median is what counts. The
    # opposite sign would put it at 80 degrees.
    assert np.abs(np.rad2deg(np.median(difference))) < 1
    assert (np.abs(np.rad2deg(difference)) < 5).mean() > 0.6


def test_transform_equals_finite_differences() -> None:
    original, homography = some_frames(), random_homography()

    def project(points: np.ndarray) -> np.ndarray:
        lifted = np.concatenate([points, np.ones((len(points), 1))], 1) @ homography.T
        return lifted[:, :2] / lifted[:, 2:]

    result = frames.transform(original, homography)
    centre = original[:, :, 2].astype(np.float64)
    np.testing.assert_allclose(result[:, :, 2], project(centre), rtol=1e-5)
    step = 1e-4
    for axis in (0, 1):
        side = original[:, :, axis].astype(np.float64) * step
        slope = (project(centre + side) - project(centre - side)) / (2 * step)
        np.testing.assert_allclose(result[:, :, axis], slope, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("factor", [0.5, 0.25])
def test_rescale_follows_a_resized_image(factor: float) -> None:
    yy, xx = np.mgrid[:200, :200]
    centre = np.array([91.3, 107.8])
    blob = np.exp(-((xx - centre[0]) ** 2 + (yy - centre[1]) ** 2) / (2 * 10.0**2))
    small = cv2.resize(blob, None, fx=factor, fy=factor, interpolation=cv2.INTER_AREA)
    v, u = np.mgrid[: small.shape[0], : small.shape[1]]
    found = np.array([(u * small).sum(), (v * small).sum()]) / small.sum()
    moved = frames.rescale(frames.from_similarity([centre], 4.0), factor)
    np.testing.assert_allclose(moved[0, :, 2], found, atol=0.01)  # half a pixel rule: off by > 0.2
    assert moved[0, 0, 0] == pytest.approx(24 * factor)


def test_rescale_by_one_factor_per_axis() -> None:
    moved = frames.rescale(np.array([[[4, 2, 10], [6, 8, 20]]], np.float32), (0.5, 2.0))
    np.testing.assert_allclose(moved[0], [[2, 1, 4.75], [12, 16, 40.5]])


def test_rescale_round_trip() -> None:
    original = some_frames()
    back = frames.rescale(frames.rescale(original, (0.37, 0.41)), (1 / 0.37, 1 / 0.41))
    np.testing.assert_allclose(back, original, atol=1e-3)


@pytest.mark.parametrize("degrees", [0.0, 30.0, -110.0])
def test_patch_of_the_turned_image_by_the_turned_frame_is_the_same(
    camera: np.ndarray, degrees: float
) -> None:
    smooth = cv2.GaussianBlur(camera, (0, 0), 2)
    second, matrix = turned(smooth, degrees)
    rng = np.random.default_rng(0)
    first = frames.from_similarity(
        rng.uniform(190, 320, (40, 2)), rng.uniform(1.5, 4, 40), rng.uniform(-3, 3, 40)
    )
    a = cut_patches(smooth, first).astype(float)
    b = cut_patches(second, frames.transform(first, matrix)).astype(float)
    assert np.abs(a - b).mean() < 1
    assert np.abs(a - cut_patches(second, first)).mean() > 10 or degrees == 0


def test_patch_of_the_magnified_image_by_the_rescaled_frame_is_the_same(camera: np.ndarray) -> None:
    smooth = cv2.GaussianBlur(camera, (0, 0), 2)
    double = cv2.resize(smooth, None, fx=2, fy=2, interpolation=cv2.INTER_CUBIC)
    first = some_frames(40)
    a = cut_patches(smooth, first).astype(float)
    b = cut_patches(double, frames.rescale(first, 2.0)).astype(float)
    assert np.abs(a - b).mean() < 1


def test_check_frames_names_the_problem() -> None:
    with pytest.raises(ValueError, match=r"shape \(N, 2, 3\)"):
        frames.check_frames(np.zeros((4, 3, 3)))
    with pytest.raises(ValueError, match="NaN"):
        frames.check_frames(np.full((1, 2, 3), np.nan))


def test_no_frames() -> None:
    empty = frames.empty_frames()
    assert frames.from_opencv([]).shape == (0, 2, 3)
    assert frames.to_opencv(empty) == []
    assert frames.transform(empty, np.eye(3)).shape == (0, 2, 3)
    assert frames.rescale(empty, 0.5).shape == (0, 2, 3)
    assert frames.from_similarity(np.zeros((0, 2)), np.zeros(0)).shape == (0, 2, 3)


def test_colmap_round_trip_of_affine_frames() -> None:
    rng = np.random.default_rng(4)
    some = some_frames()
    some[:, :, :2] += rng.normal(0, 2, (len(some), 2, 2))
    table = frames.to_colmap(some)
    assert table.shape == (len(some), 6)
    np.testing.assert_allclose(frames.from_colmap(table), some, atol=1e-3)
    np.testing.assert_allclose(
        frames.from_colmap(frames.to_colmap(some, 10.0), 20.0)[:, :, :2], 2 * some[:, :, :2], 1e-4
    )


def test_colmap_scale_and_orientation_by_hand() -> None:
    # Pixel (10, 20) has its centre at (10.5, 20.5); sigma 2 gives a window of half-size 12.
    quarter = [[10.5, 20.5, 2.0, np.pi / 2]]
    expected = [[[0, -12, 10], [12, 0, 20]]]
    np.testing.assert_allclose(frames.from_colmap(quarter), expected, atol=1e-5)
    same = [[10.5, 20.5, 0.0, -2.0, 2.0, 0.0]]
    np.testing.assert_allclose(frames.from_colmap(same), expected, atol=1e-5)
    with pytest.raises(ValueError, match="columns"):
        frames.from_colmap([[10.5, 20.5]])


def test_the_two_forms_of_colmap_keypoints_agree_as_pycolmap_converts_them() -> None:
    pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    xy, sigma, angle = frames.to_similarity(some_frames())
    four = np.column_stack([xy + 0.5, sigma, angle]).astype(np.float32)
    keypoints = pycolmap.keypoints_from_matrix(four)
    six = np.array([(k.x, k.y, k.a11, k.a12, k.a21, k.a22) for k in keypoints])
    np.testing.assert_allclose(frames.from_colmap(four), some_frames(), atol=1e-3)
    np.testing.assert_allclose(frames.from_colmap(six), some_frames(), atol=1e-3)
    np.testing.assert_allclose(frames.to_colmap(some_frames()), six, atol=1e-3)


def test_colmap_sift_finds_what_our_detector_finds(camera: np.ndarray) -> None:
    """Place, scale and orientation of two programs agree where both find a keypoint."""
    pycolmap = pytest.importorskip("pycolmap", reason="needs hardnet[sfm]")
    from hardnet.detectors import dog

    pycolmap.logging.minloglevel = 3
    options = pycolmap.FeatureExtractionOptions()
    options.use_gpu = False
    extractor = pycolmap.FeatureExtractor.create(options)
    keypoints, _ = extractor.extract(pycolmap.Bitmap.from_array(camera))
    table = np.array([(k.x, k.y, k.a11, k.a12, k.a21, k.a22) for k in keypoints])
    theirs, ours = frames.from_colmap(table), dog.detect(camera, 5000)[0]
    close = np.linalg.norm(theirs[:, None, :, 2] - ours[None, :, :, 2], axis=2) < 0.3
    axis = np.einsum("ni,mi->nm", theirs[:, :, 0], ours[:, :, 0])
    half = np.sqrt(np.linalg.det(theirs[:, :, :2]))[:, None] * np.ones(len(ours))
    ours_half = np.sqrt(np.linalg.det(ours[:, :, :2]))[None]
    like = close & (np.abs(np.log2(half / ours_half)) < 0.1)
    aligned = like & (axis / (half * ours_half) > np.cos(np.deg2rad(10)))
    assert like.any(1).mean() > 0.7
    assert aligned.any(1).sum() > 0.85 * like.any(1).sum()


def test_oxford_ellipse_by_hand() -> None:
    # Half-axes 4 (x) and 2 (y): x^2 / 16 + y^2 / 4 = 1.
    frame = frames.from_oxford([[10, 20, 1 / 16, 0, 1 / 4]])[0]
    np.testing.assert_allclose(frame, [[4, 0, 10], [0, 2, 20]], atol=1e-6)


def test_oxford_ellipse_is_the_circle_of_the_patch() -> None:
    table = np.array([[30.0, 40, 0.02, -0.008, 0.011]])
    frame = frames.from_oxford(table)[0].astype(np.float64)
    for turn in np.linspace(0, 2 * np.pi, 7):
        x, y = frame[:, :2] @ [np.cos(turn), np.sin(turn)]
        assert 0.02 * x * x - 2 * 0.008 * x * y + 0.011 * y * y == pytest.approx(1, rel=1e-5)
    assert frame[0, 1] == 0  # patch-up is up in the image
    assert frame[0, 0] > 0
    assert frame[1, 1] > 0


def test_oxford_round_trip_through_a_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    some = some_frames()
    some[:, :, :2] += rng.normal(0, 2, (len(some), 2, 2))
    file = tmp_path / "ellipses.txt"
    frames.write_oxford(file, some)
    assert file.read_text().splitlines()[:2] == ["1.0", str(len(some))]
    back = frames.read_oxford(file)
    np.testing.assert_allclose(frames.to_oxford(back), frames.to_oxford(some), rtol=1e-4)
    # The same regions; only the angle, which an ellipse does not have, is gone.
    shape, other = some[:, :, :2], back[:, :, :2]
    np.testing.assert_allclose(
        other @ other.swapaxes(1, 2), shape @ shape.swapaxes(1, 2), rtol=1e-3, atol=1e-2
    )
    again = tmp_path / "again.txt"
    frames.write_oxford(again, back)
    np.testing.assert_allclose(frames.read_oxford(again), back, rtol=1e-4, atol=1e-4)


def test_oxford_file_with_descriptors_and_without_ellipses(tmp_path: Path) -> None:
    file = tmp_path / "ellipses.txt"
    file.write_text("3\n1\n10 20 0.0625 0 0.25 7 8 9\n")
    np.testing.assert_allclose(frames.read_oxford(file)[0], [[4, 0, 10], [0, 2, 20]], atol=1e-6)
    frames.write_oxford(file, frames.empty_frames())
    assert frames.read_oxford(file).shape == (0, 2, 3)


@pytest.mark.parametrize(
    "text", ["", "1.0\n", "1.0\n2\n1 2 3 0 3\n", "1.0\n1\n1 2 3\n", "1.0\n1\n1 2 1 2 1\n", "a\nb\n"]
)
def test_a_broken_oxford_file_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.txt"
    file.write_text(text)
    with pytest.raises(HardnetError, match="broken"):
        frames.read_oxford(file)


def test_a_pipe_is_not_read_as_ellipses(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ellipses")
    with pytest.raises(HardnetError, match="is a pipe"):
        frames.read_oxford(tmp_path / "ellipses")
