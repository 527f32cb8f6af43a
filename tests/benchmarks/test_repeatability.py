"""Overlap of ellipses and repeatability of frames, against loops and painted ellipses."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from detect import Repeatability, repeatability

from hardnet import detectors
from hardnet.bench.ratio import one_to_one, overlap_errors
from hardnet.frames import from_similarity, transform


def ellipses(count: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    xy = rng.uniform(60, 240, (count, 2))
    frames = from_similarity(xy, rng.uniform(3, 6, count), rng.uniform(-3, 3, count), window=2.0)
    frames[:, :, 0] *= rng.uniform(1, 2.5, (count, 1)).astype(np.float32)
    return frames


def painted_error(first: np.ndarray, second: np.ndarray) -> float:
    """The overlap error by counting the cells of a fine grid."""
    factor = 30 / np.sqrt(np.linalg.det(first[:, :2]))
    masks = []
    grid = np.stack(np.meshgrid(*[np.arange(-90, 90, 0.6)] * 2), -1)
    for frame in (first, second):
        shape = np.linalg.inv(frame[:, :2].astype(float) * factor)
        offset = grid - (frame[:, 2] - first[:, 2])
        masks.append(((offset @ shape.T) ** 2).sum(-1) <= 1)
    return 1 - (masks[0] & masks[1]).sum() / (masks[0] | masks[1]).sum()


def reference(
    a: np.ndarray, b: np.ndarray, homography: np.ndarray, size: tuple[int, int]
) -> tuple[tuple[int, int], int, int]:
    """Visible frames, correspondences by overlap and by distance, by explicit loops."""

    def seen(frames: np.ndarray, h: np.ndarray) -> list[int]:
        kept = []
        for i, frame in enumerate(frames):
            x, y, w = h @ [*frame[:, 2], 1]
            if w > 0 and 0 <= x / w <= size[0] - 1 and 0 <= y / w <= size[1] - 1:
                kept.append(i)
        return kept

    in_a, in_b = seen(a, homography), seen(b, np.linalg.inv(homography))
    by_overlap, by_distance = [], []
    for i in in_a:
        carried = transform(a[i : i + 1], homography)[0]
        for j in in_b:
            distance = float(np.linalg.norm(carried[:, 2] - b[j][:, 2]))
            if distance < 3:
                by_distance.append((distance, i, j))
            if distance < 60 and (error := painted_error(carried, b[j])) < 0.4:
                by_overlap.append((error, i, j))
    counts = []
    for pairs in (by_overlap, by_distance):
        left: set[int] = set()
        right: set[int] = set()
        for _, i, j in sorted(pairs):
            if i not in left and j not in right:
                left.add(i)
                right.add(j)
        counts.append(len(left))
    return (len(in_a), len(in_b)), counts[0], counts[1]


def test_counts_equal_explicit_loops() -> None:
    homography = np.array([[0.9, 0.1, 12], [-0.05, 1.05, -3], [2e-4, -1e-4, 1]])
    a = ellipses(16, 0)
    moved = transform(a, homography)
    rng = np.random.default_rng(1)
    moved[:, :, 2] += rng.normal(0, 2.5, (len(moved), 2))
    moved[:, :, :2] *= rng.uniform(0.8, 1.25, (len(moved), 1, 1))
    b = np.concatenate([moved[:12], ellipses(5, 2)]).astype(np.float32)
    visible, by_overlap, by_distance = reference(a, b, homography, (260, 230))
    found = repeatability(a, b, homography, (260, 230), (260, 230))
    assert found == Repeatability(visible, by_overlap, by_distance)
    assert 4 < by_overlap < 14
    assert 2 < by_distance < 14
    assert found.overlap == by_overlap / min(visible)
    # A homography has no sign.
    assert repeatability(a, b, -homography, (260, 230), (260, 230)) == found


def test_overlap_errors_equal_painted_ellipses() -> None:
    first, second = ellipses(12, 3), ellipses(12, 4)
    rng = np.random.default_rng(5)
    second[:, :, 2] = first[:, :, 2] + rng.uniform(-15, 15, (12, 2))
    expected = [painted_error(a, b) for a, b in zip(first, second, strict=True)]
    np.testing.assert_allclose(overlap_errors(first, second), expected, atol=6e-3)


def test_overlap_by_hand() -> None:
    circle = from_similarity([[50, 50]], 10.0, window=2.0)
    assert overlap_errors(circle, circle)[0] == pytest.approx(0, abs=1e-3)
    half = from_similarity([[50, 50]], 10.0 / np.sqrt(2), window=2.0)
    assert overlap_errors(circle, half)[0] == pytest.approx(0.5, abs=2e-3)
    # The circles get a radius of 30; 30 pixels apart they share 2 acos(1/2) - sqrt(3)/2 of pi.
    apart = from_similarity([[80, 50]], 10.0, window=2.0)
    lens = 2 * np.pi / 3 - np.sqrt(3) / 2
    expected = 1 - lens / (2 * np.pi - lens)
    assert overlap_errors(circle, apart)[0] == pytest.approx(expected, abs=2e-3)
    far = from_similarity([[200, 50]], 10.0, window=2.0)
    assert overlap_errors(circle, far)[0] == pytest.approx(1)


def test_every_frame_corresponds_once() -> None:
    a, b = np.array([0, 0, 1, 2]), np.array([5, 6, 5, 7])
    first, second = one_to_one(a, b, np.array([0.2, 0.3, 0.1, 0.9]))
    assert list(zip(first, second, strict=True)) == [(0, 6), (1, 5), (2, 7)]
    first, second = one_to_one(a, b, np.array([0.1, 0.3, 0.2, 0.9]))
    assert list(zip(first, second, strict=True)) == [(0, 5), (2, 7)]


def test_no_frames() -> None:
    none = np.zeros((0, 2, 3), np.float32)
    for a, b in ((none, none), (ellipses(3, 0), none), (none, ellipses(3, 0))):
        found = repeatability(a, b, np.eye(3), (300, 300), (300, 300))
        assert found.by_overlap == found.by_distance == 0
        assert found.overlap == 0


@pytest.mark.slow
def test_affine_shape_repeats_where_circles_do_not(data: Path) -> None:
    folder = data / "oxford-affine" / "graf"
    scores = {}
    for target in (2, 5):
        images = [cv2.imread(str(folder / f"{k}.png"), 0) for k in (1, target)]
        sizes = [image.shape[::-1] for image in images]
        for name in ("dog", "hessian", "hessian-affine"):
            found = [detectors.load(name)(image, 2048, upright=True)[0] for image in images]
            homography = np.loadtxt(folder / f"H_1_{target}")
            scores[name, target] = repeatability(*found, homography, *sizes)
    assert scores["hessian-affine", 2].overlap > 0.75
    assert scores["hessian-affine", 5].overlap > 0.45
    assert scores["hessian", 5].overlap < 0.05
    assert scores["dog", 5].overlap < 0.05
    assert scores["hessian", 5].distance > 0.5
