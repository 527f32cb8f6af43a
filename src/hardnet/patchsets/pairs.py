"""Training batches: one pair of patches per 3D point, no point twice in a batch.

Points are drawn uniformly, whatever their number of patches, so a point seen in a hundred photos
counts as much as one seen in two. Of the chosen point any two different patches are drawn, each
ordered pair of them as often as any other. A point with a single patch is never drawn.

In a union of sets, weights say which share of the pairs each set gives. Without weights the points
of all sets are alike, so a set counts by its number of points.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError

_GOLDEN = (5**0.5 - 1) / 2  # its multiples modulo 1 fill [0, 1) evenly, however many are taken


class PairSampler:
    """Batch number t of a training run, as a function of (seed, t) alone.

    Nothing is remembered between batches, so a resumed run continues with exactly the batches the
    uninterrupted run would have seen, and batches can be made in any order.

    Args:
        points: (N,) the 3D point of each patch.
        batch: pairs per batch, each of another point.
        seed: of the run.
        sets: (N,) the set of each patch, 0 ... K - 1; None for a single set.
        weights: K positive numbers in any unit, the share of each set in the pairs; empty: every
            point of every set is drawn equally often.
    """

    def __init__(
        self,
        points: NDArray[np.int64],
        batch: int,
        seed: int,
        sets: NDArray[np.int64] | None = None,
        weights: Sequence[float] = (),
    ) -> None:
        self._order = np.argsort(points, kind="stable")
        _, first, counts = np.unique(points[self._order], return_index=True, return_counts=True)
        self._first, self._counts = first[counts > 1], counts[counts > 1]
        self.batch, self.seed = batch, seed
        if len(self._first) < batch:
            raise HardnetError(
                f"a batch of {batch} needs as many points with two patches or more, "
                f"and the set has {len(self._first)}: use a smaller batch or a larger set"
            )
        count = 1 if sets is None else int(sets.max()) + 1
        self._shares = _checked_shares(weights, count)
        self._members: list[NDArray[np.int64]] = []
        if count > 1 and len(weights) and sets is not None:
            set_of_point = sets[self._order[self._first]]
            self._members = [np.flatnonzero(set_of_point == k) for k in range(count)]
            self._check_members(weights)

    def __call__(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Patch indices of batch ``step``: (batch,) anchors and (batch,) positives."""
        rng = np.random.default_rng([self.seed, step])
        chosen = self._choose(step, rng)
        first, counts = self._first[chosen], self._counts[chosen]
        a = rng.integers(0, counts)
        b = (a + rng.integers(1, counts)) % counts
        return self._order[first + a], self._order[first + b]

    def _choose(self, step: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """(batch,) different points, as numbers into ``_first``."""
        if not self._members:
            return rng.choice(len(self._first), self.batch, replace=False)
        counts = split_batch(self.batch, self._shares, step)
        drawn = [
            members[rng.choice(len(members), count, replace=False)]
            for members, count in zip(self._members, counts, strict=True)
        ]
        # Mixed, so that any part of a batch (the rows of one process) has all sets in it.
        return rng.permutation(np.concatenate(drawn))

    def _check_members(self, weights: Sequence[float]) -> None:
        for k, (share, members) in enumerate(zip(self._shares, self._members, strict=True)):
            needed = int(np.ceil(round(self.batch * share, 9)))
            if len(members) < needed:
                raise HardnetError(
                    f"weight {weights[k]:g} of set {k + 1} asks for {needed} of the {self.batch} "
                    f"pairs of a batch, and the set has {len(members)} points with two patches or "
                    "more: use a smaller weight, a smaller batch or a larger set"
                )


def split_batch(batch: int, shares: NDArray[np.float64], step: int) -> list[int]:
    """How many pairs of batch ``step`` each set gives; they sum to ``batch``.

    Systematic rounding: the shares are laid end to end on a line of length ``batch``, and the whole
    numbers plus an offset are the pairs. Each set gets its share rounded down or up. The offset
    moves by the golden ratio from step to step, so the mean over the steps is the exact share, and
    after any number of steps the total is off by a few pairs at most.

    Args:
        batch: pairs in all.
        shares: (K,) of sum 1.
        step: number of the batch.
    """
    ends = np.round(batch * np.cumsum(shares), 9)  # so that whole shares stay whole
    ends[-1] = batch
    offset = (step * _GOLDEN) % 1.0
    return [int(n) for n in np.diff(np.floor(ends + offset), prepend=0)]


def _checked_shares(weights: Sequence[float], count: int) -> NDArray[np.float64]:
    if not len(weights):
        return np.full(count, 1 / count)
    given = np.asarray(weights, np.float64)
    if len(given) != count:
        raise HardnetError(
            f"weights has {len(given)} numbers for {count} patch sets: give one for each set, "
            "or none to count every point alike"
        )
    if not (np.isfinite(given) & (given > 0)).all():
        raise HardnetError(
            f"weights must be positive numbers, got {', '.join(f'{w:g}' for w in given)}: "
            "leave out a set that is not to be used"
        )
    return np.asarray(given / given.sum())
