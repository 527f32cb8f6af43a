"""An index that is searched by many machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from threading import RLock
from time import monotonic
from typing import Any

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.closable import Closable
from hardnet.retrieval.cluster.connect import Connection
from hardnet.retrieval.cluster.nodes import check_nodes
from hardnet.retrieval.cluster.shard_set import LostError, ShardSet
from hardnet.retrieval.cluster.slot import OPEN_SECONDS, Slot
from hardnet.retrieval.index import Index, QueryPhoto
from hardnet.retrieval.results import Box, Results
from hardnet.retrieval.search import DEFAULT_MODE, Mode
from hardnet.retrieval.store.snapshot import Snapshot
from hardnet.storage import as_path

TIMEOUT = 30.0
"""Seconds that a shard may take for one answer; after that it is started anew."""


class ShardedIndex(Closable):
    """The shards of an index on the workers of a Ray cluster, searched as one.

    Hits and scores are those of :class:`~hardnet.retrieval.index.Index`, to the last bit. A shard
    whose process or node dies comes back on another; until then searches are answered by the
    others and ``Results.missing`` names it. Threads take turns.

    The folder must be on a disk that all nodes share, under the same path.

    Args:
        folder: of the index.
        address: of the cluster; see :class:`~hardnet.retrieval.cluster.connect.Connection`.
        shards: how many; by default one for each node.
        timeout: seconds that a shard may take for one answer.
        descriptor: see :class:`~hardnet.retrieval.index.Index`.

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
        self.folder = as_path(folder).absolute()
        self.timeout = timeout
        self._index = Index(self.folder, descriptor=descriptor)
        self._lock = RLock()
        self._connection = Connection(address)
        self._slots: list[Slot] = []
        try:
            self._ray = self._connection.ray
            nodes = check_nodes(self._ray, [self.folder])
            count = shards or len(nodes)
            self._slots = [Slot(self._ray, nodes[n % len(nodes)]) for n in range(count)]
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def snapshot(self) -> Snapshot:
        """The generation that is searched."""
        return self._index.snapshot

    def __len__(self) -> int:
        return len(self._index)

    @property
    def missing(self) -> list[str]:
        """The shards that would not answer now, for people."""
        with self._lock:
            self._look()
            return self._missing()

    def search(
        self,
        image: QueryPhoto | Sequence[QueryPhoto],
        k: int = 10,
        box: Box | Sequence[Box | None] | None = None,
        mode: str | Mode = DEFAULT_MODE,
    ) -> Results:
        """Find photos; see :meth:`hardnet.retrieval.index.Index.search`.

        Raises:
            HardnetError: no shard answers at all.
        """
        images: list[Any] = list(image) if isinstance(image, list | tuple) else [image]
        seconds: dict[str, float] = {}
        views = [self._described(one, seconds) for one in images]
        with self._lock:
            while True:
                shards = self._answering()
                try:
                    results = self._index.search(views, k, box, mode, shards=shards)
                    return replace(results, seconds=seconds | results.seconds)
                except LostError as error:
                    for slot, why in error.lost.items():
                        slot.lose(why)
                    for slot, why in error.hanging.items():
                        slot.restart(why)

    def refresh(self) -> bool:
        """Show what others have committed since; returns whether there was anything.

        All shards change to the new generation before the next search.
        """
        with self._lock:
            changed = self._index.refresh()
            if changed:
                self._open()
            return changed

    def wait(self, seconds: float = OPEN_SECONDS) -> bool:
        """Wait until all shards are there, or some cannot be; whether they are."""
        with self._lock:
            deadline = monotonic() + seconds
            while True:
                self._look()
                away = [slot.opening for slot in self._slots if not slot.is_open]
                left = deadline - monotonic()
                if not away or left <= 0 or any(slot.is_refused for slot in self._slots):
                    return not away
                self._ray.wait([one for one in away if one is not None], timeout=left)

    def close(self) -> None:
        """End the shards, and leave the cluster."""
        with self._lock:
            for slot in self._slots:
                slot.stop()
            self._slots = []
            self._connection.close()

    def _described(self, image: QueryPhoto, seconds: dict[str, float]) -> Features:
        """Features of a query image, once, however often shards get lost."""
        if isinstance(image, Features):
            return image
        found = self._index.extract(image)
        for stage, time in found.seconds.items():
            seconds[stage] = seconds.get(stage, 0.0) + time
        return found

    def _open(self) -> None:
        """Give every shard its segments of the present generation, and wait for them."""
        snapshot = self.snapshot
        manifest = self._ray.put(snapshot.manifest)
        weights = [segment.features for segment in snapshot.segments]
        for slot, positions in zip(self._slots, divide(weights, len(self._slots)), strict=True):
            slot.open(str(self.folder), manifest, positions)
        self.wait()
        if not any(slot.is_open for slot in self._slots):
            raise HardnetError(self._nobody())

    def _look(self) -> None:
        """Notice who has come back; go to the next generation if this one's files are gone."""
        for slot in self._slots:
            slot.look()
        if any(slot.is_outdated for slot in self._slots):
            if not self._index.refresh():
                [gone, *_] = [slot for slot in self._slots if slot.is_outdated]
                gone.lose("files of the index are missing")
            else:
                self._open()

    def _answering(self) -> ShardSet:
        """The shards that are there; if none is, they get some time."""
        self._look()
        if not any(slot.is_open for slot in self._slots):
            away = [slot.opening for slot in self._slots if slot.opening is not None]
            self._ray.wait(away, timeout=self.timeout)
            self._look()
        slots = [slot for slot in self._slots if slot.is_open and slot.positions]
        missing = self._missing()
        if missing and not slots:
            raise HardnetError(self._nobody())
        return ShardSet(self._ray, self.snapshot, slots, missing, self.timeout)

    def _missing(self) -> list[str]:
        entries = self.snapshot.manifest.segments
        named = []
        for number, slot in enumerate(self._slots, 1):
            if slot.is_open or not slot.positions:
                continue
            segments = [entries[position] for position in slot.positions]
            images = sum(segment.facts.images for segment in segments)
            names = ", ".join(segment.name for segment in segments)
            named.append(
                f"shard {number} of {len(self._slots)} ({images} photos, segments {names}; "
                f"{slot.why_not})"
            )
        return named

    def _nobody(self) -> str:
        why = "; ".join(dict.fromkeys(slot.why_not for slot in self._slots))
        return f"no shard of {self.folder} answers: {why}"


def divide(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Positions of ``weights`` in ``parts`` lists of about equal sums, the heaviest first."""
    shares: list[list[int]] = [[] for _ in range(parts)]
    sums = [0] * parts
    for position in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        lightest = min(range(parts), key=lambda part: (sums[part], len(shares[part]), part))
        shares[lightest].append(position)
        sums[lightest] += weights[position]
    return [sorted(share) for share in shares]
