"""Scores of a ranking: the average precision of Oxford buildings, and UKBench's N-S.

Average precision has several definitions. That of Oxford buildings is the area under the
precision-recall curve by trapezoids. The usual one (scikit-learn's, mean of the precision at each
positive) gives other numbers for the same ranking, so the two cannot be compared.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike


def trapezoid_ap(positions: ArrayLike, positives: int) -> float:
    """Area under the precision-recall curve, by trapezoids.

    Args:
        positions: (F,) places of the positives that were found, from 0, ascending, in a ranking
            without junk.
        positives: how many there are to be found.

    Returns:
        0 to 1; NaN if there is nothing to be found.
    """
    if positives < 1:
        return float("nan")
    rank = np.asarray(positions, np.float64)
    found = np.arange(len(rank))
    # Before the first place of all, precision is 1.
    before = np.where(rank == 0, 1.0, found / np.maximum(rank, 1))
    after = (found + 1) / (rank + 1)
    return float(((before + after) / 2).sum() / positives)


def average_precision(
    ranking: Iterable[Hashable], positives: Collection[Hashable], junk: Collection[Hashable] = ()
) -> float:
    """The average precision of one query.

    Args:
        ranking: the images, best first; it may end early: what is not in it is not found.
        positives: the images to be found.
        junk: images that neither help nor harm: the ranking counts as if they were not there.

    Returns:
        0 to 1; NaN if there are no positives.
    """
    wanted, ignored = set(positives), set(junk)
    counted = (image for image in ranking if image not in ignored)
    positions = [place for place, image in enumerate(counted) if image in wanted]
    return trapezoid_ap(positions, len(wanted))


def mean_ap(values: ArrayLike) -> float | None:
    """Mean over queries; those without positives (NaN) are left out, as by the revisited protocol.

    Returns:
        None if no query has positives.
    """
    ap = np.asarray(values, np.float64)
    known = ap[~np.isnan(ap)]
    return float(known.mean()) if len(known) else None


def ns_score(ranking: Sequence[Hashable], same: Collection[Hashable]) -> int:
    """UKBench: how many of the first four images show the query's object, itself included.

    Args:
        ranking: the images, best first, the query among them.
        same: the images of the object, the query included: four in UKBench.
    """
    return len(set(ranking[:4]) & set(same))
