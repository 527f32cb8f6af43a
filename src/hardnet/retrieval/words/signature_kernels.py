"""The loop that makes signatures.

Not a product of matrices by BLAS: its threads keep a core busy for a while after the product, when
the search for words needs it, and its sums depend on the number of rows. Here each row is summed by
itself, in one order, so that a signature does not depend on what is described beside it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hardnet.retrieval.compiled import compiled


@compiled
def sign(rows: Any, axes: Any, thresholds: Any, words: Any, out: Any) -> None:
    """Set the bits of the axes along which a row reaches beyond its thresholds.

    Args:
        rows: (N, D) float32.
        axes: (D, 128) float32, the projection transposed.
        thresholds: (K, 128) float32, those of each word.
        words: (N, M) int32, the words of each row.
        out: (N, M, 2) uint64, written.
    """
    dim, bits = axes.shape
    projected = np.empty(bits, np.float32)
    for n in range(len(rows)):
        projected[:] = np.float32(0)
        for d in range(dim):
            value = rows[n, d]
            for b in range(bits):
                projected[b] += value * axes[d, b]
        for m in range(out.shape[1]):
            word = words[n, m]
            for half in range(2):
                signature = np.uint64(0)
                for b in range(64):
                    above = projected[64 * half + b] > thresholds[word, 64 * half + b]
                    signature |= np.uint64(above) << np.uint64(b)
                out[n, m, half] = signature
