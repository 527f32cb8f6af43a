"""Numba, in the one way this package uses it: compiled once, kept on disk, without the GIL."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import MissingExtraError

try:
    import numba
except ImportError as error:
    raise MissingExtraError("numba", "search") from error

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """The function as machine code; call it from several threads to use several cores."""
    kernel: Any = numba.njit(nogil=True, cache=True)(function)
    return cast(Function, kernel)


def readonly(array: NDArray[Any]) -> NDArray[Any]:
    """A plain contiguous view that nobody can write to.

    Kernels are compiled once per kind of array, and a column may be mapped, made or sliced.
    """
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view
