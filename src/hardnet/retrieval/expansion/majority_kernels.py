"""The majority vote of signatures, bit by bit."""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval.compiled import compiled


@compiled
def vote(starts: Any, signatures: Any, more: Any, tie: Any) -> None:
    """Which bits most signatures of a group have, and which bits half of them have.

    Args:
        starts: (T + 1,) int64, where each group begins.
        signatures: (n, 2) uint64, one group after the other.
        more: (T, 2) uint64, written: bits that more than half have.
        tie: (T, 2) uint64, written: bits that exactly half have.
    """
    ones = np.empty(64, np.uint64)
    for group in range(len(starts) - 1):
        size = np.uint64(starts[group + 1] - starts[group])
        for half in range(2):
            for bit in range(64):
                ones[bit] = 0
            for row in range(starts[group], starts[group + 1]):
                value = signatures[row, half]
                for bit in range(64):
                    ones[bit] += (value >> np.uint64(bit)) & np.uint64(1)
            most, even = np.uint64(0), np.uint64(0)
            for bit in range(64):
                twice = ones[bit] + ones[bit]
                most |= np.uint64(twice > size) << np.uint64(bit)
                even |= np.uint64(twice == size) << np.uint64(bit)
            more[group, half], tie[group, half] = most, even
