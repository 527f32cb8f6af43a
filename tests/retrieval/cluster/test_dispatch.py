"""Batches among workers that die, with a Ray that is made of dictionaries."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.describers import AHEAD, ATTEMPTS, Failure, dispatch

exceptions = pytest.importorskip(
    "ray.exceptions", reason='TESTS OF THE CLUSTER DO NOT RUN: pip install "hardnet[cluster]"'
)


class FakeRay:
    """Work is done when it is waited for; a worker that dies takes all it has in hand with it."""

    exceptions = exceptions

    def __init__(self, work: Callable[[tuple[int, ...]], list[Any] | None]) -> None:
        self.work = work
        self.queues: dict[int, list[Any]] = {}
        self.answers: dict[Any, Any] = {}
        self.sent: list[tuple[int, ...]] = []
        self._random = random.Random(0)

    def actor(self, number: int) -> Any:
        self.queues[number] = []
        return SimpleNamespace(
            ready=SimpleNamespace(remote=lambda: self._queue(number, None)),
            describe=SimpleNamespace(remote=lambda paths: self._send(number, paths)),
        )

    def _send(self, number: int, paths: list[str]) -> Any:
        places = tuple(map(int, paths))
        self.sent.append(places)
        return self._queue(number, places)

    def _queue(self, number: int, places: tuple[int, ...] | None) -> Any:
        ref = (len(self.answers) + sum(map(len, self.queues.values())), number, places)
        self.queues[number].append(ref)
        return ref

    def wait(self, refs: list[Any], num_returns: int) -> tuple[list[Any], list[Any]]:
        assert refs, "waits for nothing, for ever"
        number = self._random.choice(sorted(n for n, queue in self.queues.items() if queue))
        [ref, *rest] = self.queues[number]
        self.queues[number] = rest
        answer = "node" if ref[2] is None else self.work(ref[2])
        died = exceptions.ActorUnavailableError("died", None)
        for one in [ref] if answer is not None else [ref, *rest]:
            self.answers[one] = died if answer is None else answer
        if answer is None:
            self.queues[number] = []
        ready = [one for one in refs if one in self.answers]
        return ready, [one for one in refs if one not in self.answers]

    def get(self, ref: Any) -> Any:
        if isinstance(self.answers[ref], Exception):
            raise self.answers[ref]
        return self.answers[ref]


def run(ray: FakeRay, count: int, actors: int = 3) -> Generator[Any, None, None]:
    """Photos that are called by their places."""
    workers = [ray.actor(number) for number in range(actors)]
    return dispatch(ray, workers, [str(place) for place in range(count)], batch=4)


def test_results_come_in_order_whoever_is_first() -> None:
    ray = FakeRay(lambda places: [place * place for place in places])
    assert list(run(ray, 50)) == [place * place for place in range(50)]
    assert sorted(ray.sent) == [tuple(range(i, min(i + 4, 50))) for i in range(0, 50, 4)]


def test_nothing_to_do() -> None:
    assert list(run(FakeRay(lambda places: []), 0)) == []


def test_work_of_the_dead_is_done_again() -> None:
    chance = random.Random(1)
    ray = FakeRay(lambda places: None if chance.random() < 0.3 else [-place for place in places])
    results = list(run(ray, 60))
    done = [place for place, result in enumerate(results) if result == -place]
    assert len(done) >= 58  # three deaths in a row on one photo are rare, not impossible
    assert len(ray.sent) > 15


def test_a_photo_that_kills_is_given_up_and_no_other() -> None:
    ray = FakeRay(lambda places: None if 9 in places else [-place for place in places])
    results = list(run(ray, 40))
    why = "its worker died and is being restarted, repeatedly"
    assert results[9] == Failure(f"9 cannot be described: {why}; use a smaller copy")
    assert [r for place, r in enumerate(results) if place != 9] == [
        -place for place in range(40) if place != 9
    ]
    assert ray.sent.count((9,)) == ATTEMPTS


def test_no_more_is_done_ahead_than_memory_should_hold() -> None:
    ray = FakeRay(lambda places: list(places))
    results = run(ray, 1000, actors=2)
    assert next(results) == 0
    assert max(max(places) for places in ray.sent) < (AHEAD + 1) * 2 * 4
    results.close()


def test_a_worker_that_cannot_work_ends_it() -> None:
    ray = FakeRay(lambda places: list(places))
    actors = [ray.actor(0)]
    actors[0].ready.remote = lambda: (
        ray.answers.setdefault("no", HardnetError("node x: no")) and ("no")
    )
    ray.queues[0].append((0, 0, None))
    with pytest.raises(HardnetError, match="node x: no"):
        list(dispatch(ray, actors, ["0", "1", "2"]))
