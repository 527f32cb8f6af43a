"""No single correspondence is a better hypothesis than the answer."""

from __future__ import annotations

from math import log

import numpy as np
import pytest

from hardnet.frames import from_similarity
from hardnet.retrieval.verification import Correspondences, Rules, best_maps

LIMIT, RATIO = 1600.0, 1000**0.5


def slow_count(features, places, query, image, hypothesis: int) -> int:
    """One-to-one inliers of the map of one pair: each query feature takes the nearest left."""
    linear = image[hypothesis, :, :2] @ np.linalg.inv(query[hypothesis, :, :2])
    shift = image[hypothesis, :, 2] - linear @ query[hypothesis, :, 2]
    there = query[:, :, 2] @ linear.T + shift - image[:, :, 2]
    back = (image[:, :, 2] - shift) @ np.linalg.inv(linear).T - query[:, :, 2]
    error = (there**2).sum(1) + (back**2).sum(1)
    areas = np.linalg.det(image[:, :, :2]) / np.linalg.det(query[:, :, :2])
    fits = (error < LIMIT) & (abs(np.log(areas / np.linalg.det(linear))) < log(RATIO))
    taken: set[int] = set()
    for feature in np.unique(features):
        free = [j for j in np.flatnonzero(fits & (features == feature)) if places[j] not in taken]
        if free:
            taken.add(int(places[min(free, key=lambda j: error[j])]))
    return len(taken)


@pytest.mark.parametrize("seed", range(4))
def test_no_hypothesis_has_more_inliers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 45
    query = from_similarity(
        rng.uniform(60, 700, (count, 2)), rng.uniform(2, 10, count), rng.uniform(0, 6, count)
    ).astype(np.float64)
    image = query.copy()
    image[:, :, 2] += rng.normal(0, 14, (count, 2))
    # Every feature has its own partner, and some have others too.
    pairs = np.unique(
        np.concatenate([np.arange(count)[:, None].repeat(2, 1), rng.integers(0, count, (60, 2))]),
        axis=0,
    )
    features, places = (np.ascontiguousarray(column, np.int64) for column in pairs.T)
    zeros = np.zeros(len(pairs), np.int64)
    ours, theirs = query[features], image[places]
    found = Correspondences(zeros, zeros, features, zeros, places, zeros)
    frames = ours.reshape(-1, 6), theirs.reshape(-1, 6)
    rules = Rules(LIMIT, log(RATIO), 4, len(pairs))
    counts, _, inliers = best_maps(np.array([0, len(pairs)]), found, *frames, rules)
    assert counts[0] == inliers.sum() == len(set(features[inliers])) == len(set(places[inliers]))
    most = max(slow_count(features, places, ours, theirs, i) for i in range(len(pairs)))
    assert 20 < most <= counts[0]
