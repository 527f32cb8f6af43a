"""Signatures of 128 bits: packing them, and how many bits of two differ.

Bit b of a signature is bit ``b % 64`` of its word ``b // 64``, the least significant bit first.
The kernels are for others' kernels: ``popcount`` is one instruction.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import MissingExtraError

try:
    from llvmlite import ir
    from numba import njit, types
    from numba.extending import intrinsic
except ImportError as error:
    raise MissingExtraError("numba", "search") from error

BITS = 128
"""Bits of a signature, as in the HQE paper; two uint64."""

Signatures = NDArray[np.uint64]


def _popcount(typing_context: Any, value: Any) -> Any:
    """Numba's recipe for ``popcount``: its types, and the instruction to write."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        declared = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        count = builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)], declared)
        return builder.call(count, arguments)

    return types.int64(types.uint64), generate


popcount: Any = intrinsic(_popcount)
"""The number of set bits of a uint64, as int64; to be called from kernels only."""


@njit(nogil=True, cache=True)
def hamming(a0: int, a1: int, b0: int, b1: int) -> int:
    """The number of differing bits of the signatures (a0, a1) and (b0, b1), four uint64."""
    count: int = popcount(a0 ^ b0) + popcount(a1 ^ b1)
    return count


def pack_bits(bits: NDArray[np.bool_]) -> Signatures:
    """Signatures (..., 2) of bits (..., 128)."""
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


def unpack_bits(signatures: Signatures) -> NDArray[np.bool_]:
    """Bits (..., 128) of signatures (..., 2)."""
    stored = np.ascontiguousarray(signatures, "<u8").view(np.uint8)
    return np.unpackbits(stored, axis=-1, bitorder="little").astype(bool)


def distances(a: Signatures, b: Signatures) -> NDArray[np.int64]:
    """How many bits differ: (...) for signatures (..., 2) that broadcast."""
    counts: NDArray[np.int64] = unpack_bits(np.bitwise_xor(a, b)).sum(axis=-1, dtype=np.int64)
    return counts
