"""The patch itself as its descriptor: what learning and engineering have to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from hardnet.descriptors.base import Descriptors
from hardnet.descriptors.inputs import check_patches, resize_patches, unit_rows


class PixelsDescriptor:
    """Grey values of the patch at 16 x 16, minus their mean, scaled to unit length.

    The dot product of two such vectors is the normalised cross-correlation of the patches.
    """

    name = "pixels"
    side = 16
    dim = side * side
    identity = f"pixels {side}"

    def __call__(self, patches: ArrayLike) -> Descriptors:
        """(N, S, S) or (N, 1, S, S) grey patches -> (N, 256) unit vectors."""
        exact = check_patches(patches).astype(np.float32)  # resizing bytes would round
        rows = resize_patches(exact, self.side).reshape(-1, self.dim).astype(np.float32)
        # The mean of equal float32 numbers may differ from them in the last digit: a flat patch
        # must give zeros here, not amplified rounding.
        flat = rows.max(1, initial=-np.inf) == rows.min(1, initial=np.inf)
        rows -= rows.mean(1, keepdims=True)
        rows[flat] = 0
        return unit_rows(rows)
