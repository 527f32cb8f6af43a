"""Changing an index: one writer at a time, and nothing is visible before it commits."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict

import numpy as np

from hardnet.errors import HardnetError
from hardnet.folder_lock import FolderLock
from hardnet.retrieval import compaction
from hardnet.retrieval.durable import FileFacts, file_facts, sync_folder, writing
from hardnet.retrieval.manifest import (
    MANIFEST,
    Manifest,
    SegmentEntry,
    VocabularyEntry,
    state_path,
    write_manifest,
)
from hardnet.retrieval.segment import IndexedImage, Segment, write_segment
from hardnet.retrieval.segment_columns import SEGMENT_IMAGES, SegmentFacts, encode_name
from hardnet.retrieval.snapshot import open_snapshot
from hardnet.retrieval.state import write_state
from hardnet.retrieval.statistics import Alive, compute
from hardnet.retrieval.sweep import sweep
from hardnet.retrieval.vocabulary import Vocabulary, save

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""

SEGMENT_FEATURES = 4_000_000
"""A segment is written when so many features are in hand: a hundred megabytes."""
FEATURES_PER_WORD = 8
"""But at least so many per word, or the table of a large vocabulary would weigh too much."""
MANY = 16
"""More small segments than this are made one; a small one is this part of a full one."""


class NewIndex(TypedDict):
    """What a new index is made of: settings (JSON values) of the features, and a vocabulary."""

    settings: dict[str, Any]
    vocabulary: Vocabulary


@dataclass(frozen=True, eq=False)
class _Held:
    """A segment of the coming generation."""

    entry: SegmentEntry
    segment: Segment
    alive: Alive


class Writer:
    """The one writer of an index.

    Args:
        folder: of the index.
        create: for a new index; the folder is made. Without it, the index must be there.
        segment_features: a segment is written when so many features are in hand.

    Raises:
        HardnetError: somebody else is writing, or there is no index, or there is one already.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        create: NewIndex | None = None,
        *,
        segment_features: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._new = create
        if create is None:
            open_snapshot(self.folder)  # says what is wrong before a lock file is made
        with writing(self.folder):
            for place in ("segments", "generations"):
                (self.folder / place).mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(self.folder)
            if not self._lock.take():
                raise HardnetError(
                    f"another process is writing to the index {self.folder}: "
                    "wait until it has finished, then repeat the command"
                )
        try:
            self._open()
        except BaseException:
            self._lock.release()
            raise
        enough = max(SEGMENT_FEATURES, FEATURES_PER_WORD * self.words)
        self._segment_features = segment_features or enough

    def _open(self) -> None:
        self._pending: dict[str, IndexedImage] = {}
        self._pending_features = 0
        self._written = 0
        self._changed = False
        self._stopped = False
        self._held: list[_Held] = []
        self._manifest: Manifest | None = None
        if self._new is not None:
            if (self.folder / MANIFEST).exists():
                raise HardnetError(
                    f"{self.folder} holds an index already: add to it, or choose another folder"
                )
            self.words = len(self._new["vocabulary"])
            self._changed = True
        else:
            snapshot = open_snapshot(self.folder)
            self._manifest = snapshot.manifest
            self.words = snapshot.words
            parts = zip(snapshot.manifest.segments, snapshot.segments, snapshot.alive, strict=True)
            self._held = [_Held(*part) for part in parts]
        sweep(self.folder, self._manifest)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. What was not committed is forgotten."""
        try:
            if not self._stopped:
                sweep(self.folder, self._manifest)
        finally:
            self._stopped = True
            self._lock.release()

    @property
    def generation(self) -> int:
        """Of the last commit; 0 before the first one of a new index."""
        return self._manifest.generation if self._manifest else 0

    def add(self, images: Iterable[IndexedImage]) -> None:
        """Add images; one whose name is there already takes the place of the old one.

        A name that comes twice means the later one.
        """
        self._check()
        for image in images:
            encode_name(image.name)
            before = self._pending.pop(image.name, None)
            self._pending_features -= 0 if before is None else len(before)
            self._pending[image.name] = image
            self._pending_features += len(image)
            full = len(self._pending) == SEGMENT_IMAGES
            if full or self._pending_features >= self._segment_features:
                self._flush()

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove images; returns the names that are not in the index."""
        self._check()
        wanted = list(dict.fromkeys(names))
        found: set[str] = set()
        for name in wanted:
            image = self._pending.pop(name, None)
            if image is not None:
                self._pending_features -= len(image)
                found.add(name)
        found |= self._bury(wanted)
        return [name for name in wanted if name not in found]

    def compact(self, waste: float = 0.1, progress: Progress | None = None) -> None:
        """Write segments anew that are small, or of which more than ``waste`` is removed images.

        With ``waste`` 0 no byte of a removed image is left after the commit.
        """
        self._check()
        self._flush()
        half = self._segment_features // 2
        self._merge(
            [held for held in self._held if self._is_small(held, half) or _waste(held) > waste],
            progress,
        )

    def commit(self) -> int:
        """Make everything since the last commit visible, at once and for good.

        Returns:
            The new generation; the old one if nothing has changed.
        """
        self._check()
        self._flush()
        if not self._changed and self._manifest is not None:
            return self._manifest.generation
        small = [
            held for held in self._held if self._is_small(held, self._segment_features // MANY)
        ]
        if len(small) > MANY:
            self._merge(small)
        # From here on a failure leaves open which generation readers see.
        self._stopped = True
        with writing(self.folder):
            self._manifest = self._publish()
            sweep(self.folder, self._manifest)
        self._changed = self._stopped = False
        self._written = 0
        return self._manifest.generation

    def _publish(self) -> Manifest:
        """Write the next generation and name it in the manifest."""
        generation = self.generation + 1
        segments = [held.segment for held in self._held]
        alive = [held.alive for held in self._held]
        statistics = compute(segments, alive, self.words)
        path = self.folder / state_path(generation)
        path.unlink(missing_ok=True)
        state = write_state(path, alive, statistics)
        counts = [compaction.living((held.segment, held.alive)) for held in self._held]
        facts: dict[str, Any] = {
            "generation": generation,
            "segments": tuple(held.entry for held in self._held),
            "state": state,
            "images": sum(images for images, _ in counts),
            "features": sum(features for _, features in counts),
            "removed": sum(len(segment) for segment in segments) - sum(i for i, _ in counts),
        }
        if self._manifest is not None:
            manifest = replace(self._manifest, **facts)
        else:
            assert self._new is not None
            manifest = Manifest(
                settings=self._new["settings"],
                words=self.words,
                vocabulary=self._save_vocabulary(self._new["vocabulary"]),
                **facts,
            )
        sync_folder(self.folder / "segments")
        sync_folder(self.folder / "generations")
        write_manifest(self.folder, manifest)
        return manifest

    def _save_vocabulary(self, vocabulary: Vocabulary) -> VocabularyEntry:
        entry = VocabularyEntry(vocabulary.fingerprint, FileFacts(0, 0))
        path = self.folder / entry.path
        save(vocabulary, path)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
        sync_folder(self.folder)
        return replace(entry, file=file_facts(path))

    def _flush(self) -> None:
        """Write what is in hand as a segment."""
        if not self._pending:
            return
        images = list(self._pending.values())
        held = self._write(lambda path: write_segment(path, images, self.words))
        self._bury(list(self._pending))
        self._held.append(held)
        self._pending, self._pending_features = {}, 0
        self._changed = True

    def _merge(self, chosen: list[_Held], progress: Progress | None = None) -> None:
        """Put new segments in the place of some."""
        groups = compaction.bins(
            [(held.segment, held.alive) for held in chosen], self._segment_features
        )
        by_segment = {id(held.segment): held for held in chosen}
        merged = []
        for done, group in enumerate(groups):
            if progress:
                progress("compacting", done, len(groups))
            if len(group) == 1 and group[0][1] is None:
                merged.append(by_segment[id(group[0][0])])  # nothing to win
                continue
            merged.append(self._write(_merging(group, self.words)))
            self._changed = True
        if progress:
            progress("compacting", len(groups), len(groups))
        if any(held not in merged for held in chosen):
            self._held = [held for held in self._held if held not in chosen] + merged
            self._changed = True

    def _write(self, write: Callable[[Path], SegmentFacts]) -> _Held:
        """Write a segment under a name of its own, and map it."""
        name = f"{self.generation + 1:08d}-{self._written:04d}"
        self._written += 1
        path = self.folder / SegmentEntry(name, SegmentFacts(0, 0, FileFacts(0, 0))).path
        with writing(self.folder):
            try:
                facts = write(path)
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        return _Held(SegmentEntry(name, facts), Segment(path, facts.file.bytes), None)

    def _bury(self, names: list[str]) -> set[str]:
        """Mark images of these names as removed, in all segments; returns whom it found."""
        found: set[str] = set()
        for position, held in enumerate(self._held):
            local = held.segment.find_many(names)
            at = np.flatnonzero(local >= 0)
            living = np.ones(len(held.segment), bool) if held.alive is None else held.alive.copy()
            at = at[living[local[at]]]
            if not len(at):
                continue
            living[local[at]] = False
            found.update(names[i] for i in at)
            self._held[position] = replace(held, alive=living)
            self._changed = True
        return found

    def _is_small(self, held: _Held, features: int) -> bool:
        images, count = compaction.living((held.segment, held.alive))
        part = features / self._segment_features
        return count < features and images < SEGMENT_IMAGES * part

    def _check(self) -> None:
        if self._stopped:
            raise HardnetError(
                f"this writer of {self.folder} is closed or was stopped by an error: open it again"
            )


def _waste(held: _Held) -> float:
    return compaction.waste((held.segment, held.alive))


def _merging(parts: list[compaction.Part], words: int) -> Callable[[Path], SegmentFacts]:
    return lambda path: compaction.merge_segments(path, parts, words)
