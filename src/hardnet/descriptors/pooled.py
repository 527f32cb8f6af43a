"""Domain-size pooling: the mean of what one descriptor says about several windows of a keypoint.

A narrow window tells keypoints apart where the scene has depth, a wide one where light has changed
what is near. ``hardnet@12+24`` is the mean of both, at unit length; ``rootsift@16`` is one window
that is not the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.descriptors.base import Descriptor, check_patches, unit_rows
from hardnet.errors import InputError
from hardnet.patches import PATCH_SIZE

LARGEST = 4.0
"""How many times as wide as the narrowest window the widest may be."""


class PooledDescriptor:
    """Reads patches of the widest window and describes the middle of each in every window.

    Attributes:
        window: the widest, in sigmas: how large a patch is cut.
        window_pixels: side of that patch, so that the narrowest window has as many as ever.
    """

    def __init__(self, inner: Descriptor, windows: Sequence[float]) -> None:
        widest, narrowest = max(windows), min(windows)
        text = "+".join(f"{window:g}" for window in windows)
        if not 0 < narrowest <= widest <= LARGEST * narrowest:
            raise InputError(
                f"{inner.name}@{text}: give windows in sigmas of a keypoint, the widest at most "
                f"{LARGEST:g} times the narrowest"
            )
        self.name, self.dim = f"{inner.name}@{text}", inner.dim
        self.window = widest
        self.window_pixels = 2 * round(PATCH_SIZE / 2 * widest / narrowest)
        self._inner, self._windows = inner, tuple(windows)
        digest = getattr(inner, "digest", "")
        self.digest = f"{digest}@{text}" if digest else ""
        self.weights = f"{getattr(inner, 'weights', '')}@{text}"

    def __call__(self, patches: ArrayLike) -> NDArray[Any]:
        """(N, S, S) or (N, 1, S, S) grey patches of the widest window -> (N, D) unit vectors."""
        wide = check_patches(patches)
        if len(self._windows) == 1:
            return self._inner(wide)
        side = wide.shape[1]
        total = np.zeros((len(wide), self.dim), np.float32)
        for window in self._windows:
            inset = round(side * (1 - window / self.window) / 2)
            vectors = self._inner(wide[:, inset : side - inset, inset : side - inset])
            if vectors.dtype != np.float32:
                raise InputError(f"{self.name}: bits have no mean; give one window alone")
            total += vectors
        return unit_rows(total)
