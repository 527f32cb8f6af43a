"""Training batches: one pair of patches per 3D point, no point twice in a batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError


class PairSampler:
    """Batch number t of a training run, as a function of (seed, t) alone.

    Nothing is remembered between batches, so a resumed run continues with exactly the batches the
    uninterrupted run would have seen. Points are drawn uniformly, whatever their number of
    patches; a point with a single patch is never drawn.
    """

    def __init__(self, points: NDArray[np.int64], batch: int, seed: int) -> None:
        """Index ``points`` (N,), the 3D point of each patch."""
        self._order = np.argsort(points, kind="stable")
        _, first, counts = np.unique(points[self._order], return_index=True, return_counts=True)
        self._first, self._counts = first[counts > 1], counts[counts > 1]
        if len(self._first) < batch:
            raise HardnetError(
                f"a batch of {batch} needs as many points with two patches or more, "
                f"and the set has {len(self._first)}: use a smaller batch or a larger set"
            )
        self.batch, self.seed = batch, seed

    def __call__(self, step: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Patch indices of batch ``step``: (batch,) anchors and (batch,) positives."""
        rng = np.random.default_rng([self.seed, step])
        chosen = rng.choice(len(self._first), self.batch, replace=False)
        first, counts = self._first[chosen], self._counts[chosen]
        a = rng.integers(0, counts)
        b = (a + rng.integers(1, counts)) % counts
        return self._order[first + a], self._order[first + b]
