"""Pieces of work on several threads."""

from __future__ import annotations

import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import sleep

import cv2
import pytest

from hardnet.threads import interrupts_held, map_threads


@pytest.fixture(autouse=True)
def four_threads() -> Iterator[None]:
    before = cv2.getNumThreads()
    cv2.setNumThreads(4)
    yield
    cv2.setNumThreads(before)


def square(number: int) -> int:
    return number**2


def test_results_are_in_order() -> None:
    assert map_threads(square, range(100)) == [number**2 for number in range(100)]
    assert map_threads(square, []) == []


def test_pieces_run_at_the_same_time() -> None:
    together = threading.Barrier(4, timeout=20)  # breaks unless four threads come
    assert len(set(map_threads(lambda _: (together.wait(), threading.get_ident())[1], "abcd"))) == 4


def test_threads_are_used_again() -> None:
    def names() -> set[str]:
        together = threading.Barrier(4, timeout=20)
        return set(
            map_threads(lambda _: (together.wait(), threading.current_thread().name)[1], "abcd")
        )

    names()
    count = threading.active_count()
    names()
    assert threading.active_count() == count


def test_pieces_of_pieces_do_not_wait_for_each_other() -> None:
    def inner(number: int) -> int:
        return sum(map_threads(lambda n: sum(map_threads(square, range(n))), range(number)))

    expected = [sum(sum(i**2 for i in range(n)) for n in range(number)) for number in range(40)]
    assert map_threads(inner, range(40)) == expected


@pytest.mark.parametrize("bad", [0, 1, 30])
def test_an_error_comes_through(bad: int) -> None:
    done = []

    def work(number: int) -> None:
        if number == bad:
            raise ValueError(f"piece {number}")
        sleep(0.001)
        done.append(number)

    with pytest.raises(ValueError, match=f"piece {bad}"):
        map_threads(work, range(2000))
    assert len(done) < 1999  # the others stopped
    assert map_threads(square, range(5)) == [0, 1, 4, 9, 16]


def _in_child(answers: multiprocessing.Queue[list[int]]) -> None:
    answers.put(map_threads(square, range(8)))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_has_threads_of_its_own() -> None:
    map_threads(square, range(8))  # the parent's are there
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    child = context.Process(target=_in_child, args=(answers,))
    child.start()
    try:
        assert answers.get(timeout=30) == [number**2 for number in range(8)]
    finally:
        child.join(10)
        if child.is_alive():
            child.kill()
    assert child.exitcode == 0


def test_ctrl_c_waits_for_the_end_of_the_block() -> None:
    reached = []

    def work() -> None:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            work()
    finally:
        signal.signal(signal.SIGINT, before)
    assert reached


def test_interrupts_are_left_alone_in_other_threads() -> None:
    def hold() -> None:
        with interrupts_held():
            pass

    with ThreadPoolExecutor(1) as pool:
        pool.submit(hold).result()
