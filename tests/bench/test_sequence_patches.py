from dataclasses import replace

import cv2
import numpy as np
import pytest

from hardnet.bench import sequence_patches as sp
from hardnet.errors import HardnetError
from hardnet.frames import from_similarity, to_similarity
from hardnet.patchsets.sequences import find_sequences

SHIFT = np.array([[1.0, 0, 12], [0, 1, -7], [0, 0, 1]])


class Thumbnail:
    """A descriptor that needs no weights: the patch as 8 x 8 pixels."""

    name, dim = "thumbnail", 64

    def __call__(self, patches):
        small = [cv2.resize(p, (8, 8), interpolation=cv2.INTER_AREA).ravel() for p in patches]
        vectors = np.array(small, np.float32).reshape(-1, 64)
        vectors -= vectors.mean(1, keepdims=True)
        return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-6)


class Constant(Thumbnail):
    """A collapsed descriptor."""

    def __call__(self, patches):
        return np.full((len(patches), 64), 0.125, np.float32)


@pytest.fixture(scope="module")
def sequence(tmp_path_factory):
    """A picture of random blobs, the same shifted, and the same shrunk."""
    folder = tmp_path_factory.mktemp("data") / "blobs"
    folder.mkdir()
    noise = np.random.default_rng(0).normal(size=(240, 320)).astype(np.float32)
    texture = sum(cv2.GaussianBlur(noise, (0, 0), s) * s for s in (1.5, 3, 6))
    image = cv2.normalize(texture, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    cv2.imwrite(str(folder / "1.png"), image)
    shrink = np.diag([0.8, 0.8, 1.0])
    for k, homography in ((2, SHIFT), (3, shrink)):
        cv2.imwrite(str(folder / f"{k}.png"), cv2.warpPerspective(image, homography, (320, 240)))
        np.savetxt(folder / f"H_1_{k}", homography)
    (found,) = find_sequences([folder])
    return found


def test_patches_without_noise_are_equal_where_the_picture_is_shifted(sequence, monkeypatch):
    monkeypatch.setattr(sp, "NOISE_LEVELS", {"none": 0.0})
    patches = sp.cut_sequence(sequence, limit=50)
    assert patches.reference.shape == (50, 65, 65)
    shifted, shrunk = patches.targets["none"]
    # Whole-pixel shift: equal but for the pyramid's phase. Shrunk: resampled.
    assert np.abs(shifted.astype(int) - patches.reference).mean() < 2
    assert np.abs(shrunk.astype(int) - patches.reference).mean() < 12


def test_the_seed_decides_the_noise_and_nothing_else_does(sequence):
    a, b, c = (sp.cut_sequence(sequence, 20, seed) for seed in (0, 0, 1))
    for level in sp.NOISE_LEVELS:
        assert np.array_equal(a.targets[level], b.targets[level])
        assert not np.array_equal(a.targets[level], c.targets[level])
    assert np.array_equal(a.reference, c.reference)


def test_noise_has_the_documented_size():
    frames = from_similarity([[100.0, 50.0]] * 2, 5.0, 0.3)  # half-size 30 px
    extreme = np.array([[1, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0]], np.float64)
    for factor in (1.0, 3.0):
        shifted, turned = sp.add_noise(frames, extreme, factor)
        step = 30 * 0.15 * factor
        expected = [100 + step * np.cos(0.3), 50 + step * np.sin(0.3)]
        np.testing.assert_allclose(shifted[:, 2], expected, rtol=1e-5)
        np.testing.assert_allclose(shifted[:, :2], frames[0, :, :2], rtol=1e-5)
        _, sigma, angle = to_similarity(turned[None])
        assert sigma[0] == pytest.approx(5 * 2 ** (0.15 * factor), rel=1e-5)
        assert angle[0] == pytest.approx(0.3 + np.deg2rad(10 * factor), rel=1e-5)


def test_stretch_keeps_the_area_and_has_the_documented_ratio():
    frames = from_similarity([[100.0, 50.0]], 5.0)
    (out,) = sp.add_noise(frames, np.array([[0, 0, 0, 0, 1, 0.4]]), 2.0)
    axes = np.linalg.svd(out[:, :2].astype(np.float64), compute_uv=False)
    assert axes[0] / axes[1] == pytest.approx(2 ** (2 * 0.1), rel=1e-5)
    assert axes.prod() == pytest.approx(30**2, rel=1e-5)


def test_only_frames_inside_all_images_are_kept(sequence):
    frames = from_similarity([[20, 20], [160, 120], [305, 120], [20, 120]], 2.0)  # half-size 12
    image = np.zeros((240, 320), np.uint8)
    kept = sp.visible_everywhere(frames, image, [(image, SHIFT)])
    # The first leaves the top of the shifted image (20 - 12 - 7 = 1: stays), the third its right.
    np.testing.assert_array_equal(kept[:, :, 2], [[20, 20], [160, 120], [20, 120]])
    kept = sp.visible_everywhere(frames, image, [(image, SHIFT), (image[:, :150], np.eye(3))])
    np.testing.assert_array_equal(kept[:, :, 2], [[20, 20], [20, 120]])


def test_a_sequence_without_common_keypoints_is_named(sequence):
    away = replace(sequence.targets[0], homography=np.eye(3))
    away.homography[0, 2] = 5000
    with pytest.raises(HardnetError, match="blobs"):
        sp.cut_sequence(replace(sequence, targets=(away,)))


def test_matching_ap_by_hand():
    reference = np.eye(4, dtype=np.float32)
    assert sp.matching_ap(reference, reference).trapezoid == 1.0
    target = reference.copy()
    target[[2, 3]] = target[[3, 2]]  # two patches take each other's place
    tilt = np.float32(np.sqrt(0.5))
    target[1] = [0, tilt, 0, 0]
    target[1, 0] = tilt  # the second patch is found, but as the last of all answers
    score = sp.matching_ap(reference, target)
    # Ranked: rows 0, 2, 3 at distance 0 (one of three right), then row 1: 2 of 4 right.
    assert score.hits == pytest.approx(0.25 / 3 + 0.25 / 2)
    assert score.trapezoid == pytest.approx(0.25 * (1 + 1 / 3) / 2 + 0.25 * (1 / 3 + 1 / 2) / 2)


def test_matching_ap_of_nothing_is_zero():
    empty = np.zeros((0, 8), np.float32)
    assert sp.matching_ap(empty, empty) == sp.MatchingScore(0.0, 0.0)


def test_harder_noise_scores_lower_and_a_collapsed_descriptor_scores_nothing(sequence):
    steps = []
    rows = sp.compare(
        [sequence],
        {"thumbnail": Thumbnail(), "constant": Constant()},
        limit=60,
        advance=lambda: steps.append(1),
    )
    assert len(rows) == 6
    assert len(steps) == 2
    mean = sp.summarise(rows, "noise")
    thumbnail = mean["thumbnail"]
    assert thumbnail["easy"] > thumbnail["hard"] > thumbnail["tough"]
    assert thumbnail["easy"] > 0.5
    assert mean["constant"]["all"] < 0.05
    levels = [thumbnail[level] for level in sp.NOISE_LEVELS]
    assert thumbnail["all"] == pytest.approx(np.mean(levels))
