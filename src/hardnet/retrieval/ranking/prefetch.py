"""Ask for memory before it is needed: posting lists lie far apart, and each is a wait."""

from __future__ import annotations

from typing import Any

from hardnet.errors import MissingExtraError

try:
    from llvmlite import ir
    from numba import types
    from numba.extending import intrinsic
except ImportError as error:
    raise MissingExtraError("numba", "search") from error

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
