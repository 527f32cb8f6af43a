"""Batches: the same bits whoever prepares them; nothing lost, nothing left running."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardnet.learn.batches import Batch, Batches, Flips, PairSampler, prefetched
from hardnet.patchsets.patchset import PatchSet, join

STEPS = 12


def make_set(seed: int, points: int) -> PatchSet:
    """Patches whose left half is the number of the point and whose corner is 255."""
    ids = np.random.default_rng(seed).permutation(np.repeat(np.arange(points), 3))
    patches = np.repeat(ids.astype(np.uint8), 64).reshape(-1, 8, 8)
    patches[:, :, 4:] += 60
    patches[:, 0, 1] = 255
    no_pairs = np.zeros((0, 2), np.int64)
    return PatchSet(f"set{seed}", patches, ids, no_pairs, images=np.arange(len(ids)) % 9)


def assert_equal(one: Batch, other: Batch) -> None:
    assert one.step == other.step
    for key in ("anchors", "positives", "negatives"):
        assert np.array_equal(getattr(one, key), getattr(other, key))


@pytest.fixture(params=["one set", "union", "mapped", "few images"])
def train_set(request: pytest.FixtureRequest, tmp_path: Path) -> PatchSet:
    one = make_set(0, 40)
    if request.param == "mapped":
        np.save(tmp_path / "p.npy", one.patches[:])
        mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
        return PatchSet("mapped", mapped, one.points, one.pairs)
    if request.param == "few images":
        return replace(join([one, make_set(1, 30)]), name="few")
    return join([one, make_set(1, 30)]) if request.param == "union" else one


def make_batches(train_set: PatchSet, rows: slice = slice(None)) -> Batches:
    weights = [] if train_set.sets is None else [0.3, 0.7]
    few = 4 if train_set.name == "few" else 0
    details = train_set.sets, weights, train_set.images, few
    sampler = PairSampler(train_set.points, 16, 9, *details)
    return Batches(train_set, sampler, augment=True, seed=9, rows=rows)


@pytest.mark.parametrize("workers", [1, 4])
def test_any_number_of_workers_gives_the_same_bits(train_set: PatchSet, workers: int) -> None:
    batches = make_batches(train_set)
    mined = np.random.default_rng(0).integers(0, len(train_set), len(train_set))

    def make(step: int) -> Batch:
        time.sleep(0.002 * (step % 3))  # later batches are ready before earlier ones
        return batches(step, mined)

    found = list(prefetched(make, 3, STEPS, workers))
    assert [batch.step for batch in found] == list(range(3, STEPS))
    for batch in found:
        assert_equal(batch, make_batches(train_set)(batch.step, mined))


def test_pairs_are_of_one_point_and_flipped_alike(train_set: PatchSet) -> None:
    batches = make_batches(train_set)
    for step in range(STEPS):
        batch = batches(step)
        assert batch.negatives is None
        assert batch.anchors.shape == (16, 8, 8)
        assert batch.anchors.dtype == np.uint8
        # Patches of a point are equal here, so those of a pair are if they are flipped alike.
        assert np.array_equal(batch.anchors, batch.positives)


def test_the_mined_negative_of_the_anchor_is_flipped_as_the_pair() -> None:
    train_set = make_set(0, 40)
    batches = make_batches(train_set)
    mined = np.random.default_rng(0).permutation(len(train_set))
    for step in range(STEPS):
        batch = batches(step, mined)
        assert batch.negatives is not None
        anchors, _ = PairSampler(train_set.points, 16, 9)(step)
        bright = batch.anchors == 255
        assert np.array_equal(batch.negatives == 255, bright)
        grey = batch.negatives.astype(int).min(axis=(1, 2))
        assert np.array_equal(grey, train_set.points[mined[anchors]])


def test_every_process_has_its_rows_of_the_same_batch(train_set: PatchSet) -> None:
    whole = make_batches(train_set)
    parts = [make_batches(train_set, slice(k, k + 4)) for k in range(0, 16, 4)]
    mined = np.arange(len(train_set))[::-1].copy()
    for step in range(STEPS):
        shares = [part(step, mined) for part in parts]
        for key in ("anchors", "positives", "negatives"):
            joined = np.concatenate([getattr(share, key) for share in shares])
            assert np.array_equal(joined, getattr(whole(step, mined), key))


def test_without_augmentation_patches_are_as_they_are(train_set: PatchSet) -> None:
    sampler = PairSampler(train_set.points, 16, 2)
    batch = Batches(train_set, sampler, augment=False, seed=2)(5)
    anchors, positives = sampler(5)
    assert np.array_equal(batch.anchors, train_set.patches[anchors])
    assert np.array_equal(batch.positives, train_set.patches[positives])


def test_a_run_of_an_earlier_version_continues_with_its_batches() -> None:
    points = np.random.default_rng(1).integers(0, 40, 200)
    patches = np.random.default_rng(2).integers(0, 256, (200, 8, 8), dtype=np.uint8)
    train_set = PatchSet("random", patches, points, np.zeros((0, 2), np.int64))
    batches = Batches(train_set, PairSampler(points, 16, 0), augment=True, seed=0)
    digest = hashlib.sha256()
    for step in range(10):
        batch = batches(step)
        for stream in (batch.anchors, batch.positives):
            digest.update(np.ascontiguousarray(stream).tobytes())
    assert digest.hexdigest().startswith("1bd5f4957fb1ffc2099211e2a417b0d3")


def empty(step: int) -> Batch:
    nothing = np.zeros((0, 8, 8), np.uint8)
    return Batch(step, nothing, nothing)


@pytest.mark.parametrize("workers", [1, 4])
def test_only_a_few_batches_are_made_ahead(workers: int) -> None:
    made: list[int] = []

    def make(step: int) -> Batch:
        made.append(step)
        return empty(step)

    source = prefetched(make, 0, 100, workers)
    for k in range(3):
        assert next(source).step == k
        time.sleep(0.02)
        assert len(made) <= k + 1 + workers
    assert len(made) > 3  # and some are
    source.close()


@pytest.mark.parametrize("workers", [1, 4])
def test_an_error_comes_in_place_of_its_batch(workers: int) -> None:
    def make(step: int) -> Batch:
        if step == 5:
            raise OSError("the disk is gone")
        return empty(step)

    source = prefetched(make, 0, 10, workers)
    assert [next(source).step for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(OSError, match="the disk is gone"):
        next(source)
    assert not running()


@pytest.mark.parametrize("workers", [1, 4])
def test_nothing_runs_on_when_the_caller_stops(workers: int) -> None:
    for batch in prefetched(empty, 0, 1000, workers):
        if batch.step == 3:
            break
    del batch
    assert not running()


def test_no_steps_are_no_batches() -> None:
    assert [list(prefetched(empty, 4, 4, workers)) for workers in (1, 4)] == [[], []]


def running() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("batches")]


def test_four_symmetries_shared_by_the_pair() -> None:
    patch = np.arange(9, dtype=np.uint8).reshape(3, 3)
    n = 4000
    anchors = np.repeat(patch[None], n, 0)
    positives = anchors + 100
    flips = Flips.draw(n, np.random.default_rng(0))
    a, p = flips(anchors), flips(positives)
    assert (anchors == patch).all()  # the given patches stay as they are
    assert (p == a + 100).all()
    expected = {
        x.tobytes(): name
        for name, x in {
            "identity": patch,
            "transpose": patch.T,
            "mirror": patch[:, ::-1],
            "quarter turn": np.rot90(patch, -1),
        }.items()
    }
    seen = Counter(expected[np.ascontiguousarray(x).tobytes()] for x in a)
    assert set(seen) == set(expected.values())
    for count in seen.values():
        assert abs(count / n - 0.25) < 0.04


def test_a_part_of_the_pairs_is_flipped_as_within_the_whole() -> None:
    patches = np.random.default_rng(1).integers(0, 256, (20, 5, 5)).astype(np.uint8)
    flips = Flips.draw(20, np.random.default_rng(0))
    assert np.array_equal(flips[5:12](patches[5:12]), flips(patches)[5:12])


def test_transpose_comes_before_mirror() -> None:
    patch = np.array([[[1, 2], [3, 4]]], np.uint8)
    both = Flips(np.array([True]), np.array([True]))
    assert both(patch).tolist() == [[[3, 1], [4, 2]]]
