from __future__ import annotations

import numpy as np
import pytest

from hardnet.retrieval.query import best, order


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 50, 199, 200, 1000])
def test_best_is_the_top_of_the_sorted_list(limit: int) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        # Few different values: many ties.
        scores = rng.integers(0, rng.integers(1, 40), 200).astype(np.float32)
        scores[rng.random(200) < 0.2] = -np.inf
        expected = [i for _, i in sorted((-s, i) for i, s in enumerate(scores) if s != -np.inf)]
        assert sorted(best(scores, limit).tolist()) == sorted(expected[:limit])


def test_order_breaks_ties_by_number() -> None:
    images, scores = order(np.array([9, 3, 5, 1]), np.array([1, 2, 1, 0], np.float32), limit=3)
    assert images.tolist() == [3, 5, 9]
    assert scores.tolist() == [2, 1, 1]


def test_no_scores() -> None:
    assert best(np.zeros(0, np.float32), 5).shape == (0,)
