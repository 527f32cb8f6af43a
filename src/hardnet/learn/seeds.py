"""Every random number of a run follows from the recipe's seed and the number of the step."""

from __future__ import annotations

import numpy as np

DROPOUT, SAMPLING, MINING = 2, 3, 4
"""Streams of random numbers of a step. Pairs are drawn with (seed, step), and 1 is augmentation."""


def seed_of(seed: int, number: int, stream: int) -> int:
    """A seed for one purpose in one step (or epoch) of a run."""
    return int(np.random.default_rng([seed, number, stream]).integers(2**63))
