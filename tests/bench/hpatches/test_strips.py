from dataclasses import replace

import numpy as np
import pytest

from hardnet.bench.hpatches import strips as module
from hardnet.bench.hpatches import verification
from hardnet.bench.hpatches.drawing import draw_pairs
from hardnet.bench.hpatches.strips import Strips


def test_patches_of_any_strips_are_gathered_in_their_order(lookup, tasks):
    patches = np.array([[2, 0, 30], [0, 4, 1], [2, 0, 0], [3, 5, 8], [0, 4, 1]], np.int32)
    strips = ("ref", "h4", "ref", "h5", "h4")
    expected = [
        lookup[tasks.names[s], strip][i]
        for (s, _, i), strip in zip(patches.tolist(), strips, strict=True)
    ]
    found = Strips(lookup, tasks, "hard").gather(patches)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == expected[0].dtype


def test_few_strips_are_open_and_each_is_asked_for_a_few_times(tasks, monkeypatch):
    names = tuple(f"v_{k}" for k in range(40))
    counts = (3,) * 40
    tasks = replace(tasks, names=names, counts=counts, pairs=draw_pairs(counts, 5000))
    monkeypatch.setattr(module, "KEPT", 60)
    monkeypatch.setattr(verification, "_BLOCK", 5)
    monkeypatch.setattr(verification, "_PORTION", 128)
    asked = []

    def lookup(name, tag):
        asked.append((name, tag))
        return np.full((3, 2), names.index(name), np.float32)

    strips = Strips(lookup, tasks, "easy")
    found = verification.distances(strips, tasks.pairs.inter)
    apart = np.abs(tasks.pairs.inter[:, 0] - tasks.pairs.inter[:, 3])
    np.testing.assert_allclose(found, np.sqrt(2) * apart, rtol=1e-6)
    assert len(set(asked)) == 40 * 5
    assert len(strips._kept) <= 60
    # 8 x 8 pairs of blocks, 25 strips each on a side; strip by strip it would be 40 per portion.
    assert len(asked) <= 8 * 8 * 50


@pytest.mark.parametrize("kept", [1, 256])
def test_how_many_are_kept_does_not_change_anything(lookup, tasks, monkeypatch, kept):
    expected, _ = verification.evaluate(lookup, tasks, resamples=0)
    monkeypatch.setattr(module, "KEPT", kept)
    assert verification.evaluate(lookup, tasks, resamples=0)[0] == expected
