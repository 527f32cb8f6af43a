"""A function over many inputs in several processes, the results in the order of the inputs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

import cv2

Input = TypeVar("Input")
Result = TypeVar("Result")


def ordered_map(
    function: Callable[[Input], Result], inputs: Iterable[Input], workers: int
) -> Iterator[Result]:
    """``map(function, inputs)`` in ``workers`` processes, with only a few results in memory.

    Args:
        function: must be picklable: a function of a module, or a ``functools.partial`` of one.
        inputs: must be picklable.
        workers: processes; one or less runs in this process.
    """
    if workers <= 1:
        yield from map(function, inputs)
        return
    context = multiprocessing.get_context("spawn")  # OpenCV's threads do not survive a fork
    # The inputs are spread over processes: OpenCV's threads inside each would only compete.
    with ProcessPoolExecutor(workers, context, cv2.setNumThreads, (1,)) as pool:
        pending: list[Future[Result]] = []
        try:
            for each in inputs:
                pending.append(pool.submit(function, each))
                if len(pending) >= 4 * workers:
                    yield pending.pop(0).result()
            while pending:
                yield pending.pop(0).result()
        finally:  # an error in one must not wait for all the others
            for future in pending:
                future.cancel()
