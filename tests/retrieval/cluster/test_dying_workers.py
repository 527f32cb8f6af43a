"""Batches among workers that die, with a Ray that is a list."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from typing import Any

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.describers import ATTEMPTS, KILLED, Failure, in_order

exceptions = pytest.importorskip(
    "ray.exceptions", reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"'
)


class FakeRay:
    """Work is done when it is waited for, unless its worker dies."""

    exceptions = exceptions

    def __init__(self, dies: Callable[[Sequence[str]], bool] = lambda photos: False) -> None:
        self.dies = dies
        self.asked: list[Sequence[str]] = []
        self.cancelled: list[Sequence[str]] = []

    def ask(self, photos: Sequence[str]) -> Sequence[str]:
        self.asked.append(photos)
        return photos

    def get(self, photos: Sequence[str]) -> list[str]:
        if self.dies(photos):
            raise exceptions.WorkerCrashedError
        return [f"done {photo}" for photo in photos]

    def cancel(self, photos: Sequence[str], force: bool) -> None:
        self.cancelled.append(photos)

    def run(self, count: int) -> Generator[Any, None, None]:
        photos = [str(number) for number in range(count)]
        batches = [photos[first : first + 4] for first in range(0, count, 4)]
        return in_order(self, self.ask, batches, ahead=6)


def done(count: int) -> list[str]:
    return [f"done {number}" for number in range(count)]


def test_results_come_in_order() -> None:
    ray = FakeRay()
    assert list(ray.run(50)) == done(50)
    assert [len(photos) for photos in ray.asked] == [4] * 12 + [2]
    assert list(FakeRay().run(0)) == []


def test_work_of_the_dead_is_done_again() -> None:
    chance = random.Random(1)
    ray = FakeRay(lambda photos: chance.random() < 0.3)
    results = list(ray.run(60))
    good = [one for one, expected in zip(results, done(60), strict=True) if one == expected]
    assert len(good) >= 58  # four deaths in a row on one photo are rare, not impossible
    assert len(ray.asked) > 15


def test_a_photo_that_kills_is_given_up_and_no_other() -> None:
    ray = FakeRay(lambda photos: "9" in photos)
    results = list(ray.run(40))
    failure = results[9]
    assert isinstance(failure, Failure)
    assert failure.why == f"9 cannot be described: {KILLED}"
    assert results[:9] + results[10:] == done(40)[:9] + done(40)[10:]
    assert ray.asked.count(["9"]) == ATTEMPTS


def test_no_more_is_done_ahead_than_memory_should_hold() -> None:
    ray = FakeRay()
    results = ray.run(1000)
    assert next(results) == "done 0"
    assert len(ray.asked) == 6
    results.close()
    assert ray.cancelled == ray.asked[1:], "nobody waits for it"


def test_a_worker_that_cannot_work_ends_it() -> None:
    def cannot(photos: Sequence[str]) -> bool:
        raise HardnetError("node x: no")

    with pytest.raises(HardnetError, match="node x: no"):
        list(FakeRay(cannot).run(3))
