"""A shard in a process of its own: some segments of one generation of an index."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.query import Query, Terms
from hardnet.retrieval.scoring import Scoring, query_terms
from hardnet.retrieval.shard import ImageFeatures, LocalShard, Ranking
from hardnet.retrieval.store.snapshot import Snapshot
from hardnet.retrieval.verification import Verification, Verified

if TYPE_CHECKING:
    from hardnet.retrieval.store.manifest import Manifest


class OutdatedError(HardnetError):
    """The shard does not hold the generation it is asked for, or can no longer read it."""


class ShardActor:
    """Answers for its segments as :class:`~hardnet.retrieval.shard.LocalShard` does.

    Ray starts it again, empty, wherever there is room, when its process or its node dies; whoever
    asks must then call :meth:`open` again. Every question names the generation it is about.
    """

    def __init__(self) -> None:
        self._shard: LocalShard | None = None

    def open(self, folder: str, manifest: Manifest, positions: tuple[int, ...]) -> str:
        """Map segments, and make ready to answer quickly.

        Args:
            folder: of the index, as this node sees it.
            manifest: of the generation to answer for, whatever the folder's own says by now.
            positions: which of its segments.

        Returns:
            The name of the node.

        Raises:
            OutdatedError: files of this generation are gone.
            HardnetError: the folder is not there, or its files are not what the manifest says.
        """
        node = socket.gethostname()
        if not Path(folder).is_dir():
            raise HardnetError(
                f"node {node} does not see the folder {folder}: put it on a disk that all nodes "
                "share, under the same path"
            )
        try:
            shard = LocalShard(Snapshot(Path(folder), manifest), positions)
        except FileNotFoundError as error:
            raise OutdatedError(f"node {node} does not see {error.filename}") from error
        except ImportError as error:  # Ray cannot send every exception
            raise HardnetError(f"node {node}: {error}") from error
        _warm_up(shard)
        self._shard = shard
        return node

    def score(self, generation: int, terms: Terms, scoring: Scoring, limit: int | None) -> Ranking:
        """See :class:`~hardnet.retrieval.shard.Shard`, also for the following."""
        return self._of(generation).score(terms, scoring, limit)

    def verify(
        self,
        generation: int,
        query: Query,
        images: NDArray[np.int64],
        verification: Verification,
    ) -> list[Verified]:
        """See there."""
        return self._of(generation).verify(query, images, verification)

    def reliable(
        self, generation: int, query: Query, images: NDArray[np.int64], h: int
    ) -> NDArray[np.int64]:
        """See there."""
        return self._of(generation).reliable(query, images, h)

    def features_of(self, generation: int, images: NDArray[np.int64]) -> list[ImageFeatures]:
        """See there."""
        return self._of(generation).features_of(images)

    def _of(self, generation: int) -> LocalShard:
        if self._shard is None or self._shard.snapshot.generation != generation:
            raise OutdatedError(f"this shard does not hold generation {generation}")
        return self._shard


def _warm_up(shard: LocalShard) -> None:
    """Search for an image of the shard, so that no query waits for a compiler."""
    snapshot = shard.snapshot
    for position in shard.positions:
        if snapshot.segments[position].features:
            break
    else:
        return
    local = int(np.flatnonzero(np.diff(snapshot.segments[position].forward_offsets))[0])
    images = np.array([snapshot.bases[position] + local], np.int64)
    [features] = shard.features_of(images)
    query = Query(
        words=features.words[:, None],
        signatures=features.signatures[:, None],
        frames=features.frames,
        view=np.zeros(len(features), np.int32),
        view_sizes=(features.size,),
        boxes=(None,),
    )
    for scoring in (Scoring("bow"), Scoring("he")):
        shard.score(query_terms(query, scoring), scoring, 1)
    shard.verify(query, images, Verification())
    shard.reliable(query, images, 32)
