"""The coming generation of an index: its segments, written but not yet visible."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np

from hardnet.errors import HardnetError
from hardnet.retrieval.store import compaction
from hardnet.retrieval.store.columns import REPAIR
from hardnet.retrieval.store.manifest import SegmentEntry, segment_path
from hardnet.retrieval.store.names import HashedNames
from hardnet.retrieval.store.segment import IndexedImage, Segment, write_segment
from hardnet.retrieval.store.segment_columns import SEGMENT_IMAGES, SegmentFacts
from hardnet.retrieval.store.statistics import Alive
from hardnet.storage import FileFacts, OwnedFolder, file_facts

MANY = 16
"""So many segments of about the same size may be; one more, and they are made one."""
MAGNITUDES = (0, 1 / 4096, 1 / 256, 1 / 16, 1 / 2)
"""What is about the same size: shares of a full segment."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""


@dataclass(frozen=True, eq=False)
class Staged:
    """A segment, and which of its images are alive."""

    entry: SegmentEntry
    segment: Segment
    alive: Alive

    @property
    def part(self) -> compaction.Part:
        """As compaction sees it."""
        return self.segment, self.alive


class Staging:
    """Segments of the coming generation.

    Args:
        owned: folder of the index.
        words: size of the vocabulary.
        segments: those of the present generation.
        segment_features: compaction makes segments of at most so many features.

    Attributes:
        segments: in the order of their image numbers.
        generation: the number of the coming one, which its segments are named by.
        changed: it differs from the present one.
    """

    def __init__(
        self, owned: OwnedFolder, words: int, segments: Sequence[Staged], segment_features: int
    ) -> None:
        self.segments = list(segments)
        self.generation = 0
        self.changed = False
        self._owned = owned
        self._words = words
        self._segment_features = segment_features
        self._written = 0

    def begin(self, generation: int) -> None:
        """All so far is committed; this generation comes next."""
        self.generation = generation
        self.changed = False
        self._written = 0

    def append(self, images: Sequence[IndexedImage]) -> None:
        """Write images as a segment; older ones of the same names are removed."""
        staged = self._write(partial(write_segment, images=images, words=self._words))
        self.bury([image.name for image in images])
        self.segments.append(staged)
        self.changed = True

    def bury(self, names: Sequence[str]) -> set[str]:
        """Mark images of these names as removed; returns the names that were there."""
        hashed = HashedNames(names)
        found: set[str] = set()
        for position, staged in enumerate(self.segments):
            rows, images = staged.segment.find_many(hashed)
            if not len(rows):
                continue
            alive = np.ones(len(staged.segment), bool) if staged.alive is None else staged.alive
            rows, images = rows[alive[images]], images[alive[images]]
            if len(rows):
                alive = alive.copy()
                alive[images] = False
                found.update(names[row] for row in rows.tolist())
                self.segments[position] = replace(staged, alive=alive)
                self.changed = True
        return found

    def between(self, low: float, high: float) -> list[Staged]:
        """The segments that hold such a share of a full one; ``low`` belongs to it."""
        shares = (
            compaction.fullness(staged.part, self._segment_features, SEGMENT_IMAGES)
            for staged in self.segments
        )
        return [
            staged
            for staged, share in zip(self.segments, shares, strict=True)
            if low <= share < high
        ]

    def tidy(self) -> None:
        """Make one of many segments of about the same size, so that small commits do not add up.

        An image is written anew once per order of magnitude, however many commits there are.
        Segments without a living image go: that needs no room on the disk.
        """
        self.segments = [s for s in self.segments if s.alive is None or s.alive.any()]
        for low, high in pairwise(MAGNITUDES):
            alike = self.between(low, high)
            if len(alike) > MANY:
                self.merge(alike)

    def merge(self, chosen: Sequence[Staged], progress: Progress | None = None) -> None:
        """Put as few new segments as possible in the place of some, without removed images.

        Raises:
            HardnetError: one of them is damaged. Written anew, it would pass for whole.
        """
        groups = compaction.bins([staged.part for staged in chosen], self._segment_features)
        untouched = {id(staged.segment): staged for staged in chosen if staged.alive is None}
        facts = {id(staged.segment): staged.entry.facts.file for staged in chosen}
        merged: list[Staged] = []
        for done, group in enumerate(groups):
            if progress:
                progress("compacting", done, len(groups))
            alone = untouched.get(id(group[0][0])) if len(group) == 1 else None
            if alone is None:
                for segment, _ in group:
                    _check_whole(segment, facts[id(segment)])
            merge = partial(compaction.merge_segments, parts=group, words=self._words)
            merged.append(alone or self._write(merge))
        if progress:
            progress("compacting", len(groups), len(groups))
        if any(staged not in merged for staged in chosen):
            self.segments = [s for s in self.segments if s not in chosen] + merged
            self.changed = True

    def _write(self, write: Callable[[Path], SegmentFacts]) -> Staged:
        """Write a segment under a name of its own, and map it."""
        with writing(self._owned.path):
            place = self._free_place()
            path = self._owned.claim(segment_path(place))
            try:
                facts = write(path)
            except BaseException:
                self._owned.remove(segment_path(place))
                raise
        return Staged(SegmentEntry(place, facts), Segment(path, facts.file.bytes), None)

    def _free_place(self) -> str:
        """A name for a segment that no file has, whoever made it."""
        while True:
            name = f"{self.generation:08d}-{self._written:04d}"
            self._written += 1
            if not os.path.lexists(self._owned.path / segment_path(name)):
                return name


def _check_whole(segment: Segment, facts: FileFacts) -> None:
    if file_facts(segment.path) != facts:
        raise HardnetError(f"{segment.path} is damaged: its checksum is wrong; {REPAIR}")


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of the disk below this become one line that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno in _FULL:
            raise HardnetError(
                f"the disk of the index {folder} is full ({reason}); what was committed is "
                "unharmed: make room and repeat the command"
            ) from error
        raise HardnetError(
            f"the index {folder} cannot be written: {reason}; what was committed is unharmed: "
            "check the disk and your rights to the folder"
        ) from error
