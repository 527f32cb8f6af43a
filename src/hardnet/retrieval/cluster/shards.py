"""An index searched by many machines: its shards, each in its own process."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from threading import RLock
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, counted
from hardnet.image_files import as_path
from hardnet.retrieval import compiled
from hardnet.retrieval.cluster.describers import (
    DIED,
    SHARE,
    check_nodes,
    connected,
    on_node,
    reason,
)
from hardnet.retrieval.index import Boxes, Index, Views
from hardnet.retrieval.query import Query, Results, Scoring, Terms, order, query_terms
from hardnet.retrieval.search import DEFAULT_MODE, ImageFeatures, LocalShard, Mode, Ranking
from hardnet.retrieval.store.snapshot import Manifest, Snapshot
from hardnet.retrieval.verification import Verification, Verified

TIMEOUT = 30.0
"""Seconds that a shard may take for one answer; after that it is restarted."""

OPEN_SECONDS = 120.0
"""Seconds that a shard may take to start: a process, and perhaps a compiler."""

_STARTING = "its worker has not started yet"

_BYTES = 2**20
"""A shard reserves no cores, which would be idle while nobody searches. But Ray ignores the wanted
node of an actor that asks for no resource at all."""


class ShardedIndex(AbstractContextManager["ShardedIndex"]):
    """The shards of an index on the workers of a Ray cluster, searched as one.

    Hits and scores equal those of :class:`~hardnet.retrieval.index.Index` bit for bit. A shard
    whose process or node dies restarts on another; until then the other shards answer searches and
    ``Results.missing`` names it. Threads take turns.

    The folder must be on a disk that all nodes share, under the same path. There is one shard for
    each node by default; ``timeout`` is in seconds, for one answer.

    Raises:
        HardnetError: no index, no cluster, or a node that cannot take part.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        address: str = "local",
        *,
        shards: int | None = None,
        timeout: float = TIMEOUT,
        descriptor: str | None = None,
    ) -> None:
        if shards is not None and shards < 1:
            raise HardnetError(f"shards is {shards}: give at least 1, or None for one per node")
        if not timeout > 0:
            raise HardnetError(f"timeout is {timeout}: give seconds above 0")
        self.folder, self.timeout = as_path(folder).absolute(), timeout
        self._index = Index(self.folder, descriptor=descriptor)
        self._lock = RLock()
        self._slots: list[Slot] = []
        self._connection = ExitStack()
        self._ray = self._connection.enter_context(connected(address))
        try:
            nodes = [node["NodeID"] for node in check_nodes(self._ray, [self.folder])]
            count = shards or len(nodes)
            self._slots = [Slot(self._ray, nodes[n % len(nodes)]) for n in range(count)]
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def snapshot(self) -> Snapshot:
        return self._index.snapshot

    def __len__(self) -> int:
        return len(self._index)

    def search(
        self,
        image: Views,
        k: int = 10,
        box: Boxes = None,
        mode: str | Mode = DEFAULT_MODE,
    ) -> Results:
        """Find photos; see :meth:`hardnet.retrieval.index.Index.search`.

        Raises:
            HardnetError: no shard answers at all.
        """
        # Described once, however often shards are lost.
        views, seconds = self._index.described(image, box)
        with self._lock:
            while True:
                shards = self._answering()
                try:
                    results = self._index.search(views, k, box, mode, shards=shards)
                    return replace(results, seconds=seconds | results.seconds)
                except LostError:
                    continue  # without them

    def refresh(self) -> bool:
        """Switch to the newest commit; returns whether there was one.

        All shards change to the new generation before the next search.
        """
        with self._lock:
            changed = self._index.refresh()
            if changed:
                self._open()
            return changed

    def wait(self, seconds: float = OPEN_SECONDS) -> bool:
        """Wait until all shards are ready or some cannot be; returns whether all are."""
        with self._lock:
            deadline = monotonic() + seconds
            while True:
                self._look()
                away = [slot.opening for slot in self._slots if not slot.is_open]
                left = deadline - monotonic()
                if not away or left <= 0 or any(slot.is_refused for slot in self._slots):
                    return not away
                self._ray.wait(away, timeout=left)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the shards, and leave the cluster."""
        with self._lock:
            for slot in self._slots:
                self._ray.kill(slot.actor)
            self._slots = []
            self._connection.close()

    def _open(self) -> None:
        manifest = self._ray.put(self.snapshot.manifest)
        weights = [segment.features for segment in self.snapshot.segments]
        for slot, positions in zip(self._slots, divide(weights, len(self._slots)), strict=True):
            slot.open(str(self.folder), manifest, positions)
        self.wait()
        if not any(slot.is_open for slot in self._slots):
            raise self._nobody()

    def _look(self) -> None:
        """Take back shards that answer; go to the next generation if this one's files are gone."""
        for slot in self._slots:
            try:
                slot.look()
            except OutdatedError:
                if self._index.refresh():
                    self._open()
                    return
                slot.lose("files of the index are missing", refused=True)

    def _answering(self) -> ShardSet:
        self._look()
        if not any(slot.is_open for slot in self._slots):
            self._ray.wait([slot.opening for slot in self._slots], timeout=self.timeout)
            self._look()
        slots = [slot for slot in self._slots if slot.is_open and slot.positions]
        missing = self._missing()
        if missing and not slots:
            raise self._nobody()
        return ShardSet(self._ray, self.snapshot, slots, missing, self.timeout)

    def _missing(self) -> list[str]:
        named = []
        for number, slot in enumerate(self._slots, 1):
            if slot.is_open or not slot.positions:
                continue
            segments = [self.snapshot.manifest.segments[position] for position in slot.positions]
            images = counted(sum(segment.facts.images for segment in segments), "photo")
            names = ", ".join(segment.name for segment in segments)
            shard = f"shard {number} of {len(self._slots)}"
            named.append(f"{shard} ({images}, segments {names}; {slot.why_not})")
        return named

    def _nobody(self) -> HardnetError:
        why = "; ".join(dict.fromkeys(slot.why_not for slot in self._slots))
        return HardnetError(f"no shard of {self.folder} answers: {why}")


