"""What every descriptor is: a callable from patches to unit vectors."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Descriptors = NDArray[np.float32]
"""(N, D) float32, one unit vector per patch."""


@runtime_checkable
class Descriptor(Protocol):
    """Describes patches; any benchmark and any pipeline takes any descriptor.

    Similarity of two patches is the dot product of their vectors, or the L2 distance: both give the
    same order, because every vector has length 1.
    """

    @property
    def name(self) -> str:
        """What tables and files call it."""
        ...

    @property
    def dim(self) -> int:
        """Length D of a descriptor."""
        ...

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """Describe (N, S, S) or (N, 1, S, S) grey patches of any size: (N, D) unit vectors."""
        ...
