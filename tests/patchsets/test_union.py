"""Unions of patch sets."""

from __future__ import annotations

import numpy as np

from hardnet.patchsets.patchset import PatchSet
from hardnet.patchsets.union import join


def make(name: str, points: list[int], pairs: list[tuple[int, int]], grey: int) -> PatchSet:
    patches = np.full((len(points), 2, 2), grey, np.uint8)
    return PatchSet(name, patches, np.array(points), np.array(pairs))


def test_points_never_collide_and_pairs_follow_their_patches() -> None:
    one = make("one", [7, 7, 9], [(0, 1), (1, 2)], 10)
    two = make("two", [7, 3, 7], [(0, 2), (0, 1)], 20)
    both = join([one, two])
    assert both.name == "one+two"
    # 7 and 9 of the first become 0 and 1; 3 and 7 of the second become 2 and 3.
    assert both.points.tolist() == [0, 0, 1, 3, 2, 3]
    assert both.pairs.tolist() == [[0, 1], [1, 2], [3, 5], [3, 4]]
    assert both.pair_labels.tolist() == [True, False, True, False]
    assert both.patches[:, 0, 0].tolist() == [10, 10, 10, 20, 20, 20]


def test_a_single_set_is_not_copied() -> None:
    one = make("one", [1, 1], [(0, 1)], 0)
    assert join([one]) is one
