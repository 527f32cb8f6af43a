"""Signatures: what tells the descriptors of one word apart, in 128 bits.

A signature is two uint64: bit b is bit ``b % 64`` of word ``b // 64``, the least significant first.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

BITS = 128
"""Bits of a signature, as in the HQE paper; two uint64."""

Signatures = NDArray[np.uint64]


def pack_bits(bits: NDArray[np.bool_]) -> Signatures:
    """Signatures (..., 2) of bits (..., 128)."""
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


def unpack_bits(signatures: Signatures) -> NDArray[np.bool_]:
    """Bits (..., 128) of signatures (..., 2)."""
    stored = np.ascontiguousarray(signatures, "<u8").view(np.uint8)
    return np.unpackbits(stored, axis=-1, bitorder="little").view(np.bool_)


def distances(a: Signatures, b: Signatures) -> NDArray[np.int64]:
    """How many bits differ: (...) for signatures (..., 2) that broadcast."""
    counts: NDArray[np.int64] = _bit_counts(np.bitwise_xor(a, b)).sum(axis=-1, dtype=np.int64)
    return counts


def _bit_counts_of_bytes(values: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return _OF_BYTE[np.ascontiguousarray(values).view(np.uint8)]


_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_OF_BYTE: NDArray[np.uint8] = np.unpackbits(_BYTES, axis=1).sum(axis=1, dtype=np.uint8)
_bit_counts: Any = getattr(np, "bitwise_count", _bit_counts_of_bytes)  # since numpy 2
