"""Our index as a benchmark uses it: the real writer, the real search, rankings of everything."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from hardnet.bench.retrieval.collection import Box
from hardnet.features import Features
from hardnet.retrieval.building.quantise import quantise_many
from hardnet.retrieval.query import MA, make_query
from hardnet.retrieval.search import Mode, mode_named, search
from hardnet.retrieval.shard import LocalShard
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer
from hardnet.retrieval.vocabulary import Vocabulary

ASSIGNMENT = re.compile(r":(?:sa|ma([1-9]\d*))$")
"""Ends the name of a mode: single assignment, or so many words per feature of the query."""

Photos = Iterable[tuple[str, Features]]
"""Names and features."""


def parse_mode(name: str) -> Mode:
    """A mode by its name.

    ``hqe:sa`` is ``hqe`` with one word per query feature, ``hqe:ma8`` with eight, in scoring and
    in verification.
    """
    mode = mode_named(ASSIGNMENT.sub("", name))
    found = ASSIGNMENT.search(name)
    if found is None:
        return mode
    ma = int(found[1] or 1)
    return replace(
        mode,
        scoring=replace(mode.scoring, ma=ma),
        first=mode.first and replace(mode.first, ma=ma),
        verification=mode.verification and replace(mode.verification, ma=ma),
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
            writer.add(quantise_many(photos, self.vocabulary))
            writer.commit()
        snapshot = open_snapshot(self.folder)
        self._images = snapshot.images
        self.shard = LocalShard(snapshot)

    def rank(self, features: Features, box: Box | None, mode: str) -> tuple[list[str], float]:
        """Names of all images that have anything in common with the query, best first; seconds.

        The seconds are those of a search (words of the query, scoring, verification, expansion)
        without the naming of the hits, of which there are as many as images here.
        """
        chosen = parse_mode(mode)
        start = perf_counter()
        query = make_query(features, self.vocabulary, max(MA, chosen.scoring.ma), box)
        words = perf_counter() - start
        found = search(query, self.shard, chosen, self._images)
        taken = sum(seconds for stage, seconds in found.seconds.items() if stage != "rank")
        return [hit.path for hit in found], words + taken
