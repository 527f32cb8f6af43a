"""The ``asmk`` package as a peer: the same descriptors and the same words.

Its settings are those that its authors publish: binary signatures of the aggregated residuals,
similarity to the power of 3 above 0, five words per query feature and one per indexed feature, no
idf. Its codebook is made of our words, so that no vocabulary is luckier than the other.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

from hardnet.bench.retrieval.collection import Box
from hardnet.bench.retrieval.own_index import Photos
from hardnet.errors import MissingExtraError
from hardnet.features import Features
from hardnet.retrieval.query import inside
from hardnet.retrieval.vocabulary import Vocabulary

NAME = "asmk"
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


def require_asmk() -> None:
    """Raise before any work if the package is missing."""
    try:
        import asmk  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("asmk", "peers") from error


class AsmkIndex:
    """An index of asmk in memory that grows.

    Args:
        vocabulary: whose words are the codebook.
    """

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
        self, features: Features, box: Box | None, mode: str = NAME
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
