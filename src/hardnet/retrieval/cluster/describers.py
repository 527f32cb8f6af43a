"""Photos described by all workers of a cluster; the driver writes the index."""

from __future__ import annotations

import heapq
import os
import socket
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.build import BuildReport, build
from hardnet.retrieval.cluster.connect import Connection, check_nodes, reason, working_nodes
from hardnet.retrieval.photos import IndexSettings, compare, quantise, weights_of
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary

CORES = 4
"""Of one worker process: more share a network, fewer keep more photos in memory."""


def build_on_cluster(
    folder: str | os.PathLike[str],
    photos: Mapping[str, Path],
    settings: IndexSettings | None = None,
    *,
    address: str = "local",
    workers: int | None = None,
    **options: Any,
) -> BuildReport:
    """Build an index, or resume one, as :func:`~hardnet.retrieval.build.build` does.

    The index is bit for bit the same. The photos must be on a disk that all nodes share,
    under the same path; the folder of the index need not be. ``workers`` are processes, by default
    as many as the cores of the cluster can keep busy.
    """
    settings = settings or IndexSettings()
    with describers_on(address, settings, workers) as describers:
        return build(Path(folder), photos, settings, describing=describers, **options)


@contextmanager
def describers_on(
    address: str, settings: IndexSettings, workers: int | None = None
) -> Iterator[Describers]:
    """Workers of the cluster at ``address``, all checked for compatibility."""
    with Connection(address) as connection:
        check_nodes(connection.ray)
        with Describers(connection.ray, settings, workers) as describers:
            yield describers


