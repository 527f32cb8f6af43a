"""Flip / rotate: which of the square's symmetries, how often, and alike for both patches."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hardnet.learn.batches import Flips


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
