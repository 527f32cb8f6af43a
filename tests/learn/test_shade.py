"""Edges of light: against a slow loop, shadow edges by hand, the same for whoever draws it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hardnet.learn.batches import Batches, PairSampler, Shade
from hardnet.patchsets.patchset import PatchSet


def edge(gain: float, angle: float) -> Shade:
    """A hard edge through the centre of one patch."""
    return Shade(*(np.array([value], np.float32) for value in (gain, angle, 0, 0.01)))


def shade_by_loops(shade: Shade, patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
    out = np.zeros_like(patches)
    for n, patch in enumerate(patches):
        gain, angle, offset, softness = (
            float(values[n]) for values in (shade.gain, shade.angle, shade.offset, shade.softness)
        )
        size = len(patch)
        light = np.zeros(patch.shape)
        for row in range(size):
            for column in range(size):
                x, y = (2 * column + 1) / size - 1, (2 * row + 1) / size - 1
                side = math.cos(angle) * x + math.sin(angle) * y - offset
                behind = 0.5 + 0.5 * math.tanh(side / softness)
                light[row, column] = int(patch[row, column]) * math.exp(gain * behind)
        light *= int(patch.max()) / max(light.max(), 1e-6)
        for row in range(size):
            for column in range(size):
                out[n, row, column] = int(light[row, column] + 0.5)
    return out


@pytest.mark.parametrize("seed", range(5))
def test_as_a_loop_over_pixels_does_it(seed: int) -> None:
    rng = np.random.default_rng(seed)
    patches = rng.integers(0, 256, (12, 8, 8), np.uint8)
    patches[0], patches[1] = 0, 77
    shade = Shade.draw(12, 0.7, rng)
    difference = shade(patches).astype(int) - shade_by_loops(shade, patches)
    assert np.abs(difference).max() <= 1  # where float32 rounds to the other side


def test_an_edge_of_light_halves_one_side() -> None:
    patch = np.full((1, 8, 8), 200, np.uint8)
    right = edge(-math.log(2), 0)(patch)[0]
    assert (right[:, :4] == 200).all()
    assert (right[:, 4:] == 100).all()
    lower = edge(math.log(2), math.pi / 2)(patch)[0]  # brighter there, so darker here
    assert (lower[:4] == 100).all()
    assert (lower[4:] == 200).all()


def test_share_of_the_patches() -> None:
    patches = np.random.default_rng(0).integers(0, 256, (2000, 4, 4), np.uint8)
    assert np.array_equal(Shade.draw(2000, 0, np.random.default_rng(1))(patches), patches)
    lit = Shade.draw(2000, 0.6, np.random.default_rng(1))(patches)
    changed = (lit != patches).any((1, 2)).mean()
    assert changed == pytest.approx(0.6, abs=0.04)
    assert np.array_equal(lit.max((1, 2)), patches.max((1, 2)))


def test_a_batch_is_lit_alike_for_all_processes() -> None:
    rng = np.random.default_rng(2)
    patches = rng.integers(0, 256, (60, 8, 8), np.uint8)
    points = np.repeat(np.arange(30), 2)
    train_set = PatchSet("set", patches, points, np.zeros((0, 2), np.int64))
    sampler = PairSampler(points, 16, 5)

    def batch(rows: slice, shade: float, step: int = 3) -> NDArray[np.uint8]:
        made = Batches(train_set, sampler, False, 5, rows, shade=shade)(step)
        return np.stack([made.anchors, made.positives])

    whole = batch(slice(None), 0.9)
    halves = np.concatenate([batch(slice(0, 8), 0.9), batch(slice(8, 16), 0.9)], axis=1)
    assert np.array_equal(whole, halves)
    as_they_are = batch(slice(None), 0)
    other_light = (whole != as_they_are).any((2, 3))
    assert 16 < other_light.sum() <= 32
    assert not np.array_equal(whole, batch(slice(None), 0.9, step=4))
