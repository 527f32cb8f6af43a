"""What is searched: our index with the real writer and search, and the ``asmk`` package as a peer.

Both get the same descriptors and the same words, so that no vocabulary is luckier than the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from hardnet.bench.retrieval.collections import Box
from hardnet.errors import MissingExtraError
from hardnet.features import Features
from hardnet.retrieval.photos import quantise_many
from hardnet.retrieval.query import MA, inside, make_query
from hardnet.retrieval.search import LocalShard, Mode, mode_named, search
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.writer import NewIndex, Writer
from hardnet.retrieval.vocabulary import Vocabulary

ASSIGNMENT = re.compile(r":(?:sa|ma([1-9]\d*))$")
"""Ends the name of a mode: single assignment, or this many words per feature of the query."""

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
    """An index that grows; every :meth:`add` is a commit, after which ``shard`` is all of it."""

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

        The seconds are those of a search without the naming of the hits, of which there are as many
        as images here.
        """
        chosen = parse_mode(mode)
        start = perf_counter()
        query = make_query(features, self.vocabulary, max(MA, chosen.scoring.ma), box)
        words = perf_counter() - start
        found = search(query, self.shard, chosen, self._images)
        taken = sum(seconds for stage, seconds in found.seconds.items() if stage != "rank")
        return [hit.path for hit in found], words + taken


ASMK = "asmk"
PARAMETERS: dict[str, Any] = {
    "index": {"gpu_id": None},
    "train_codebook": {"codebook": {"size": 0}},
    "build_ivf": {
        "kernel": {"binary": True},
        "ivf": {"use_idf": False},
        "quantize": {"multiple_assignment": 1},
        "aggregate": {},
    },
    "query_ivf": {
        "quantize": {"multiple_assignment": 5},
        "aggregate": {},
        "search": {"topk": None},
        "similarity": {"similarity_threshold": 0.0, "alpha": 3.0},
    },
}
"""As its authors publish them: binary signatures of the aggregated residuals, similarity to the
power of 3 above 0, five words per query feature and one per indexed feature, no idf."""


def require_asmk() -> None:
    """Raise before any work if the package is missing."""
    try:
        import asmk  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("asmk", "peers") from error


class AsmkIndex:
    """An index of asmk in memory that grows; the codebook is our vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        require_asmk()
        from asmk import asmk_method, codebook, index

        words = np.ascontiguousarray(vocabulary.words, np.float32)
        book = codebook.Codebook(
            index_factory=index.initialize_index(**PARAMETERS["index"]), size=len(words)
        )
        book.index(words)
        self._vocabulary = vocabulary
        self._method = asmk_method.ASMKMethod(PARAMETERS, {}, codebook=book)
        self._builder = self._method.create_ivf_builder()
        self._names: list[str] = []

    def add(self, photos: Photos) -> None:
        """Index photos."""
        rows, numbers = [np.zeros((0, self._vocabulary.words.shape[1]), np.float32)], []
        for name, features in photos:
            if len(features):
                rows.append(self._vocabulary.prepare(features.descriptors))
                numbers.append(np.full(len(features), len(self._names)))
            self._names.append(name)
        if numbers:
            self._builder.add(np.concatenate(rows), np.concatenate(numbers))

    def rank(
        self, features: Features, box: Box | None, mode: str = ASMK
    ) -> tuple[list[str], float]:
        """Names of all images of a similarity above 0, best first; seconds. It has one mode."""
        keep = slice(None) if box is None else inside(features.frames, box)
        start = perf_counter()
        rows = self._vocabulary.prepare(features.descriptors[keep])
        if not len(rows):
            return [], perf_counter() - start
        _, order, scores = self._method.accumulate_scores(
            self._method.codebook,
            self._builder.kernel,
            self._builder.ivf,
            rows,
            np.zeros(len(rows), np.int64),
            params=PARAMETERS["query_ivf"],
        )
        seconds = perf_counter() - start
        return [self._names[i] for i in order[0][scores[0] > 0].tolist()], seconds

    def bytes(self) -> int:
        """Size of what it keeps of the photos: signatures and image numbers."""
        ivf = self._builder.ivf
        return sum(
            rows[:count].nbytes + ids[:count].nbytes
            for rows, ids, count in zip(ivf.ivf_vecs, ivf.ivf_image_ids, ivf.counts, strict=True)
            if count
        )
