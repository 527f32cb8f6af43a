"""The loops of a search as machine code, for processes that answer many queries.

Loading numba, and the first time on a computer compiling, takes longer than a query does without
it. So numpy answers until there has been enough work for loading to pay off, or until a caller that
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
    with _lock:
        if _twins:
            return
        with suppress(ImportError):
            _load()


def note_work(postings: int) -> None:
    """Count the postings a query reads; load the machine code once there are enough."""
    global _read
    _read += postings
    if _read > ENOUGH:
        load()


def _load() -> None:
    from hardnet.retrieval import assignment, hypotheses, scoring, verification, vocabulary
    from hardnet.retrieval.compiled import assignment as compiled_assignment
    from hardnet.retrieval.compiled import correspondences, scanning
    from hardnet.retrieval.compiled import hypotheses as compiled_hypotheses

    _twins.update(
        {
            assignment.project: compiled_assignment.project,
            assignment.find_promising: compiled_assignment.find_promising,
            assignment.nearest_of: compiled_assignment.nearest_of,
            vocabulary.sign: compiled_assignment.sign,
            scoring.add_bow: scanning.add_bow,
            scoring.add_he: scanning.add_he,
            verification.find_correspondences: correspondences.find_correspondences,
            hypotheses.verify: compiled_hypotheses.verify,
        }
    )
