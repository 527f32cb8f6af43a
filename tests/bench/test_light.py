"""The benchmark of fixed cameras: scores by hand and against loops, and real frames."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.bench import light
from hardnet.bench.development import (
    Contestant,
    Remembered,
    Scene,
    Setup,
    contestants,
    correct_at_precision,
    resampled,
    summary,
)
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.features import Features


def features(xy: list[list[float]], vectors: list[list[float]]) -> Features:
    frames = np.zeros((len(xy), 2, 3), np.float32)
    frames[:, :, :2] = 5 * np.eye(2)
    frames[:, :, 2] = np.array(xy).reshape(-1, 2)
    described = np.array(vectors, np.float32)
    return Features(frames, np.ones(len(xy), np.float32), described, (100, 80), "made")


def extractor(name: str) -> Callable[[Path], Features]:
    (one,) = contestants({name: load(name)}, [Setup()])
    return one.features


def test_scores_by_hand() -> None:
    """Descriptors are numbers on a line, so distances can be read off; all matches are mutual.

    Ratios of the first frame's keypoints: 0: 1/10 (right), 1: 2/8 (wrong, far away), 2: 3/13
    (right), 3: 5/41 (wrong).
    """
    a = features([[10, 10], [30, 10], [50, 10], [70, 10]], [[0], [12], [23], [61]])
    b = features([[10, 12.9], [70, 60], [52, 11], [30, 13.1]], [[-1], [10], [20], [56]])
    # Sorted: 0 (right), 3 (wrong), 2 (right), 1 (wrong). 3.1 px is not the same place, so only
    # keypoints 0 and 2 have a partner: AP = (1/1 + 2/3) / 2.
    score = light.score_pair(a, b)
    assert score.possible == 2
    assert score.ap == pytest.approx((1 + 2 / 3) / 2)
    assert score.correct == 1  # at 3 matches the precision is 2/3 already


def test_a_missed_keypoint_costs_recall() -> None:
    a = features([[10, 10], [30, 10]], [[0], [10]])
    b = features([[10, 10], [30, 10]], [[0.1], [-5]])
    # Keypoint 1 has a partner, but its nearest descriptor is not mutual.
    assert light.score_pair(a, b) == light.LightScore(0.5, 1, 2)


def test_nothing_to_find() -> None:
    empty = features([], np.zeros((0, 1)).tolist())
    one = features([[10, 10]], [[1]])
    assert light.score_pair(one, features([[90, 70]], [[1]])) == light.LightScore(0.0, 0, 0)
    assert light.score_pair(empty, one) == light.LightScore(0.0, 0, 0)
    assert light.score_pair(one, empty) == light.LightScore(0.0, 0, 0)


def test_partners_against_loops() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(0, 60, (200, 2)), rng.uniform(0, 60, (150, 2))
    expected = [any(np.hypot(*(p - q)) <= 3 for q in b) for p in a]
    assert light.has_partner(a, b).tolist() == expected
    assert any(expected)
    assert not all(expected)


@pytest.mark.parametrize(
    ("correct", "count"),
    [
        ([1, 1, 1, 1, 0], 4),  # 4/5 is enough
        ([1, 1, 1, 0, 1], 4),  # below 0.8 in between, above it again
        ([0, 1, 1, 1, 1, 0], 4),
        ([0, 1, 1, 1, 0, 0], 0),
        ([], 0),
    ],
)
def test_correct_matches_at_a_precision(correct: list[int], count: int) -> None:
    assert correct_at_precision(np.arange(len(correct)) / 10, correct) == count


def test_equal_ratios_are_taken_together() -> None:
    assert correct_at_precision([0.1, 0.1, 0.1, 0.1, 0.1], [1, 1, 1, 1, 0]) == 4
    assert correct_at_precision([0.1, 0.1, 0.1, 0.1], [1, 1, 1, 0]) == 0


def test_random_pairs_against_loops() -> None:
    rng = np.random.default_rng(3)
    for _ in range(5):
        xy = rng.uniform(0, 60, (40, 2))
        a = features(xy.tolist(), rng.normal(size=(40, 4)).tolist())
        moved = xy + rng.normal(0, 2, xy.shape)
        vectors = a.descriptors + rng.normal(0, 0.8, (40, 4))
        b = features(moved.tolist(), vectors.tolist())
        assert light.score_pair(a, b).ap == pytest.approx(slow_ap(a, b), abs=1e-6)


def slow_ap(a: Features, b: Features) -> float:
    found = []
    for i, x in enumerate(a.descriptors):
        distances = sorted((float(np.linalg.norm(x - y)), j) for j, y in enumerate(b.descriptors))
        j = distances[0][1]
        back = min(
            (float(np.linalg.norm(b.descriptors[j] - y)), k) for k, y in enumerate(a.descriptors)
        )
        if back[1] == i:
            right = float(np.hypot(*(a.xy[i] - b.xy[j]))) <= 3
            found.append((distances[0][0] / distances[1][0], right))
    possible = sum(any(float(np.hypot(*(p - q))) <= 3 for q in b.xy) for p in a.xy)
    total, hits = 0.0, 0
    for rank, (_, right) in enumerate(sorted(found), 1):
        if right:
            hits += 1
            total += hits / rank
    return total / possible


def test_frames_of_two_sizes_are_refused(tmp_path: Path) -> None:
    for name, width in (("a.png", 60), ("b.png", 61)):
        noise = np.random.default_rng(0).integers(0, 255, (50, width), np.uint8)
        cv2.imwrite(str(tmp_path / name), noise)
    camera = light.read_camera(tmp_path)
    with pytest.raises(HardnetError, match="one size"):
        light.compare([camera], [Contestant("dog", "rootsift", extractor("rootsift"))])
    (tmp_path / "b.png").unlink()
    with pytest.raises(HardnetError, match="two frames"):
        light.read_camera(tmp_path)


def test_an_interval_draws_photos_not_pairs() -> None:
    pairs, values = [("a", "b"), ("a", "c"), ("b", "c")], [0.0, 0.3, 0.9]
    drawn = resampled(values, [(Path(a), Path(b)) for a, b in pairs], seed=4, resamples=50)
    rng = np.random.default_rng(4)
    for mean in drawn:
        times = dict(zip("abc", rng.multinomial(3, [1 / 3] * 3), strict=True))
        weights = [times[a] * times[b] for a, b in pairs]
        if sum(weights) == 0:
            assert np.isnan(mean)
        else:
            expected = sum(w * v for w, v in zip(weights, values, strict=True))
            assert mean == pytest.approx(expected / sum(weights))


def test_means_over_the_scenes_of_each_role() -> None:
    pairs = tuple((Path(a), Path(b), None) for a, b in ("ab", "ac", "bc"))
    scenes = [Scene(name, pairs) for name in ("one", "two", "empty")]
    values = {"one": [0.0, 0.3, 0.9], "two": [0.5, None, 0.5], "empty": [None] * 3}
    entry = summary(scenes, "ap", values, {name: {"more": 1} for name in values})
    assert entry["report"]["ap"] == pytest.approx((0.4 + 0.5) / 2)
    low, high = entry["report"]["interval"]
    assert 0.25 <= low < entry["report"]["ap"] < high <= 0.7
    assert entry["choose"] == {"ap": None, "interval": (None, None)}
    assert entry["scenes"]["two"] == {"role": "report", "ap": 0.5, "more": 1}
    assert list(entry["scenes"]) == ["one", "two"]


def test_real_frames_are_matched_better_than_chance(data: Path) -> None:
    camera = light.read_camera(data / "webcam" / "mexico")
    few = Scene("mexico", camera.pairs[:2])
    both = {name: load(name) for name in ("rootsift", "pixels")}
    good, poor = light.compare([few], contestants(both, [Setup(upright=True, keypoints=150)]))
    assert (good["setup"], good["descriptor"]) == ("dog upright", "rootsift")
    assert good["choose"]["ap"] > 0.3
    assert good["choose"]["ap"] > poor["choose"]["ap"] + 0.05
    assert good["report"]["ap"] is None


def test_a_descriptor_of_several_windows_reads_them_from_the_store_too(
    tmp_path: Path, photos: Path
) -> None:
    pooled = load("rootsift@12+24")
    features = Setup(keypoints=50, max_size=400).describer()
    path = photos / "motorcycle_left.png"
    plain = features(pooled, path).descriptors
    for _ in range(2):  # described, then read
        kept = features(Remembered(pooled, tmp_path), path).descriptors
        np.testing.assert_array_equal(kept, plain)
