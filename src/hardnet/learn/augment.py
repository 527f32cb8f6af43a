"""Flip / rotate augmentation ("+" in the paper's tables), shared by the patches of a pair."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Flips:
    """What happens to each pair of a batch: a transpose or not, then a mirror image or not.

    These are four of the eight symmetries of the square, as in the published training: identity,
    transpose, mirror, and a quarter turn.

    Attributes:
        transpose: (n,) swap rows and columns.
        mirror: (n,) mirror left-right, after that.
    """

    transpose: NDArray[np.bool_]
    mirror: NDArray[np.bool_]

    @classmethod
    def draw(cls, pairs: int, rng: np.random.Generator) -> Flips:
        """Each of the four symmetries with probability 1/4, independently for ``pairs`` pairs."""
        return cls(rng.random(pairs) < 0.5, rng.random(pairs) < 0.5)

    def __getitem__(self, rows: slice) -> Flips:
        """Those of some of the pairs."""
        return Flips(self.transpose[rows], self.mirror[rows])

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Flip patch i of (n, S, S) as pair i is flipped; the anchors and positives alike."""
        out = np.array(patches)
        out[self.transpose] = patches[self.transpose].swapaxes(1, 2)
        out[self.mirror] = out[self.mirror][:, :, ::-1]
        return out
