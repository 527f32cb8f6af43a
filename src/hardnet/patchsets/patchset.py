"""What training and patch benchmarks consume: patches and the 3D point each one shows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PatchSet:
    """Patches with point ids, and optionally a list of test pairs.

    Attributes:
        name: shown in logs and results.
        patches: (N, S, S) uint8, usually memory-mapped.
        points: (N,) int64, the 3D point of each patch.
        pairs: (M, 2) int64 patch indices of the test pairs; (0, 2) where the set has none.
    """

    name: str
    patches: NDArray[np.uint8]
    points: NDArray[np.int64]
    pairs: NDArray[np.int64]

    @property
    def pair_labels(self) -> NDArray[np.bool_]:
        """(M,) whether the two patches of a test pair show the same point."""
        return np.asarray(self.points[self.pairs[:, 0]] == self.points[self.pairs[:, 1]])

    def __len__(self) -> int:
        return len(self.points)
