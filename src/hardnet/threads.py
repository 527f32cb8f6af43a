"""How many cores there are, and work in pieces on several threads or in several processes."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import TypeVar

Piece = TypeVar("Piece")
Result = TypeVar("Result")

MOST_THREADS = 256  # those that are not needed are never started


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Deliver Ctrl-C only after the block, whose C++ code would turn it into another error."""
    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Python runs signal handlers in the main thread: in others there is nothing to hold.
    if not usual or threading.current_thread() is not threading.main_thread():
        yield
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if held:
            signal.raise_signal(signal.SIGINT)


def map_threads(
    work: Callable[[Piece], Result], pieces: Sequence[Piece], threads: int | None = None
) -> list[Result]:
    """``work`` of every piece, in order. The result does not depend on the number of threads.

    By default there are as many threads as OpenCV may use; numpy and OpenCV release Python's lock.
    The caller works too and never waits for a helper that has not started, so ``work`` may itself
    call this function.
    """
    if threads is None:
        import cv2  # here, so that counting cores does not import OpenCV

        threads = cv2.getNumThreads()
    workers = min(threads, len(pieces))
    if workers < 2:
        return [work(piece) for piece in pieces]
    results: dict[int, Result] = {}
    left = iter(range(len(pieces)))

    def share() -> None:
        try:
            for number in left:
                results[number] = work(pieces[number])
        finally:  # after an error the other threads stop
            for _ in left:
                pass

    helpers = [_pool().submit(share) for _ in range(workers - 1)]
    try:
        share()
    finally:
        begun = [helper for helper in helpers if not helper.cancel()]
        errors = [helper.exception() for helper in begun]
    for error in errors:
        if error is not None:
            raise error
    return [results[number] for number in range(len(pieces))]


def map_processes(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], workers: int
) -> Iterator[Result]:
    """``work`` of every piece in ``workers`` processes, in order, with a few results in memory.

    Both must be picklable: a function of a module, or a ``functools.partial`` of one.
    """
    if workers <= 1:
        yield from map(work, pieces)
        return
    import multiprocessing  # here, since few programs need it
    from concurrent.futures import ProcessPoolExecutor

    import cv2

    context = multiprocessing.get_context("spawn")  # OpenCV's threads do not survive a fork
    # The pieces are spread over processes: OpenCV's threads inside each would only compete.
    with ProcessPoolExecutor(workers, context, cv2.setNumThreads, (1,)) as pool:
        yield from in_order(pool, work, pieces, 4 * workers)


def in_order(
    pool: Executor, work: Callable[[Piece], Result], pieces: Iterable[Piece], ahead: int
) -> Iterator[Result]:
    """``work`` of every piece in a pool, in order; at most ``ahead`` pieces wait or run."""
    pending: deque[Future[Result]] = deque()
    try:
        for piece in pieces:
            pending.append(pool.submit(work, piece))
            if len(pending) >= ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:  # an error must not wait for everything that is queued
        for future in pending:
            future.cancel()


@cache
def _pool() -> ThreadPoolExecutor:
    """Threads that are kept, because starting one can take longer than its work."""
    return ThreadPoolExecutor(MOST_THREADS, "hardnet")


# A forked process has none of its parent's threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
