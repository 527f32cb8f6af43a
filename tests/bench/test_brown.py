"""The Brown benchmark: against an explicit loop on real patches, blocks, ties, intervals."""

from __future__ import annotations

import numpy as np
import pytest

from hardnet.bench import brown
from hardnet.bench.metrics import fpr_at_recall
from hardnet.descriptors import load
from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import PatchSet


@pytest.fixture
def real_set(camera: np.ndarray) -> PatchSet:
    """Three noisy views of 40 places of a photograph; the last places are in no pair."""
    rng = np.random.default_rng(0)
    corners = np.repeat(rng.integers(0, 512 - 32, (40, 2)), 3, axis=0)
    patches = np.stack([camera[y : y + 32, x : x + 32] for y, x in corners])
    patches = np.clip(patches + rng.normal(0, 40, patches.shape), 0, 255).astype(np.uint8)
    points = np.repeat(np.arange(40), 3)
    true = [(3 * k, 3 * k + 1) for k in range(30)]
    false = [(3 * k + 1, 3 * ((k + 7) % 30) + 2) for k in range(30)]
    return PatchSet("camera", patches, points, np.array([*true, *false], np.int64))


def through(describe):
    """A stand-in for the store: what it described, by key."""
    stored = {}

    def get(key, patches):
        if key not in stored:
            stored[key] = describe(patches())
        return stored[key]

    return get, stored


def test_against_an_explicit_loop(real_set: PatchSet):
    describe = load("sift")
    vectors = describe(real_set.patches).astype(np.float64)
    true, false = [], []
    for i, j in real_set.pairs:
        distance = float(np.linalg.norm(vectors[i] - vectors[j]))
        (true if real_set.points[i] == real_set.points[j] else false).append(distance)
    threshold = sorted(true)[28]  # number 29 of 30: the first to reach 95 %
    accepted = sum(d <= threshold for d in false)
    below = sum((f > t) + 0.5 * (f == t) for f in false for t in true) / 900
    row = brown.evaluate(through(describe)[0], real_set, "sift", "liberty")
    assert row["fpr95"] == pytest.approx(accepted / 30)
    assert row["fdr95"] == pytest.approx(accepted / (accepted + 29))
    assert row["auc"] == pytest.approx(below)
    assert 0 < accepted < 30
    assert row["low"] <= row["fpr95"] <= row["high"]
    names = {key: row[key] for key in ("descriptor", "trained", "set", "pairs")}
    expected = {"descriptor": "sift", "trained": "liberty", "set": "camera", "pairs": 60}
    assert names == expected


def test_only_the_patches_of_pairs_are_described_in_blocks(real_set, monkeypatch):
    describe = load("sift")
    whole = brown.distances_of_pairs(through(describe)[0], real_set)
    monkeypatch.setattr(brown, "BLOCK", 7)
    get, stored = through(describe)
    calls = []
    blocks = brown.distances_of_pairs(get, real_set, lambda *state: calls.append(state))
    np.testing.assert_array_equal(blocks, whole)
    named = len(np.unique(real_set.pairs))
    assert named < len(real_set)
    assert sum(map(len, stored.values())) == named
    assert max(map(len, stored.values())) == 7
    assert calls[-1] == (len(stored), len(stored)) == (-(-named // 7),) * 2


def test_other_pairs_and_other_sizes_have_other_keys(real_set):
    get, stored = through(load("pixels"))
    brown.distances_of_pairs(get, real_set)
    fewer = PatchSet("camera", real_set.patches, real_set.points, real_set.pairs[:20])
    brown.distances_of_pairs(get, fewer)
    smaller = PatchSet("camera", real_set.patches[:, :16, :16], real_set.points, real_set.pairs)
    brown.distances_of_pairs(get, smaller)
    brown.distances_of_pairs(get, real_set)
    assert len(stored) == 3


def test_both_conventions_of_ties(real_set):
    def constant(patches):
        return np.ones((len(patches), 2), np.float32)

    row = brown.evaluate(through(constant)[0], real_set, "constant")
    assert (row["fpr95"], row["fpr95_before"]) == (1.0, 0.0)


def test_bits(real_set):
    """A binary descriptor: which of 64 pixels is brighter than the next."""

    def bits(patches):
        grey = patches.reshape(len(patches), -1)[:, :65].astype(int)
        return np.packbits(grey[:, 1:] > grey[:, :-1], axis=1)

    distances = brown.distances_of_pairs(through(bits)[0], real_set)
    rows = bits(real_set.patches)
    for distance, (i, j) in zip(distances, real_set.pairs, strict=True):
        assert distance == bin(int.from_bytes((rows[i] ^ rows[j]).tobytes())).count("1")


def test_the_interval_is_that_of_resampling():
    rng = np.random.default_rng(3)
    labels = np.repeat([True, False], [200, 300])
    distances = np.concatenate([rng.normal(1, 0.3, 200), rng.normal(1.8, 0.3, 300)]).round(2)
    rates = []
    for _ in range(2000):
        true, false = rng.choice(distances[labels], 200), rng.choice(distances[~labels], 300)
        rates.append(fpr_at_recall(np.concatenate([true, false]), labels))
    expected = np.quantile(rates, [0.025, 0.975])
    found = brown.fpr95_interval(distances, labels)
    np.testing.assert_allclose(found, expected, atol=0.012)
    assert found == brown.fpr95_interval(distances, labels)
    assert expected[1] - expected[0] > 0.05


def test_no_pairs_names_the_file_to_add(real_set):
    empty = PatchSet("camera", real_set.patches, real_set.points, np.zeros((0, 2), np.int64))
    with pytest.raises(HardnetError, match=r"m50_100000_100000_0\.txt"):
        brown.evaluate(through(load("pixels"))[0], empty, "pixels")


def test_pairs_of_one_kind_are_an_error(real_set):
    only = PatchSet("camera", real_set.patches, real_set.points, real_set.pairs[:30])
    with pytest.raises(HardnetError, match="all test pairs are matching"):
        brown.evaluate(through(load("pixels"))[0], only, "pixels")
