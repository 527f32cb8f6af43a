"""What changes with every generation of an index: removed images, and statistics."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.store.columns import Column, write_columns
from hardnet.retrieval.store.statistics import Alive, Statistics, inverse_document_frequency
from hardnet.storage import FileFacts


def write_state(path: Path, alive: Sequence[Alive], statistics: Statistics) -> FileFacts:
    """Write the state of a generation."""
    sizes = [len(norms) for norms in statistics.bow_norms]
    dead = [
        base + np.flatnonzero(~living)
        for base, living in zip(bases_of(sizes), alive, strict=True)
        if living is not None
    ]
    return write_columns(
        path,
        {
            "removed": _joined(dead, np.uint32),
            "document_counts": statistics.document_counts,
            "bow_norms": _joined(statistics.bow_norms, np.float32),
            "he_norms": _joined(statistics.he_norms, np.float32),
        },
    )


def read_alive(columns: dict[str, Column], sizes: Sequence[int]) -> tuple[Alive, ...]:
    """For each segment of so many images, which of them are alive; None for all."""
    removed = columns["removed"].astype(np.int64)
    edges = [*bases_of(sizes), sum(sizes)]
    cuts = np.searchsorted(removed, edges)
    alive: list[Alive] = []
    for base, size, first, last in zip(edges, sizes, cuts, cuts[1:], strict=False):
        if first == last:
            alive.append(None)
            continue
        living = np.ones(size, bool)
        living[removed[first:last] - base] = False
        living.flags.writeable = False
        alive.append(living)
    return tuple(alive)


def read_statistics(columns: dict[str, Column], sizes: Sequence[int], images: int) -> Statistics:
    """The statistics of a generation with so many images alive; the norms stay mapped."""
    cuts = bases_of(sizes)[1:]
    counts: NDArray[np.uint32] = columns["document_counts"]
    bow, he = (tuple(np.split(columns[name], cuts)) if len(sizes) else () for name in _NORMS)
    return Statistics(images, counts, inverse_document_frequency(images, counts), bow, he)


_NORMS = ("bow_norms", "he_norms")


def bases_of(sizes: Sequence[int]) -> list[int]:
    """The number of the first image of each segment."""
    return list(accumulate(sizes, initial=0))[:-1]


def _joined(parts: Sequence[Column], kind: type[np.generic]) -> Column:
    return np.concatenate(parts).astype(kind) if len(parts) else np.zeros(0, kind)
