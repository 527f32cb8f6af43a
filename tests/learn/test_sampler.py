"""Training batches."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.learn.batches import PairSampler, split_batch


def test_one_pair_per_point_two_distinct_patches() -> None:
    rng = np.random.default_rng(0)
    points = rng.permutation(np.repeat(np.arange(50), rng.integers(1, 6, 50)))
    sampler = PairSampler(points, 20, seed=3)
    singles = {p for p in range(50) if (points == p).sum() == 1}
    drawn = set()
    for step in range(200):
        a, b = sampler(step)
        assert (points[a] == points[b]).all()
        assert (a != b).all()
        assert len(set(points[a])) == 20
        drawn |= set(points[a]) | set(zip(a, b, strict=True))
    assert not singles & drawn
    # Every point and every ordered pair of patches is reachable, the last ones included.
    for p in set(range(50)) - singles:
        members = np.flatnonzero(points == p)
        assert p in drawn
        assert {(x, y) for x in members for y in members if x != y} <= drawn


@pytest.mark.parametrize("seed", range(5))
def test_any_union_with_any_weights_gives_one_pair_per_point(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 6))
    points, sets = [], []
    for k in range(count):
        sizes = rng.integers(1, 5, rng.integers(40, 90))
        points.append(rng.permutation(np.repeat(np.arange(len(sizes)) + 100 * k, sizes)))
        sets.append(np.full(sizes.sum(), k))
    shuffle = rng.permutation(sum(map(len, sets)))
    joined, which = np.concatenate(points)[shuffle], np.concatenate(sets)[shuffle]
    weights = rng.dirichlet(np.ones(count)) + 0.01
    batch = int(rng.integers(1, 21))
    sampler = PairSampler(joined, batch, seed, which, weights.tolist())
    shares = weights / weights.sum()
    single = {p for p in joined if (joined == p).sum() == 1}
    for step in rng.integers(0, 100_000, 20).tolist():
        a, b = sampler(step)
        assert a.shape == b.shape == (batch,)
        assert (joined[a] == joined[b]).all()
        assert (a != b).all()
        assert len(set(joined[a])) == batch
        assert not single & set(joined[a])
        given = np.bincount(which[a], minlength=count)
        assert (np.abs(given - batch * shares) < 1).all()  # the share, rounded down or up


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    points = np.repeat(np.arange(30), 3)
    one, other = PairSampler(points, 8, 1), PairSampler(points, 8, 2)
    again = PairSampler(points, 8, 1)
    one(0)
    assert np.array_equal(one(7), again(7))
    assert not np.array_equal(one(7), one(8))
    assert not np.array_equal(one(7), other(7))


def test_a_run_of_an_earlier_version_continues_with_its_batches() -> None:
    a, b = PairSampler(np.repeat(np.arange(10), 3), 4, seed=5)(7)
    assert a.tolist() == [14, 7, 21, 29]
    assert b.tolist() == [12, 6, 22, 27]
    points = np.random.default_rng(1).integers(0, 40, 200)
    sampler = PairSampler(points, 16, 0)
    digest = hashlib.sha256()
    for step in range(50):
        for index in sampler(step):
            digest.update(index.astype("<i8").tobytes())
    assert digest.hexdigest().startswith("d522a5d10c3f48a5c20096bd69a87396")


def test_a_union_without_weights_and_one_set_with_a_weight_change_nothing() -> None:
    points = np.random.default_rng(1).integers(0, 40, 200)
    plain = PairSampler(points, 16, 0)
    union = PairSampler(points, 16, 0, sets=points // 20)
    single = PairSampler(points, 16, 0, weights=[0.3])
    for step in range(5):
        assert np.array_equal(plain(step), union(step))
        assert np.array_equal(plain(step), single(step))


def test_points_are_drawn_evenly_whatever_their_size() -> None:
    points = np.repeat([0, 1, 2, 3], [2, 2, 40, 2])
    sampler = PairSampler(points, 2, 0)
    counts = np.zeros(4)
    for step in range(2000):
        counts[points[sampler(step)[0]]] += 1
    assert np.abs(counts / counts.sum() - 0.25).max() < 0.03


def test_points_of_a_weighted_set_are_drawn_evenly() -> None:
    # 3 points and 30 points, half of the pairs each.
    points = np.repeat(np.arange(33), 2)
    sampler = PairSampler(points, 4, 0, sets=(points >= 3).astype(np.int64), weights=[1, 1])
    counts = np.zeros(33)
    for step in range(1500):
        counts[points[sampler(step)[0]]] += 1
    assert np.abs(counts[:3] / counts.sum() - 1 / 6).max() < 0.01
    assert np.abs(counts[3:] / counts.sum() - 1 / 60).max() < 0.004


def test_shares_add_up_to_the_batch_and_are_right_on_average() -> None:
    for batch, weights in [(1024, [1, 1, 1]), (7, [5, 2, 1, 1]), (2, [1, 1, 1, 1, 1]), (5, [1])]:
        shares = np.array(weights) / sum(weights)
        total = np.zeros(len(weights))
        for step in range(300):
            counts = split_batch(batch, shares, step)
            assert sum(counts) == batch
            assert (np.abs(counts - batch * shares) < 1).all()
            total += counts
            # Not only at the end: at every step the sum is close to what is due.
            assert np.abs(total - (step + 1) * batch * shares).max() < 4


def test_whole_shares_are_the_same_in_every_batch() -> None:
    tenths = np.array([float(Fraction(n, 10)) for n in (1, 2, 3, 4)])
    assert all(split_batch(1000, tenths, step) == [100, 200, 300, 400] for step in range(2000))


def test_the_rows_of_a_part_of_the_batch_come_from_all_sets() -> None:
    points = np.repeat(np.arange(400), 2)
    sets = (points >= 200).astype(np.int64)
    sampler = PairSampler(points, 128, 0, sets, [1, 1])
    first = [sets[sampler(step)[0][:64]].mean() for step in range(20)]
    assert abs(np.mean(first) - 0.5) < 0.05


def test_too_large_a_batch_is_refused() -> None:
    with pytest.raises(HardnetError, match="a batch of 5"):
        PairSampler(np.repeat(np.arange(4), 2), 5, 0)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        # Three quarters of 16 are 12, and set 1 has 10 points with two patches.
        ([3, 1], "weight 3 of set 1 asks for 12 of the 16 pairs.* has 10 points"),
        ([1], "weights has 1 numbers for 2 patch sets"),
        ([1, 2, 3], "weights has 3 numbers for 2"),
        ([1, 0], "must be positive numbers, got 1, 0"),
        ([1, -2], "positive"),
        ([1, float("nan")], "positive"),
        ([1, float("inf")], "positive"),
    ],
)
def test_weights_that_cannot_be(weights: list[float], message: str) -> None:
    points = np.concatenate([np.repeat(np.arange(10), 2), np.arange(10, 90), np.arange(20, 90)])
    sets = (points >= 20).astype(np.int64)
    with pytest.raises(HardnetError, match=message):
        PairSampler(points, 16, 0, sets, weights)
    PairSampler(points, 16, 0, sets, [10, 6])  # exactly all points of the first set


def in_images(seed: int, count: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Points seen once or several times, each in images near to one of its own."""
    rng = np.random.default_rng(seed)
    points = np.repeat(np.arange(600), rng.integers(1, 6, 600))
    images = (points // 20 + rng.integers(0, 3, len(points))) % count
    shuffle = rng.permutation(len(points))
    return points[shuffle], images[shuffle] - 1  # any numbers will do


@pytest.mark.parametrize("seed", range(5))
def test_batches_from_few_images(seed: int) -> None:
    points, images = in_images(seed)
    rng = np.random.default_rng(seed)
    few, batch = int(rng.integers(1, 8)), int(rng.integers(2, 60))
    sampler = PairSampler(points, batch, seed, images=images, few=few)
    share = -(-batch // few)
    seen = {p: set(images[points == p]) for p in set(points)}
    sizes = [
        len({p for p in points[images == image] if len(seen[p]) > 1}) for image in np.unique(images)
    ]
    for step in range(20):
        a, b = sampler(step)
        assert a.shape == b.shape == (batch,)
        assert (points[a] == points[b]).all()
        assert (images[a] != images[b]).all()
        assert len(set(points[a])) == batch
        _, taken = np.unique(images[a], return_counts=True)
        assert taken.max() <= share
        if share <= min(sizes) / 3:  # every image has enough that are not taken
            assert len(taken) == -(-batch // share)


def test_every_pair_of_patches_in_two_images_is_drawn_equally_often() -> None:
    points = np.array([5, 5, 5, 5, 2, 2, 9, 9, 7])
    images = np.array([1, 0, 1, 4, 0, 3, 1, 1, 0])  # 9 is seen twice in one image, 7 once
    sampler = PairSampler(points, 1, 0, images=images, few=1)
    counts: dict[tuple[int, int], int] = {}
    for step in range(3000):
        ((a,), (b,)) = sampler(step)
        counts[int(a), int(b)] = counts.get((int(a), int(b)), 0) + 1
    five = [(a, b) for a in range(4) for b in range(4) if images[a] != images[b]]
    assert set(counts) == {*five, (4, 5), (5, 4)}
    assert abs(counts[4, 5] + counts[5, 4] - 1500) < 100
    # An image of the point, a patch of it there, a patch of it elsewhere.
    for a, b in five:
        in_a = (images[:4] == images[a]).sum()
        assert counts[a, b] == pytest.approx(1500 / 3 / in_a / (4 - in_a), rel=0.15)


def test_an_image_gives_its_share_and_the_next_one_fills_what_is_missing() -> None:
    # Images 0 and 1 have 40 points each, image 2 has 3; the other patch is in an image of its own.
    points = np.repeat(np.arange(83), 2)
    images = np.digitize(points, [40, 80])
    images[1::2] = 3 + np.arange(83)
    sampler = PairSampler(points, 20, 0, images=images, few=2)
    for step in range(200):
        taken = np.bincount(images[sampler(step)[0]], minlength=86)
        assert taken.sum() == 20
        assert taken.max() <= 10
        assert (taken[:2] <= 10).all()
        assert taken[2] <= 3
    # Four images, and more pairs than all shares together: a second time round.
    images[1::2] = 3
    sampler = PairSampler(points, 80, 0, images=images, few=40)
    for step in range(20):
        a, _ = sampler(step)
        assert len(set(points[a])) == 80


def test_points_of_images_are_drawn_about_evenly() -> None:
    # 100 points in images 0 and 1, 100 in images 2, 3 and 4, and five in images 5 and 6.
    points = np.concatenate(
        [
            np.tile(np.arange(100), 2),
            np.tile(np.arange(100, 200), 3),
            np.tile(np.arange(200, 205), 2),
        ]
    )
    images = np.repeat(np.arange(7), [100] * 5 + [5] * 2)
    sampler = PairSampler(points, 10, 1, images=images, few=1)
    counts = np.zeros(205)
    for step in range(2000):
        a, _ = sampler(step)
        counts[points[a]] += 1
    frequency = [counts[:100].mean(), counts[100:200].mean(), counts[200:].mean()]
    assert np.allclose(frequency, np.mean(counts), rtol=0.15)


def test_images_follow_seed_and_step_and_rows_are_mixed() -> None:
    points, images = in_images(0)
    one, again = (PairSampler(points, 40, 5, images=images, few=2) for _ in range(2))
    one(0)
    assert np.array_equal(one(7), again(7))
    assert not np.array_equal(one(7), one(8))
    halves = [len(set(images[one(step)[0][:20]])) for step in range(20)]
    assert min(halves) > 1
    plain = PairSampler(points, 40, 5)
    assert np.array_equal(plain(7), PairSampler(points, 40, 5, images=images)(7))


def test_images_of_weighted_sets() -> None:
    points, images = in_images(3)
    joined = np.concatenate([points, points + 1000])
    both = np.concatenate([images, images + 100])
    sets = np.repeat([0, 1], len(points))
    sampler = PairSampler(joined, 40, 0, sets, [3, 1], both, 4)
    for step in range(50):
        a, b = sampler(step)
        assert (joined[a] == joined[b]).all()
        assert (both[a] != both[b]).all()
        assert len(set(joined[a])) == 40
        assert np.bincount(sets[a]).tolist() == [30, 10]
        _, taken = np.unique(both[a], return_counts=True)
        assert taken.max() <= 10
        assert len(taken) <= 6


def test_images_that_cannot_be() -> None:
    points = np.repeat(np.arange(8), 2)
    with pytest.raises(HardnetError, match=r"images=2 .* does not say which image"):
        PairSampler(points, 4, 0, few=2)
    with pytest.raises(HardnetError, match=r"as many points in two images or more.* has 0"):
        PairSampler(points, 4, 0, images=points, few=2)
