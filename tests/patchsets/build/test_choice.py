import numpy as np
import pytest

from hardnet.frames import from_similarity
from hardnet.patchsets.build.choice import disc_overlap, informative, suppress_overlaps


def overlap_by_counting(distance, radius_a, radius_b, steps=1200):
    """Intersection over union of two discs, by counting the cells of a fine grid."""
    reach = max(radius_a, distance + radius_b)
    ticks = np.linspace(-reach, reach, steps)
    x, y = np.meshgrid(ticks, ticks)
    a = x**2 + y**2 <= radius_a**2
    b = (x - distance) ** 2 + y**2 <= radius_b**2
    return (a & b).sum() / (a | b).sum()


@pytest.mark.parametrize(
    ("distance", "radius_a", "radius_b"),
    [(0, 2, 2), (1, 2, 2), (3, 2, 2), (5, 2, 2), (0, 1, 3), (1, 1, 3), (2.5, 1, 3), (3.9, 3, 1)],
)
def test_overlap_of_discs_equals_counting(distance, radius_a, radius_b):
    got = disc_overlap(*(np.array([v], np.float64) for v in (distance, radius_a, radius_b)))
    assert got[0] == pytest.approx(overlap_by_counting(distance, radius_a, radius_b), abs=5e-3)


def test_the_first_of_two_twins_stays_and_distant_frames_stay():
    xy = [[50, 50], [51, 50], [50, 50], [90, 50]]
    sigma = [2, 2, 4, 2]  # the third is concentric but four times as large in area
    frames = from_similarity(xy, sigma)
    assert suppress_overlaps(frames, limit=10).tolist() == [0, 2, 3]
    assert suppress_overlaps(frames, limit=2).tolist() == [0, 2]


def test_two_orientations_of_one_keypoint_are_one():
    frames = from_similarity([[50, 50], [50, 50]], 2.0, [0.0, 1.5])
    assert suppress_overlaps(frames, limit=10).tolist() == [0]


def test_no_pair_that_is_left_overlaps():
    rng = np.random.default_rng(0)
    frames = from_similarity(rng.uniform(0, 200, (300, 2)), rng.uniform(1, 4, 300))
    kept = frames[suppress_overlaps(frames, limit=300)].astype(np.float64)
    assert 10 < len(kept) < 300
    radius = np.sqrt(np.linalg.det(kept[:, :, :2]))
    distance = np.linalg.norm(kept[:, None, :, 2] - kept[None, :, :, 2], axis=2)
    overlap = disc_overlap(distance, radius[:, None] + 0 * distance, radius[None] + 0 * distance)
    assert overlap[~np.eye(len(kept), dtype=bool)].max() <= 0.5


def test_no_frames():
    assert suppress_overlaps(from_similarity(np.zeros((0, 2)), 1.0), limit=5).tolist() == []


def test_uninformative_patches_are_refused() -> None:
    rng = np.random.default_rng(0)
    flat = np.full((64, 64), 128)
    ramp = np.linspace(90, 160, 64)[None].repeat(64, 0)
    faint = flat + rng.normal(0, 4, (64, 64))
    burnt = np.where(rng.random((64, 64)) < 0.5, 255, 100)
    good = flat + rng.normal(0, 25, (64, 64)).clip(-100, 100)
    patches = np.stack([flat, ramp, faint, burnt, good]).astype(np.uint8)
    assert informative(patches, min_std=10, min_detail=4).tolist() == [
        False,
        False,
        False,
        False,
        True,
    ]
