"""What scoring must know about a whole index: how rare each word is, how long each image vector is.

The writer computes it at every commit, so that a query reads it and never derives it. It counts
the images that are alive, and no others, whatever segments they lie in. It is written together
with which images are removed: all that changes with every generation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.kernels import compiled
from hardnet.retrieval.store.columns import Column, write_columns
from hardnet.retrieval.store.segment import Segment, read_word
from hardnet.storage import FileFacts
from hardnet.threads import map_threads

Alive = NDArray[np.bool_] | None
"""(I,) which images of a segment are in the index; None for all."""

IMAGES_PER_PIECE = 4096
"""Images of one thread's piece of work."""


@dataclass(frozen=True, eq=False)
class Statistics:
    """Counts and norms over the images that are alive."""

    images: int  # how many there are
    document_counts: NDArray[np.uint32]  # (K,) uint32, in how many of them each word occurs
    idf: NDArray[np.float32]  # (K,) float32, log(images / count); 0 for words that occur nowhere
    # Per segment (I,) float32, length of the vector of tf x idf
    bow_norms: tuple[NDArray[np.float32], ...]
    # Per segment (I,) float32, length of the vector of idf of the image's words, each taken once
    he_norms: tuple[NDArray[np.float32], ...]


def compute(segments: Sequence[Segment], alive: Sequence[Alive], words: int) -> Statistics:
    """The statistics of an index.

    Removing an image and never having added it give the same numbers. The norms of removed images
    are computed like any other and mean nothing.
    """
    counts = np.zeros(words, np.int64)
    images = 0
    for segment, living in zip(segments, alive, strict=True):
        counts += segment.document_counts
        images += segment.images
        if living is not None:
            removed = np.flatnonzero(~living)
            dead = np.zeros(words, np.int64)
            count_documents(removed, segment.forward_offsets, segment.forward_words, dead)
            counts -= dead
            images -= len(removed)
    document_counts = counts.astype(np.uint32)
    idf = inverse_document_frequency(images, document_counts)
    norms = [_norms(segment, idf) for segment in segments]
    bow, he = (tuple(one[which] for one in norms) for which in range(2))
    return Statistics(images, document_counts, idf, bow, he)


def inverse_document_frequency(
    images: int, document_counts: NDArray[np.uint32]
) -> NDArray[np.float32]:
    """(K,) log(images / count); 0 for words that occur in no image."""
    seen = document_counts > 0
    idf = np.zeros(len(document_counts), np.float32)
    idf[seen] = np.log(images / document_counts[seen].astype(np.float64))
    return idf


def _norms(
    segment: Segment, idf: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    bow, he = (np.zeros(segment.images, np.float32) for _ in range(2))

    def piece(first: int) -> None:
        last = min(first + IMAGES_PER_PIECE, segment.images)
        measure_images(first, last, segment.forward_offsets, segment.forward_words, idf, bow, he)

    map_threads(piece, range(0, segment.images, IMAGES_PER_PIECE))
    return bow, he


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
    """For segments of these numbers of images, which of them are alive; None for all."""
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
    """The statistics of a generation with ``images`` alive; the norms stay mapped."""
    cuts = bases_of(sizes)[1:]
    counts: NDArray[np.uint32] = columns["document_counts"]
    if not len(columns["bow_norms"]) == len(columns["he_norms"]) == sum(sizes):
        raise ValueError("it has norms of other images")
    bow, he = (
        tuple(np.split(columns[name], cuts)) if len(sizes) else ()
        for name in ("bow_norms", "he_norms")
    )
    return Statistics(images, counts, inverse_document_frequency(images, counts), bow, he)


def bases_of(sizes: Sequence[int]) -> list[int]:
    """The number of the first image of each segment."""
    return list(accumulate(sizes, initial=0))[:-1]


def _joined(parts: Sequence[Column], kind: type[np.generic]) -> Column:
    return np.concatenate(parts).astype(kind) if len(parts) else np.zeros(0, kind)


@compiled
def count_documents(images: Any, forward_offsets: Any, forward_words: Any, counts: Any) -> None:
    """Add one to ``counts`` (K,) for each word of each of ``images`` (n,), however often it is."""
    for image in images:
        previous = np.int64(-1)
        for place in range(forward_offsets[image], forward_offsets[image + 1]):
            word = read_word(forward_words, place)
            if word != previous and word < len(counts):  # or the segment is damaged
                counts[word] += 1
            previous = word


@compiled
def measure_images(
    first: int, last: int, forward_offsets: Any, forward_words: Any, idf: Any, bow: Any, he: Any
) -> None:
    """Fill ``bow`` and ``he`` (I,), the lengths of the vectors, of images ``first`` to ``last``.

    The words of an image are ascending, so equal words lie side by side: a run of tf of them adds
    (tf idf)^2 to the one and idf^2 to the other.
    """
    for image in range(first, last):
        bow_sum, he_sum, previous, tf = 0.0, 0.0, np.int64(-1), 0
        for place in range(forward_offsets[image], forward_offsets[image + 1]):
            word = read_word(forward_words, place)
            if word >= len(idf):  # the segment is damaged
                continue
            if word != previous:
                square = np.float64(idf[previous]) ** 2 if tf else 0.0
                bow_sum += tf * tf * square
                he_sum += square
                previous, tf = word, 0
            tf += 1
        if tf:
            square = np.float64(idf[previous]) ** 2
            bow_sum += tf * tf * square
            he_sum += square
        bow[image], he[image] = np.sqrt(bow_sum), np.sqrt(he_sum)
