"""What compiled loops are made of: numba in the one way this package uses it, and bit counting.

``popcount`` and ``prefetch`` are one instruction each, for other kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code; call it from several threads to use several cores."""
    kernel: Any = numba.njit(nogil=True, cache=True)(function)
    return cast(Function, kernel)


def compiled_sums(function: Function) -> Function:
    """The same for kernels of long sums, whose order the compiler may then choose."""
    kernel: Any = numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})(function)
    return cast(Function, kernel)


def _popcount(typing_context: Any, value: Any) -> Any:
    """Numba's recipe for ``popcount``: its types, and the instruction to write."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        declared = ir.FunctionType(ir.IntType(64), [ir.IntType(64)])
        count = builder.module.declare_intrinsic("llvm.ctpop", [ir.IntType(64)], declared)
        return builder.call(count, arguments)

    return types.int64(types.uint64), generate


popcount: Any = intrinsic(_popcount)
"""The number of set bits of a uint64, as int64; to be called from kernels only."""


@compiled
def hamming(a0: int, a1: int, b0: int, b1: int) -> int:
    """The number of differing bits of the signatures (a0, a1) and (b0, b1), four uint64."""
    count: int = popcount(a0 ^ b0) + popcount(a1 ^ b1)
    return count


LINE = 64
"""Bytes that come together."""


def _prefetch(typing_context: Any, address: Any) -> Any:
    """Numba's recipe for ``prefetch``: its types, and the instruction to write."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number, pointer = ir.IntType(32), ir.IntType(8).as_pointer()
        declared = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
        fetch = builder.module.declare_intrinsic("llvm.prefetch", [pointer], declared)
        # For reading, into the nearest cache, as data.
        flags = [ir.Constant(number, flag) for flag in (0, 3, 1)]
        builder.call(fetch, [builder.inttoptr(arguments[0], pointer), *flags])
        return context.get_dummy_value()

    return types.none(types.intp), generate


prefetch: Any = intrinsic(_prefetch)
"""Start to load the line of an address; any address is allowed. To be called from kernels only."""