class Describers(AbstractContextManager["Describers"]):
    """Worker processes on all nodes of a cluster, each with its own network."""

    def __init__(self, ray: Any, settings: IndexSettings, workers: int | None = None) -> None:
        self._ray = ray
        cores = [int(node["Resources"]["CPU"]) for node in working_nodes(ray)]
        own = max(min(CORES, *cores), 1)
        count = workers or max(sum(cores) // own, 1)
        _, describe = settings.load()
        # We, not Ray, repeat the batches of a dead worker: other workers are free.
        remote = ray.remote(
            num_cpus=own, max_restarts=-1, max_task_retries=0, scheduling_strategy="SPREAD"
        )(DescribeActor)
        weights = weights_of(settings, describe)
        self.actors = [remote.remote(settings, weights, own) for _ in range(count)]

    def features(self, images: Sequence[Path]) -> Generator[tuple[Path, Any], None, None]:
        """Features of image files; see :func:`hardnet.pipeline.extract_many`."""
        photos = [Photo(os.path.abspath(image), "", {}) for image in images]
        results = self._run(photos, images, lambda actor, batch: actor.features.remote(batch))
        with closing(results):
            for image, result in zip(images, results, strict=True):
                if isinstance(result, Features):
                    result = replace(result, path=str(image))
                yield image, result

    def indexed(
        self,
        photos: Mapping[str, Path],
        states: Mapping[str, Mapping[str, int]],
        vocabulary: Vocabulary,
    ) -> Generator[tuple[str, IndexedImage | HardnetError], None, None]:
        """What an index keeps of photos, as :class:`~hardnet.retrieval.photos.Describing` says."""
        sent = [
            Photo(os.path.abspath(path), name, dict(states[name])) for name, path in photos.items()
        ]
        # A copy without values cached by the original.
        shared = self._ray.put(replace(vocabulary))
        results = self._run(
            sent,
            list(photos.values()),
            lambda actor, batch: actor.indexed.remote(batch, vocabulary.digest, shared),
        )
        with closing(results):
            yield from zip(photos, results, strict=True)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes."""
        for actor in self.actors:
            self._ray.kill(actor)
        self.actors = []

    def _run(
        self,
        photos: Sequence[Photo],
        images: Sequence[Path],
        ask: Callable[[Any, list[Photo]], Any],
    ) -> Generator[Any, None, None]:
        """Results of photos, in order; HardnetError for those that could not be described."""
        batch = max(min(BATCH, -(-len(photos) // len(self.actors))), 1)
        results = dispatch(
            self._ray,
            self.actors,
            len(photos),
            lambda actor, places: ask(actor, [photos[place] for place in places]),
            lambda place, why: Failure(
                f"{images[place]} cannot be described: {why}, repeatedly; use a smaller copy"
            ),
            batch,
        )
        with closing(results):
            for photo, image, result in zip(photos, images, results, strict=True):
                yield _error(photo, image, result) if isinstance(result, Failure) else result


def _error(photo: Photo, image: Path, failure: Failure) -> HardnetError:
    """The error of a photo, with the path that the user gave."""
    if failure.unseen_by and os.path.exists(image):
        raise HardnetError(
            f"node {failure.unseen_by} does not see {photo.path}: put the photos on a disk that "
            "all nodes share, under the same path"
        )
    return HardnetError(failure.why.replace(photo.path, str(image)))


@dataclass(frozen=True)
class Photo:
    """A photo to describe."""

    path: str  # of the file, absolute: a worker has its own working folder
    name: str  # in the index
    state: Mapping[str, int]  # of the file; see ``image_files.state_of``


@dataclass(frozen=True)
class Failure:
    """Why a photo could not be described."""

    why: str  # for display
    unseen_by: str = ""  # the node that does not see the file at all; "" if it was read


class DescribeActor:
    """Describes photos with one network, using the driver's settings and weights."""

    def __init__(self, settings: IndexSettings, weights: Mapping[str, Any], cores: int) -> None:
        self._settings, self._weights, self._cores = settings, weights, cores
        self._loaded: tuple[Any, Any] | None = None
        self._words: tuple[str, Vocabulary] | None = None

    def ready(self) -> str:
        """The name of the node, once the network is loaded.

        Raises:
            HardnetError: this node cannot load it, or has other weights of that name.
        """
        node = socket.gethostname()
        try:
            self._load()
        except Exception as error:  # whatever it is, users must know which node
            raise HardnetError(f"node {node}: {error}") from error
        return node

    def features(self, photos: Sequence[Photo]) -> list[Features | Failure]:
        """Features of photos, or why a photo has none."""
        import cv2

        cv2.setNumThreads(self._cores)
        paths = [Path(photo.path) for photo in photos]
        with closing(self._settings.extract(paths, self._load(), self._cores)) as results:
            return [_plain(path, result) for path, result in results]

    def indexed(
        self, photos: Sequence[Photo], digest: str, vocabulary: Vocabulary
    ) -> list[IndexedImage | Failure]:
        """The index entries of photos, or why a photo has none."""
        # Keep the first vocabulary: each batch brings a new copy without cached values.
        if self._words is None or self._words[0] != digest:
            self._words = digest, vocabulary
        words = self._words[1]
        return [
            found if isinstance(found, Failure) else quantise(photo.name, found, words, photo.state)
            for photo, found in zip(photos, self.features(photos), strict=True)
        ]

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            detect, describe = self._settings.load()
            compare(self._weights, weights_of(self._settings, describe), "the index")
            if hasattr(describe, "threads"):
                describe.threads = self._cores
            self._loaded = detect, describe
        return self._loaded


def _plain(path: Path, result: Features | HardnetError) -> Features | Failure:
    """An error that can be sent to the driver, which not all can."""
    if isinstance(result, HardnetError):
        return Failure(str(result), "" if os.path.exists(path) else socket.gethostname())
    return replace(result, pixels=None)


BATCH = 8
"""Photos per batch: seconds of work, a few megabytes of results."""

IN_HAND = 2
"""Batches queued per worker, so that it never waits for the driver."""

AHEAD = 4
"""Finished batches per worker that may wait for an earlier one: limits memory."""

ATTEMPTS = 3
"""How often a worker may die with the same photo before the photo is blamed."""


@dataclass(order=True)
class Batch:
    """Positions of items that are processed together, and how often that has failed."""

    places: tuple[int, ...]
    attempts: int = field(default=0, compare=False)


@dataclass(eq=False)
class _Worker:
    """A worker, its current batches, and the answer that shows it is back after dying."""

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
    """Results of ``count`` items, in order, even if workers die.

    Ray's ActorPool would leave workers idle that finish early, and lose those that die. Here, other
    workers repeat the batches of one that died. A batch lost twice is processed item by item; an
    item that has killed three workers is given up.

    Args:
        ray: the module, connected.
        actors: with a method ``ready``.
        count: number of items.
        send: asks an actor for the results of the items at these places.
        failed: the result of an item that was given up, from its place and the reason.
        batch: items at once.
    """
    todo = [
        Batch(tuple(range(first, min(first + batch, count)))) for first in range(0, count, batch)
    ]  # a heap: the earliest is needed first
    workers = [_Worker(actor, actor.ready.remote()) for actor in actors]
    done: dict[int, Any] = {}

    def collect(worker: _Worker, ready: set[Any]) -> None:
        """Collect what a worker has finished; lost batches go back to the queue."""
        for ref in [worker.waking, *worker.in_hand]:
            if ref not in ready:
                continue
            given = worker.in_hand.pop(ref, None)
            try:
                answer = ray.get(ref)
                if given is None:
                    worker.waking = None
                else:
                    done.update(zip(given.places, answer, strict=True))
            except HardnetError as error:
                raise HardnetError(reason(error)) from error
            except ray.exceptions.RayTaskError:
                raise  # a bug: other workers would fail as well
            except ray.exceptions.RayError as error:
                worker.waking = worker.actor.ready.remote()
                if given is not None:
                    again(given, reason(error))

    def again(lost: Batch, why: str) -> None:
        lost.attempts += 1
        [place, *others] = lost.places
        if not others and lost.attempts >= ATTEMPTS:
            done[place] = failed(place, why)
        elif others and lost.attempts >= 2:
            for one in lost.places:
                heapq.heappush(todo, Batch((one,), 1))
        else:
            heapq.heappush(todo, lost)

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
            collect(worker, set(ready))
        while following in done:
            yield done.pop(following)
            following += 1


def _may_take(worker: _Worker, batch: Batch) -> bool:
    """A batch that was lost before runs alone, so that no other is blamed if it fails again."""
    if worker.waking is not None:
        return False
    if batch.attempts or any(other.attempts for other in worker.in_hand.values()):
        return not worker.in_hand
    return len(worker.in_hand) < IN_HAND
