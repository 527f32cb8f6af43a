"""The patch metric: pairing of detected frames and its score, by hand and against loops."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.bench import ratio
from hardnet.bench.development import Setup, contestants
from hardnet.bench.ratio import read_patch_scenes
from hardnet.descriptors import load
from hardnet.frames import transform


def frame(x: float, y: float, size: float = 12, degrees: float = 0) -> np.ndarray:
    c, s = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    return np.array([[size * c, -size * s, x], [size * s, size * c, y]], np.float32)


def test_score_by_hand() -> None:
    # Ratios as the matcher sees them: 1/4 (right), 2/4 (right), 1/3 (wrong: 3 against 1).
    # Sorted: right, wrong, right. AP = (1/1 + 2/3) / 3 anchors.
    assert ratio.ratio_ap(np.array([1.0, 2, 3]), np.array([4.0, 4, 1])) == pytest.approx(
        (1 + 2 / 3) / 3
    )
    assert ratio.ratio_ap(np.array([1.0, 1]), np.array([2.0, 3])) == 1
    assert ratio.ratio_ap(np.array([2.0, 3]), np.array([1.0, 1])) == 0
    assert ratio.ratio_ap(np.array([0.0]), np.array([0.0])) == 0  # two copies: not nearer


def test_score_against_loops() -> None:
    rng = np.random.default_rng(0)
    positive, negative = rng.uniform(0.2, 1.5, (2, 60))
    rows = sorted((min(p, n) / max(p, n), p < n) for p, n in zip(positive, negative, strict=True))
    total, hits = 0.0, 0
    for rank, (_, right) in enumerate(rows, 1):
        if right:
            hits += 1
            total += hits / rank
    assert ratio.ratio_ap(positive, negative) == pytest.approx(total / len(rows))


def test_frames_are_paired_by_the_geometry() -> None:
    homography = np.array([[1.0, 0, 20], [0, 1, 5], [0, 0, 1]])
    a = np.stack([frame(50, 50), frame(90, 50), frame(50, 90), frame(120, 120), frame(10, 10)])
    b = np.stack(
        [
            frame(71, 56),  # of a's 0
            frame(70, 55.5, 13, 10),  # of a's 0, nearer: this one is taken
            frame(110, 55, 12, 40),  # at the place of 1, but turned
            frame(70, 95, 24),  # at the place of 2, but twice the size
            frame(140, 128.1),  # 3.1 px from the place of 3
            frame(500, 500),
        ]
    )
    found = ratio.pair_frames(a, b, homography)
    assert found.anchor.tolist() == [0]
    assert found.partner.tolist() == [1]
    # No negative within a quarter of the window's side, which is 24 px: 6 px around (70, 55).
    assert found.negatives.tolist() == [[False, False, True, True, True, True]]


def test_each_frame_is_in_one_pair() -> None:
    a = np.stack([frame(50, 50), frame(51, 50)])
    b = np.stack([frame(50.9, 50), frame(52.5, 50)])
    found = ratio.pair_frames(a, b, np.eye(3))
    # 1 and 0 are 0.1 px apart; what remains is 0 with 1, 2.5 px.
    assert list(zip(found.anchor, found.partner, strict=True)) == [(0, 1), (1, 0)]


def test_pairing_against_loops() -> None:
    rng = np.random.default_rng(1)
    homography = np.array([[1.1, 0.1, 4], [-0.05, 0.95, 7], [1e-4, 0, 1]])
    a = np.stack([frame(*rng.uniform(20, 200, 2), rng.uniform(6, 20)) for _ in range(80)])
    b = transform(a, homography)[rng.permutation(80)].astype(np.float32)
    b[:, :, 2] += rng.normal(0, 1.5, (80, 2)).astype(np.float32)
    found = ratio.pair_frames(a, b, homography)
    carried = transform(a, homography)
    candidates = []
    for i in range(80):
        for j in range(80):
            distance = float(np.hypot(*(carried[i, :, 2].astype(float) - b[j, :, 2])))
            if distance <= 3 and ratio.overlap_errors(carried[i : i + 1], b[j : j + 1])[0] <= 0.4:
                candidates.append((distance, i, j))
    taken: list[tuple[int, int]] = []
    for _, i, j in sorted(candidates):
        if all(i != x and j != y for x, y in taken):
            taken.append((i, j))
    assert list(zip(found.anchor, found.partner, strict=True)) == sorted(taken)
    assert len(taken) > 40


def test_negatives_come_from_the_same_image_and_not_from_the_true_place() -> None:
    anchors = ratio.Anchors(
        np.array([0, 1]), np.array([0, 1]), np.array([[False, True, False], [True, False, True]])
    )
    a = np.array([[0.0], [10.0]], np.float32)
    b = np.array([[1.0], [12.0], [0.1]], np.float32)
    # Anchor 0: partner at 1, the patch at 0.1 does not count, negative at 12. Anchor 1: partner at
    # 2, negatives at 9 and 9.9. Both right.
    assert ratio.score_pair(a, b, anchors) == 1
    closer = ratio.Anchors(anchors.anchor, anchors.partner, np.ones((2, 3), bool))
    closer.negatives[[0, 1], [0, 1]] = False
    # Now 0.1 is a negative of anchor 0: ratio 0.1 and wrong, before 2/9 and right.
    assert ratio.score_pair(a, b, closer) == pytest.approx(0.5 / 2)
    nobody = ratio.Anchors(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros((0, 3), bool))
    assert ratio.score_pair(a, b, nobody) is None


def test_a_photo_and_its_turned_copy(tmp_path: Path, camera: np.ndarray) -> None:
    scene = tmp_path / "turned"
    scene.mkdir()
    around = np.vstack([cv2.getRotationMatrix2D((255.5, 255.5), 20, 0.9), [0, 0, 1]])
    cv2.imwrite(str(scene / "1.png"), camera)
    cv2.imwrite(str(scene / "2.png"), cv2.warpPerspective(camera, around, (512, 512)))
    np.savetxt(scene / "H_1_2", around)
    described = {name: load(name) for name in ("rootsift", "pixels")}
    entrants = contestants(described, [Setup(keypoints=500)])
    good, poor = (e["scenes"]["turned"] for e in ratio.compare(read_patch_scenes(scene), entrants))
    assert good["anchors"] == poor["anchors"] > 100
    assert good["ap"] > 0.9
    assert poor["ap"] < good["ap"]


def test_a_camera_and_sequences_are_read(data: Path) -> None:
    (mexico,) = read_patch_scenes(data / "webcam" / "mexico")
    assert (mexico.name, len(mexico.pairs)) == ("mexico", 28)
    np.testing.assert_array_equal(mexico.pairs[0][2], np.eye(3))
    names = [scene.name for scene in read_patch_scenes(data / "oxford-affine")]
    assert names == ["bikes", "graf", "trees", "ubc", "wall"]
