"""What every descriptor is: a callable from patches to vectors that can be compared."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Descriptors = NDArray[np.float32]
"""(N, D) float32, one unit vector per patch."""


@runtime_checkable
class Descriptor(Protocol):
    """Describes patches; any benchmark and any pipeline takes any descriptor.

    The type of what it returns is the metric: float32 vectors are compared by L2 distance, uint8
    rows are packed bits, compared by Hamming distance (``hardnet.matching.distances``). Vectors
    have length 1, except where a descriptor was learned otherwise (VGG) or is somebody's function.

    A descriptor may have an ``identity``: a text that says which weights, source or library
    computes it, for ``hardnet.descriptors.fingerprint``.
    """

    @property
    def name(self) -> str:
        """What tables and files call it."""
        ...

    @property
    def dim(self) -> int:
        """Length D of a vector, or the number of bits."""
        ...

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """Describe (N, S, S) or (N, 1, S, S) grey patches of any size.

        Returns:
            (N, D) float32 vectors, or (N, D / 8) uint8 packed bits.
        """
        ...
