"""The loops of a search as machine code, for those who search much.

numba takes longer to load, and the first time on a computer much longer to compile, than a query
takes without it. So numpy answers until there was enough to do that loading would have paid, or
until somebody who knows of many queries calls :func:`load`. What is found is the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

ENOUGH = 30_000_000
"""Postings that numpy reads in about the time that loading takes."""

_read = 0  # postings, so far
_twins: dict[Callable[..., Any], Callable[..., Any]] = {}
_lock = Lock()


def faster(function: Function) -> Function:
    """The same function as machine code if that is loaded, else the function itself."""
    return _twins.get(function, function)  # type: ignore[return-value]


def load() -> None:
    """Run loops as machine code from now on, in this process; without numba nothing changes."""
    with _lock:
        if _twins:
            return
        with suppress(ImportError):
            _load()


def note_work(postings: int) -> None:
    """Count what a query reads; loads when it has become enough."""
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
