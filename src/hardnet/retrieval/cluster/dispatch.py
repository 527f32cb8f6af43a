"""Batches of work to workers that may die, and the results in order."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hardnet.errors import HardnetError
from hardnet.retrieval.cluster.slot import reason

BATCH = 8
"""Photos that a worker is given at once: seconds of work, a few megabytes of results."""

IN_HAND = 2
"""Batches of one worker: it must not wait for the driver between two."""

AHEAD = 4
"""Batches per worker that may be done before the first unfinished one: what memory must hold."""

ATTEMPTS = 3
"""So often a single photo may be with a worker that dies; then it is the photo's fault."""


@dataclass(order=True)
class Batch:
    """Places of items that are worked on together, and how often that was in vain."""

    places: tuple[int, ...]
    attempts: int = field(default=0, compare=False)


@dataclass(eq=False)
class _Worker:
    """A worker, what it has in hand, and the answer that shows it is back if it died."""

    actor: Any
    waking: Any
    in_hand: dict[Any, Batch] = field(default_factory=dict)


def dispatch(
    ray: Any,
    actors: Sequence[Any],
    count: int,
    send: Callable[[Any, tuple[int, ...]], Any],
    failed: Callable[[int, str], Any],
    batch: int = BATCH,
) -> Generator[Any, None, None]:
    """Results of ``count`` items, in order, whatever happens to workers.

    What a worker that dies had in hand is done again by others. A batch that was lost twice is
    done item by item; an item with which a worker has died three times is given up.

    Args:
        ray: the module, connected.
        actors: with a method ``ready``.
        count: number of items.
        send: asks an actor for the results of the items at these places.
        failed: the result of an item that was given up, from its place and the reason.
        batch: items at once.

    Raises:
        HardnetError: a worker cannot do the work at all.
    """
    todo = [
        Batch(tuple(range(first, min(first + batch, count)))) for first in range(0, count, batch)
    ]  # a heap: the earliest is needed first
    workers = [_Worker(actor, actor.ready.remote()) for actor in actors]
    done: dict[int, Any] = {}
    following = 0
    while following < count:
        for worker in workers:
            limit = following + AHEAD * len(workers) * batch
            while todo and todo[0].places[0] < limit and _may_take(worker, todo[0]):
                given = heapq.heappop(todo)
                worker.in_hand[send(worker.actor, given.places)] = given
        refs = [ref for worker in workers for ref in worker.in_hand]
        refs += [worker.waking for worker in workers if worker.waking is not None]
        ready, _ = ray.wait(refs, num_returns=1)
        for worker in workers:
            _collect(ray, worker, set(ready), todo, done, failed)
        while following in done:
            yield done.pop(following)
            following += 1


def _may_take(worker: _Worker, batch: Batch) -> bool:
    """A batch that was lost before is done alone: no other shall be blamed for its deaths."""
    if worker.waking is not None:
        return False
    if batch.attempts or any(other.attempts for other in worker.in_hand.values()):
        return not worker.in_hand
    return len(worker.in_hand) < IN_HAND


def _collect(
    ray: Any,
    worker: _Worker,
    ready: set[Any],
    todo: list[Batch],
    done: dict[int, Any],
    failed: Callable[[int, str], Any],
) -> None:
    """Take what a worker has finished; what it lost goes back."""
    for ref in [worker.waking, *worker.in_hand]:
        if ref not in ready:
            continue
        batch = worker.in_hand.pop(ref, None)
        try:
            answer = ray.get(ref)
            if batch is None:
                worker.waking = None
            else:
                done.update(zip(batch.places, answer, strict=True))
        except HardnetError as error:
            raise HardnetError(reason(error)) from error
        except ray.exceptions.RayTaskError:
            raise  # a fault in the program: others would have it as well
        except ray.exceptions.RayError as error:
            worker.waking = worker.actor.ready.remote()
            if batch is not None:
                _again(batch, reason(error), todo, done, failed)


def _again(
    batch: Batch,
    why: str,
    todo: list[Batch],
    done: dict[int, Any],
    failed: Callable[[int, str], Any],
) -> None:
    batch.attempts += 1
    [place, *others] = batch.places
    if not others and batch.attempts >= ATTEMPTS:
        done[place] = failed(place, why)
    elif others and batch.attempts >= 2:
        for one in batch.places:
            heapq.heappush(todo, Batch((one,), 1))
    else:
        heapq.heappush(todo, batch)
