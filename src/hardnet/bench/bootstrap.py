"""How far a score would move with other sequences: percentile intervals of the bootstrap.

Patches of one sequence resemble each other, so the sequence is what is drawn again, with
replacement, and not the patch: an interval over patches would be far too narrow.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LEVEL = 0.95
"""Share of the resamples inside an interval."""
MEAN_RESAMPLES = 1000
"""For means, which cost nothing."""
POOLED_RESAMPLES = 200
"""For scores of a pooled ranking, each a pass over all pairs."""

Interval = tuple[float | None, float | None]
"""(low, high); (None, None) where fewer than two groups leave nothing to draw."""


def multiplicities(groups: int, resamples: int, seed: int = 0) -> NDArray[np.int64]:
    """How often each group is in each resample: (resamples, groups), every row sums to groups."""
    if groups < 1:
        raise ValueError("there is nothing to draw from")
    rng = np.random.default_rng(seed)
    return rng.multinomial(groups, np.full(groups, 1 / groups), size=resamples)


def interval(scores: ArrayLike, level: float = LEVEL) -> Interval:
    """The middle ``level`` of the scores of the resamples, (R,).

    Resamples in which nothing could be scored are NaN and do not count.
    """
    values = np.asarray(scores, np.float64)
    values = values[~np.isnan(values)]
    if not len(values):
        return None, None
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def mean_interval(
    values: ArrayLike,
    groups: ArrayLike | None = None,
    resamples: int = MEAN_RESAMPLES,
    seed: int = 0,
) -> Interval:
    """Interval of the mean of ``values`` when whole groups are drawn again.

    Args:
        values: (N,) one score per item.
        groups: (N,) the group of each item, any labels; default: every item is a group.
        resamples: how many.
        seed: the same seed gives the same interval.
    """
    value = np.asarray(values, np.float64)
    labels = np.arange(len(value)) if groups is None else np.asarray(groups)
    _, member = np.unique(labels, return_inverse=True)
    sums, counts = np.bincount(member, value), np.bincount(member)
    if len(sums) < 2:
        return None, None
    drawn = multiplicities(len(sums), resamples, seed)
    return interval((drawn @ sums) / (drawn @ counts))
