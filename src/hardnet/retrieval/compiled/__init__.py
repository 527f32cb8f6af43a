"""The loops of a search as machine code, for processes that answer many queries.

Loading numba, and compiling the first time on a computer, takes longer than a query without it. So
numpy answers until there has been enough work for loading to pay off, or until a caller that
expects many queries calls :func:`load`. The results are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

ENOUGH = 30_000_000
"""Postings that numpy reads in about the time it takes to load numba."""

_read = 0  # postings, so far
_twins: dict[Callable[..., Any], Callable[..., Any]] = {}
_lock = Lock()


def faster(function: Function) -> Function:
    """The function as machine code if that is loaded, else the function itself."""
    return _twins.get(function, function)  # type: ignore[return-value]


def load() -> None:
    """Run the loops of this process as machine code from now on, if numba is installed."""
    with _lock, suppress(ImportError):
        from hardnet.retrieval.compiled.kernels import TWINS
        from hardnet.retrieval.compiled.maps import best_maps
        from hardnet.retrieval.verification import best_maps as plain

        _twins.update(TWINS)
        _twins[plain] = best_maps


def note_work(postings: int) -> None:
    """Count the postings a query reads; load the machine code once there are enough."""
    global _read
    _read += postings
    if _read > ENOUGH and not _twins:
        load()
