"""W1BS: by hand, against explicit loops, and on real patches."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from hardnet.bench import w1bs
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.patchsets.w1bs import W1BS, W1BSPair, read_w1bs


def loop_curve(score, correct, larger):
    """The protocol, one threshold and one patch at a time."""
    top, recall, precision = max(score), [], []
    thresholds = np.linspace(top, 0, 100) if larger else np.linspace(0, top, 100)
    for threshold in thresholds:
        hits = answers = 0
        for value, right in zip(score, correct, strict=True):
            if value > threshold if larger else value < threshold:
                answers += 1
                hits += bool(right)
        recall.append(hits / len(score))
        precision.append(hits / answers if answers else 1.0)
    return recall, precision


def loop_area(recall, precision):
    total = 0.0
    for i in range(1, len(recall)):
        step = (1 - precision[i]) - (1 - precision[i - 1])
        total += step * (recall[i] + recall[i - 1]) / 2
    return total


def test_curve_by_hand():
    # Thresholds 0, 1/33, ..., 3: the answer at 3 is never accepted (strict), that at 0 from the
    # second threshold on; 1 and 2 are accepted after the thresholds 1 and 2, number 33 and 66.
    recall, precision = w1bs.curve([0.0, 1.0, 2.0, 3.0], [True, False, True, True])
    assert (recall[0], precision[0]) == (0.0, 1.0)
    assert (recall[1], precision[1]) == (0.25, 1.0)
    assert (recall[34], precision[34]) == (0.25, 0.5)
    assert recall[67] == 0.5
    assert precision[67] == pytest.approx(2 / 3)
    assert recall[-1] == 0.5
    # To the right at height 1/4 by 1/2, then back by 1/6 at the mean height 3/8.
    assert w1bs.area(recall, precision) == pytest.approx(0.25 / 2 - 3 / 8 / 6)


def test_the_difference_is_better_when_larger():
    recall, precision = w1bs.curve([3.0, 2.0, 1.0, 0.0], [True, False, True, True], larger=True)
    assert (recall[0], precision[0]) == (0.0, 1.0)  # nothing is larger than the largest
    assert (recall[1], precision[1]) == (0.25, 1.0)
    assert (recall[-1], precision[-1]) == (0.5, pytest.approx(2 / 3))  # 0 is not above 0


@pytest.mark.parametrize("larger", [False, True])
def test_curve_against_explicit_loops(larger):
    rng = np.random.default_rng(1)
    for _ in range(5):
        n = int(rng.integers(2, 40))
        score = rng.integers(0, 12, n) / 4.0  # many ties
        correct = rng.random(n) < 0.4
        recall, precision = w1bs.curve(score, correct, larger)
        expected = loop_curve(score, correct, larger)
        np.testing.assert_allclose([recall, precision], expected)
        assert w1bs.area(recall, precision) == pytest.approx(loop_area(*expected))


def test_no_wrong_answer_has_no_area():
    recall, precision = w1bs.curve([0.1, 0.2, 0.3], [True, True, True])
    assert recall.max() > 0
    assert w1bs.area(recall, precision) == 0


def test_scores_by_hand():
    first = np.array([[0.0, 0.0], [5.0, 0.0]], np.float32)
    second = np.array([[0.0, 1.0], [0.0, 4.0]], np.float32)
    scores, correct = w1bs.match_scores(first, second)
    # From (5, 0): sqrt(26) to row 0 and sqrt(41) to row 1, so the nearest is the wrong one.
    np.testing.assert_allclose(scores["distance"], [1, np.sqrt(26)], rtol=1e-6)
    np.testing.assert_allclose(scores["ratio"], [1 / 4, np.sqrt(26 / 41)], rtol=1e-6)
    np.testing.assert_allclose(scores["difference"], [3, np.sqrt(41) - np.sqrt(26)], rtol=1e-6)
    assert correct.tolist() == [True, False]


def test_bits_are_matched_by_hamming_distance():
    first = np.array([[0b1111_0000], [0b0000_0001]], np.uint8)
    second = np.array([[0b1111_0001], [0b0000_1111]], np.uint8)
    scores, correct = w1bs.match_scores(first, second)
    assert scores["distance"].tolist() == [1, 3]
    assert scores["difference"].tolist() == [7, 1]
    assert correct.tolist() == [True, True]


def test_nan_counts_as_zero():
    rng = np.random.default_rng(2)
    first, second = rng.random((2, 5, 8), np.float32)
    zeroed = first.copy()
    first[2], zeroed[2] = np.nan, 0
    expected, right = w1bs.match_scores(zeroed, second)
    found, correct = w1bs.match_scores(first, second)
    for name in w1bs.SCORES:
        np.testing.assert_array_equal(found[name], expected[name])
    np.testing.assert_array_equal(correct, right)


def test_the_total_is_the_mean_of_subsets_not_of_pairs():
    value, (low, high) = w1bs.mean_of_subsets([[0.1, 0.2, 0.3], [0.8]])
    assert value == pytest.approx((0.2 + 0.8) / 2)
    assert low < value < high
    # The single pair of the second subset is in every resample: only the first one varies.
    assert low >= (0.1 + 0.8) / 2
    assert high <= (0.3 + 0.8) / 2


def test_without_two_pairs_there_is_no_interval():
    assert w1bs.mean_of_subsets([[0.5], [0.1]]) == (pytest.approx(0.3), (None, None))


@pytest.fixture
def real_set(camera: np.ndarray, tmp_path: Path) -> W1BS:
    """Patches of a photograph against darker, noisy and turned versions of them."""
    rng = np.random.default_rng(0)
    corners = rng.integers(0, 512 - 40, (30, 2))
    patches = np.stack([camera[y : y + 40, x : x + 40] for y, x in corners])
    noisy = np.clip(patches + rng.normal(0, 60, patches.shape), 0, 255)
    changed = {
        ("L", "dark"): patches // 3,
        ("L", "noise"): noisy.astype(np.uint8),
        ("G", "turned"): np.rot90(patches, axes=(1, 2)),
    }
    for (subset, name), second in changed.items():
        for side, strip in (("1", patches), ("2", second)):
            path = tmp_path / subset / side / f"{name}.bmp"
            path.parent.mkdir(parents=True, exist_ok=True)
            cv2.imwrite(str(path), strip.reshape(-1, 40))
    return read_w1bs(tmp_path)


def through(describe):
    """A stand-in for the store, and the keys it was asked for."""
    keys = []

    def get(key, patches):
        keys.append(key)
        return describe(patches())

    return get, keys


def test_evaluate_on_real_patches_against_a_loop(real_set: W1BS):
    describe = load("rootsift")
    get, keys = through(describe)
    calls = []
    found = w1bs.compare({"rootsift": get}, real_set, lambda *state: calls.append(state))
    assert calls == [(1, 3), (2, 3), (3, 3)]
    assert found["set"] == {"name": real_set.name, "pairs": 3, "patches": 180}
    assert sorted(keys) == sorted(
        f"{p.subset}/{side}/{p.name}" for p in real_set.pairs for side in (1, 2)
    )
    areas = {}
    for pair, row in zip(real_set.pairs, found["rows"], strict=True):
        a, b = (describe(pair.patches(side)).astype(np.float64) for side in (1, 2))
        ratio, distance, difference, correct = [], [], [], []
        for i in range(len(a)):
            ranked = sorted((float(np.linalg.norm(a[i] - b[j])), j) for j in range(len(b)))
            (d1, nearest), (d2, _) = ranked[:2]
            ratio.append(d1 / (d2 + 1e-12))
            distance.append(d1)
            difference.append(d2 - d1)
            correct.append(nearest == i)
        for name, score in (("ratio", ratio), ("distance", distance), ("difference", difference)):
            expected = loop_area(*loop_curve(score, correct, name == "difference"))
            assert row[name] == pytest.approx(expected, abs=1e-5)
        assert (row["subset"], row["pair"], row["patches"]) == (pair.subset, pair.name, 30)
        areas.setdefault(pair.subset, []).append(row["ratio"])
    assert max(abs(v) for each in areas.values() for v in each) > 0.01  # the test can fail
    means = {(m["subset"], m["score"]): m["value"] for m in found["means"]}
    assert means["L", "ratio"] == pytest.approx(np.mean(areas["L"]))
    assert means["Total", "ratio"] == pytest.approx((np.mean(areas["L"]) + areas["G"][0]) / 2)
    assert {m["score"] for m in found["means"]} == set(w1bs.MEASURES)


def test_the_total_curve_is_the_mean_of_the_subsets(real_set: W1BS):
    curves = w1bs.compare({"sift": through(load("sift"))[0]}, real_set)["curves"]
    recall = {c["subset"]: np.array(c["recall"]) for c in curves}
    assert list(recall) == ["G", "L", "Total"]
    assert all(len(each) == 100 for each in recall.values())
    np.testing.assert_allclose(recall["Total"], (recall["G"] + recall["L"]) / 2, atol=1e-5)


def test_a_pair_with_one_patch_is_an_error():
    pair = W1BSPair("A", "lonely", Path("A/1/lonely.bmp"), Path("A/2/lonely.bmp"), 1)
    with pytest.raises(HardnetError, match=r"lonely\.bmp"):
        w1bs.compare({"pixels": through(load("pixels"))[0]}, W1BS("set", Path(), (pair,)))
