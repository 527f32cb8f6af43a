"""Segments written anew: without removed images, and few large ones instead of many small ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hardnet.retrieval.store.segment import Segment
from hardnet.retrieval.store.segment_columns import (
    SEGMENT_IMAGES,
    ImageTable,
    Postings,
    SegmentFacts,
    write_postings,
)
from hardnet.retrieval.store.statistics import Alive

Part = tuple[Segment, Alive]
"""A segment, and which of its images are alive."""


def living(part: Part) -> tuple[int, int]:
    """How many images of a segment are alive, and how many features they have."""
    segment, alive = part
    if alive is None:
        return segment.images, segment.features
    return int(alive.sum()), int(segment.feature_counts[alive].sum())


def waste(part: Part) -> float:
    """The share of a segment that is dead: of its images or of its features, what is more."""
    segment, _ = part
    images, features = living(part)
    return max(1 - images / max(segment.images, 1), 1 - features / max(segment.features, 1))


def fullness(part: Part, features: int, images: int) -> float:
    """How much of a segment of so many features, or of so many images, is alive."""
    living_images, living_features = living(part)
    return max(living_features / features, living_images / images)


def bins(parts: Sequence[Part], features: int) -> list[list[Part]]:
    """Which segments become one, in their order, within the limits of a segment."""
    out: list[list[Part]] = []
    room_images = room_features = -1
    for part in parts:
        images, count = living(part)
        if not images:
            continue
        if images > room_images or count > room_features:
            out.append([])
            room_images, room_features = SEGMENT_IMAGES, max(features, count)
        out[-1].append(part)
        room_images -= images
        room_features -= count
    return out


def merge_segments(path: Path, parts: Sequence[Part], words: int) -> SegmentFacts:
    """Write the living images of some segments as one segment, in their order."""
    tables, postings = [], []
    base = 0
    for segment, alive in parts:
        keep = np.ones(segment.images, bool) if alive is None else alive
        numbers = np.cumsum(keep) - 1 + base
        chosen = np.flatnonzero(keep[segment.image_ids])
        tables.append(segment.table(np.flatnonzero(keep)))
        counts = segment.offsets[1:] - segment.offsets[:-1]
        postings.append(
            Postings(
                words=np.repeat(np.arange(words, dtype=np.int32), counts)[chosen],
                image_ids=numbers[segment.image_ids[chosen]].astype(np.uint16),
                signatures=segment.signatures[chosen],
                geometry=segment.geometry[chosen],
            )
        )
        base += int(keep.sum())
    return write_postings(path, _join_tables(tables), _join_postings(postings), words)


def _join_tables(parts: Sequence[ImageTable]) -> ImageTable:
    return ImageTable(
        names=tuple(name for part in parts for name in part.names),
        sizes=np.concatenate([part.sizes for part in parts]),
        features=np.concatenate([part.features for part in parts]),
        file_bytes=np.concatenate([part.file_bytes for part in parts]),
        mtime_ns=np.concatenate([part.mtime_ns for part in parts]),
    )


def _join_postings(parts: Sequence[Postings]) -> Postings:
    # The images of a later part have higher numbers, so each word's stay in order.
    return Postings(
        words=np.concatenate([part.words for part in parts]),
        image_ids=np.concatenate([part.image_ids for part in parts]),
        signatures=np.concatenate([part.signatures for part in parts]),
        geometry=np.concatenate([part.geometry for part in parts]),
    )
