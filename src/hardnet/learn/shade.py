"""Edges of light across the patches of a batch, as shadows throw them.

The light of photographs (`hardnet.patchsets.build.light`) is drawn once, when a set is built, and
its shadows are large: few patches lie on an edge of one. Here each patch gets a new draw each time
that it is seen. A descriptor that has learnt to look past an edge at any place and angle compares
what is painted and carved, not where the sun stood.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from hardnet.patches import patch_ticks

Column = NDArray[np.float32]

GAIN = 1.6
"""The largest logarithm of the gain behind an edge, to either side: five times the light."""


@dataclass(frozen=True)
class Shade:
    """A straight edge of light across each of n patches; every attribute is an (n,) array.

    Attributes:
        gain: logarithm of the gain behind the edge; 0 for none.
        angle: of the normal of the edge, which points behind it.
        offset: of the edge from the centre, in half sides of the patch.
        softness: width of the edge, in half sides.
    """

    gain: Column
    angle: Column
    offset: Column
    softness: Column

    @classmethod
    def draw(cls, patches: int, share: float, rng: np.random.Generator) -> Shade:
        """Edges for a ``share`` of ``patches`` patches, from hard ones to those as wide as it."""
        lit = rng.random(patches) < share
        return cls(
            np.where(lit, rng.uniform(-GAIN, GAIN, patches), 0).astype(np.float32),
            rng.uniform(0, 2 * np.pi, patches).astype(np.float32),
            rng.uniform(-0.9, 0.9, patches).astype(np.float32),
            (10 ** rng.uniform(-1.5, 0, patches)).astype(np.float32),
        )

    def __getitem__(self, rows: slice) -> Shade:
        """That of some of the patches."""
        return Shade(*(getattr(self, each.name)[rows] for each in fields(self)))

    def __call__(self, patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Light patch i of (n, S, S) as drawn for it; its brightest pixel stays as bright."""
        lit = np.flatnonzero(self.gain)
        out, chosen = np.array(patches), patches[lit].astype(np.float32)
        gain, angle, offset, softness = (
            getattr(self, each.name)[lit, None, None] for each in fields(self)
        )
        ticks = patch_ticks(patches.shape[1])
        side = np.cos(angle) * ticks[None, None] + np.sin(angle) * ticks[None, :, None] - offset
        light = chosen * np.exp(gain * (0.5 + 0.5 * np.tanh(side / softness)))
        before, after = (values.max((1, 2), keepdims=True) for values in (chosen, light))
        out[lit] = light * (before / np.maximum(after, np.float32(1e-6))) + np.float32(0.5)
        return out
