"""Work in pieces on as many threads as OpenCV may use; numpy and OpenCV let each other run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import cv2

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def map_threads(work: Callable[[Piece], Result], pieces: Sequence[Piece]) -> list[Result]:
    """``work`` of every piece, in order. The result does not depend on the number of threads."""
    workers = min(cv2.getNumThreads(), len(pieces))
    if workers < 2:
        return [work(piece) for piece in pieces]
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(work, pieces))
