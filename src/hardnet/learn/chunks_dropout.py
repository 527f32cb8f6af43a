"""Dropout whose mask belongs to the row of the batch, not to the order of computation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_LEVELS = 2**16  # a mask entry is decided by 16 random bits
_PER_BLOCK = 16  # 16-bit numbers in one block of Philox, which counts in blocks of 256 bits


def dropout(x: Tensor, rate: float, seed: int, layer: int, rows: NDArray[np.int64]) -> Tensor:
    """Zero a share ``rate`` of the entries, and scale the others to keep the mean.

    Philox is a function of a key and a counter. The key is (seed, layer) and the counter follows
    from the row, so every chunk, process and recomputation draws the same mask for the same row.

    Args:
        x: (n, ...) values.
        rate: share of zeros, in steps of 2^-16.
        seed: of this training step.
        layer: which dropout layer of the network.
        rows: (n,) number of each row in the batch of all processes.
    """
    if not rate:
        return x
    # The last axis runs fastest in memory: channels for images, as activations are channels last.
    shape = (*x.shape[:1], *x.shape[2:], *x.shape[1:2])
    kept = _random_bits(seed, layer, rows, int(np.prod(shape[1:]))) >= round(rate * _LEVELS)
    mask = torch.from_numpy(kept).view(shape).movedim(-1, 1).to(x.device)
    return x * (mask.to(x.dtype) / (1 - rate))


def _random_bits(seed: int, layer: int, rows: NDArray[np.int64], size: int) -> NDArray[np.uint16]:
    """(n, size) numbers of 16 bits, one stretch of the stream per row."""
    blocks = -(-size // _PER_BLOCK)
    ends = np.flatnonzero(np.diff(rows) != 1) + 1
    key = (seed % 2**64) + (layer << 64)
    runs = [
        np.random.Philox(key=key, counter=int(run[0]) * blocks).random_raw(len(run) * blocks * 4)
        for run in np.split(rows, ends)
        if len(run)
    ]
    bits = np.concatenate(runs).view(np.uint16).reshape(len(rows), -1)
    return bits[:, :size]
