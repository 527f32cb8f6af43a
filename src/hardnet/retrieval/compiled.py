"""Numba, in the one way this package uses it: compiled once, kept on disk, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import MissingExtraError

try:
    import numba
    from llvmlite import ir
    from numba.extending import intrinsic
except ImportError as error:
    raise MissingExtraError("numba", "search") from error

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code; call it from several threads to use several cores."""
    kernel: Function = numba.njit(nogil=True, cache=True)(function)
    return kernel


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A plain contiguous view that nobody can write to.

    Kernels are compiled once per kind of array, and a column may be mapped, made or sliced.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


def _population_count(typing_context: Any, word: Any) -> Any:
    """How many bits of a uint64 are set: one instruction, which LLVM knows how to vectorise."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = ir.IntType(64)
        count = builder.module.declare_intrinsic("llvm.ctpop", [kind])
        return builder.call(count, arguments)

    return numba.types.int64(numba.types.uint64), generate


popcount: Callable[[Any], int] = intrinsic(_population_count)
"""For use inside compiled functions only."""
