"""Our index as a benchmark uses it: the real writer, the real search, rankings of everything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from hardnet.bench.retrieval.collection import Box
from hardnet.features import Features
from hardnet.retrieval.building.quantise import quantise
from hardnet.retrieval.modes import Mode, mode_named
from hardnet.retrieval.ranking.query import make_query
from hardnet.retrieval.ranking.shard import LocalShard
from hardnet.retrieval.search import search
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer
from hardnet.retrieval.words.vocabulary import Vocabulary

SINGLE = ":sa"
"""Ends the name of a mode whose queries have one word per feature (single assignment)."""

Photos = Iterable[tuple[str, Features]]
"""Names and features."""


def parse_mode(name: str) -> Mode:
    """A mode by its name; ``hqe:sa`` is ``hqe`` with single assignment of the query's features."""
    mode = mode_named(name.removesuffix(SINGLE))
    if not name.endswith(SINGLE):
        return mode
    first = mode.first and replace(mode.first, ma=1)
    verification = mode.verification and replace(mode.verification, ma=1)
    return replace(
        mode, scoring=replace(mode.scoring, ma=1), first=first, verification=verification
    )


class OwnIndex:
    """An index that grows; every :meth:`add` is a commit, after which ``shard`` is all of it.

    Args:
        folder: of the index; must not exist.
        vocabulary: its words.
    """

    def __init__(self, folder: Path, vocabulary: Vocabulary) -> None:
        self.folder, self.vocabulary = folder, vocabulary
        self._images = 0

    def add(self, photos: Photos) -> None:
        """Index photos and commit them."""
        new: NewIndex = {"settings": {}, "vocabulary": self.vocabulary}
        with Writer(self.folder, None if self._images else new) as writer:
            writer.add(quantise(name, features, self.vocabulary) for name, features in photos)
            writer.commit()
        snapshot = open_snapshot(self.folder)
        self._images = snapshot.images
        self.shard = LocalShard(snapshot)

    def rank(self, features: Features, box: Box | None, mode: str) -> tuple[list[str], float]:
        """Names of all images that have anything in common with the query, best first; seconds.

        The seconds are those of a search (words of the query, scoring, verification, expansion)
        without the naming of the hits, of which there are as many as images here.
        """
        start = perf_counter()
        query = make_query(features, self.vocabulary, box=box)
        words = perf_counter() - start
        found = search(query, self.shard, parse_mode(mode), self._images)
        taken = sum(seconds for stage, seconds in found.seconds.items() if stage != "rank")
        return [hit.path for hit in found], words + taken
