"""Flip / rotate: which of the square's symmetries, how often, and alike for both patches."""

from __future__ import annotations

from collections import Counter

import numpy as np

from hardnet.learn.augment import flip_rotate


def test_four_symmetries_shared_by_the_pair() -> None:
    patch = np.arange(9, dtype=np.uint8).reshape(3, 3)
    n = 4000
    anchors = np.repeat(patch[None], n, 0)
    positives = anchors + 100
    a, p = flip_rotate(anchors, positives, np.random.default_rng(0))
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
