"""What training and patch benchmarks consume: patches and the 3D point each one shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Patches(Protocol):
    """(N, S, S) uint8, read by index: an array, a memory map, or several of them joined."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, S, S)."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        """Patches by number, slice, index array or mask, as of an array."""
        ...


@dataclass(frozen=True)
class PatchSet:
    """Patches with point ids, and optionally a list of test pairs.

    Attributes:
        name: shown in logs and results.
        patches: (N, S, S) uint8, usually memory-mapped.
        points: (N,) int64, the 3D point of each patch.
        pairs: (M, 2) int64 patch indices of the test pairs; (0, 2) where the set has none.
        sets: (N,) int64, which set of a union each patch is of; None where there is one set only.
        images: (N,) int64, the image each patch was cut from; None where that is not known.
    """

    name: str
    patches: Patches
    points: NDArray[np.int64]
    pairs: NDArray[np.int64]
    sets: NDArray[np.int64] | None = None
    images: NDArray[np.int64] | None = None

    @property
    def pair_labels(self) -> NDArray[np.bool_]:
        """(M,) whether the two patches of a test pair show the same point."""
        return np.asarray(self.points[self.pairs[:, 0]] == self.points[self.pairs[:, 1]])

    def __len__(self) -> int:
        return len(self.points)