def divide(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Positions of ``weights`` in ``parts`` lists of about equal sums, the heaviest first."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    sums = [0] * parts
    for position in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        lightest = min(range(parts), key=lambda part: (sums[part], len(shares[part]), part))
        shares[lightest].append(position)
        sums[lightest] += weights[position]
    return [sorted(share) for share in shares]


class Slot:
    """One shard as the driver sees it: its actor, its segments, and whether it answers.

    After the actor has died or kept a query waiting, the slot tells it to open its segments and
    sends no query until that is answered: a query never waits for a shard known to be away. A
    process that hangs is restarted. ``node`` is Ray's id of the preferred node; if that dies, the
    shard runs on another.
    """

    def __init__(self, ray: Any, node: str) -> None:
        self._ray = ray
        # No retries: repeating the query without the shard is faster than waiting for its return.
        remote = ray.remote(
            num_cpus=0,
            memory=_BYTES,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=on_node(node, soft=True),
        )
        self.actor = remote(ShardActor).remote()
        self.positions: tuple[int, ...] = ()  # its segments of the snapshot
        self.is_open = self.is_refused = False  # it answered last time; it cannot open its segments
        self.why_not = _STARTING
        self.opening: Any = None  # what it will answer when it has opened them
        self.patience, self._since = OPEN_SECONDS, 0.0
        self._order: tuple[str, Manifest] | None = None

    def open(self, folder: str, manifest: Manifest, positions: Sequence[int]) -> None:
        """Give it segments; :meth:`look` notices when it has them."""
        self.positions = tuple(positions)
        self._order = folder, manifest
        self.lose(_STARTING)

    def lose(self, why: str, refused: bool = False) -> None:
        """It did not answer: send no query until it has opened its segments again."""
        assert self._order is not None
        self.is_open, self.is_refused, self.why_not = False, refused, why
        self.opening = self.actor.open.remote(*self._order, self.positions)
        self._since = monotonic()

    def restart(self, why: str) -> None:
        """It hangs: restart its process, even a stopped one."""
        self._ray.kill(self.actor, no_restart=False)
        self.lose(why)

    def look(self) -> None:
        """Notice whether it has opened its segments; OutdatedError if the files are gone."""
        if self.is_open:
            return
        if not self._ray.wait([self.opening], timeout=0)[0]:
            if monotonic() - self._since > self.patience:
                self.restart(f"its worker did not open its segments within {self.patience:g} s")
            return
        try:
            self._ray.get(self.opening)
            self.is_open, self.why_not = True, ""
        except OutdatedError:
            raise
        except (HardnetError, self._ray.exceptions.RayError) as error:
            self.lose(reason(error), refused=isinstance(error, HardnetError))


class LostError(Exception):
    """Shards did not answer, their process died or they hang: search again without them."""


class ShardSet:
    """Several shards that have all opened one generation, as one ``search.Shard``.

    All must answer within ``timeout`` seconds; ``missing`` names the absent ones.
    """

    def __init__(
        self, ray: Any, snapshot: Snapshot, slots: list[Slot], missing: list[str], timeout: float
    ) -> None:
        self.missing = missing
        self._ray, self._snapshot, self._slots, self._timeout = ray, snapshot, slots, timeout
        self._owner = {position: slot for slot in slots for position in slot.positions}

    def score(self, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        shared = self._ray.put(terms)
        answers = self._ask(self._slots, lambda slot: ("score", shared, scoring, limit))
        images = np.concatenate([np.zeros(0, np.int64), *(one for one, _ in answers)])
        scores = np.concatenate([np.zeros(0, np.float32), *(one for _, one in answers)])
        return order(images, scores, limit)

    def verify(
        self, query: Query, images: NDArray[np.int64], verification: Verification
    ) -> list[Verified]:
        shared = self._ray.put(query)
        return self._by_owner(images, lambda some: ("verify", shared, some, verification))

    def reliable(self, query: Query, images: NDArray[np.int64], h: int) -> NDArray[np.int64]:
        shared = self._ray.put(query)
        counts = self._by_owner(images, lambda some: ("reliable", shared, some, h))
        return np.array(counts, np.int64).reshape(-1, 2)

    def features_of(self, images: NDArray[np.int64]) -> list[ImageFeatures]:
        return self._by_owner(images, lambda some: ("features_of", some))

    def names(self, images: NDArray[np.int64]) -> list[str]:
        return [self._snapshot.name(int(image)) for image in images]

    def _by_owner(
        self, images: NDArray[np.int64], question: Callable[[NDArray[np.int64]], tuple[Any, ...]]
    ) -> list[Any]:
        numbers = np.asarray(images, np.int64)
        positions = np.searchsorted(self._snapshot.bases, numbers, side="right") - 1
        places: dict[Slot, list[int]] = {}
        for place, position in enumerate(positions.tolist()):
            places.setdefault(self._owner[position], []).append(place)
        answers = self._ask(list(places), lambda slot: question(numbers[places[slot]]))
        joined: list[Any] = [None] * len(numbers)
        for some, answer in zip(places.values(), answers, strict=True):
            for place, one in zip(some, answer, strict=True):
                joined[place] = one
        return joined

    def _ask(self, slots: Sequence[Slot], question: Callable[[Slot], tuple[Any, ...]]) -> list[Any]:
        """The answer of each slot to a method and its arguments, asked at the same time.

        Raises:
            LostError: some died, hang or do not know the generation; they are lost now.
        """
        if not slots:
            return []
        generation = self._snapshot.generation
        asked = [slot.actor.answer.remote(generation, *question(slot)) for slot in slots]
        ready = set(self._ray.wait(asked, num_returns=len(asked), timeout=self._timeout)[0])
        answers: list[Any] = []
        for slot, answer in zip(slots, asked, strict=True):
            if answer not in ready:
                slot.restart(f"no answer within {self._timeout:g} s")
                continue
            try:
                answers.append(self._ray.get(answer))
            except OutdatedError:  # its process was restarted between two calls
                slot.lose(DIED)
            except HardnetError as error:
                raise HardnetError(reason(error)) from error
            except self._ray.exceptions.RayTaskError:
                raise  # a bug, which would also fail the next attempt
            except self._ray.exceptions.RayError as error:
                slot.lose(reason(error))
        if len(answers) < len(slots):
            raise LostError
        return answers


class OutdatedError(HardnetError):
    """The shard does not have the requested generation, or can no longer read it."""


class ShardActor:
    """The process of a shard: some segments of one generation of an index.

    When its process or node dies, Ray restarts it empty on any node with room; the caller must then
    call :meth:`open` again. Every call names its generation.
    """

    def __init__(self) -> None:
        self._shard: LocalShard | None = None

    def open(self, folder: str, manifest: Manifest, positions: tuple[int, ...]) -> None:
        """Map segments of a generation, and search once so that no query waits for compilation.

        If files of the generation are gone, that is an OutdatedError.
        """
        node = socket.gethostname()
        if not Path(folder).is_dir():
            raise HardnetError(f"node {node} does not see the folder {folder}: put it {SHARE}")
        try:
            snapshot = Snapshot(Path(folder), manifest)
        except FileNotFoundError as error:
            raise OutdatedError(f"node {node} does not see {error.filename}") from error
        shard = LocalShard(snapshot, positions)
        compiled.load()
        if filled := [p for p in positions if snapshot.segments[p].features]:
            local = int(np.flatnonzero(snapshot.segments[filled[0]].feature_counts)[0])
            images = np.array([snapshot.bases[filled[0]] + local], np.int64)
            query = shard.features_of(images)[0].as_query()
            for scoring in (Scoring("bow"), Scoring("he")):
                shard.score(query_terms(query, scoring), scoring, 1)
            shard.verify(query, images, Verification())
        self._shard = shard

    def answer(self, generation: int, method: str, *question: Any) -> Any:
        """What :class:`~hardnet.retrieval.search.LocalShard` answers for its segments."""
        if self._shard is None or self._shard.snapshot.generation != generation:
            raise OutdatedError(f"this shard does not hold generation {generation}")
        return getattr(self._shard, method)(*question)
