"""One chunk per core, instead of all cores on one chunk.

PyTorch splits every operation among its threads and waits for all of them: some thousand times in
a training step. On a machine that also does other work each of these waits can cost a time slice.
Here every thread takes whole chunks, and they meet only between two segments of the network.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")


class Threads:
    """Threads whose operations have one thread each.

    Args:
        count: how many; 1 is the caller alone.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """``function`` of each item, in their order: sums of the results are reproducible."""
        if self.count == 1:
            return map(function, items)
        if self._pool is None:
            self._pool = _start(self.count)
        return self._pool.map(function, items)


def _start(count: int) -> ThreadPoolExecutor:
    together = threading.Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)  # holds for this thread, and as the default of later ones
        together.wait()

    pool = ThreadPoolExecutor(count, "chunks", begin)
    for done in [pool.submit(int) for _ in range(count)]:
        done.result()
    torch.set_num_threads(count)  # the default of later threads as it was
    return pool
