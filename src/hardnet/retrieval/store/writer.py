"""Changing an index: one writer at a time, and nothing is visible before it commits."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Progress, silent
from hardnet.image_files import as_path
from hardnet.retrieval.store.segment import (
    REPAIR,
    SEGMENT_IMAGES,
    Alive,
    HashedNames,
    IndexedImage,
    Segment,
    encode_name,
    merge_segments,
    write_segment,
)
from hardnet.retrieval.store.snapshot import (
    MANIFEST,
    SEGMENT_PATH,
    STATE_PATH,
    VOCABULARY_PATH,
    Manifest,
    SegmentEntry,
    SegmentFacts,
    VocabularyEntry,
    compute_statistics,
    open_snapshot,
    read_manifest,
    write_manifest,
    write_state,
)
from hardnet.retrieval.vocabulary import Vocabulary, file_content
from hardnet.storage import FileFacts, FolderLock, OwnedFolder, file_facts, sync_folder, write_file

SEGMENT_FEATURES = 4_000_000
"""A segment is written once this many features are waiting: a hundred megabytes."""
FEATURES_PER_WORD = 16
"""But at least this many per word, or the table of a large vocabulary would weigh too much."""

MANY = 16
"""More segments than this of about the same size are merged into one."""
MAGNITUDES = (0, 1 / 4096, 1 / 256, 1 / 16, 1 / 2)
"""Limits between sizes, as shares of a full segment."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FOLDERS = ("segments", "generations")


class NewIndex(TypedDict):
    """What a new index is made of: settings (JSON values) of the features, and a vocabulary."""

    settings: dict[str, Any]
    vocabulary: Vocabulary


@dataclass(frozen=True, eq=False)
class Staged:
    """A segment of the coming generation, and which of its images are alive."""

    entry: SegmentEntry
    segment: Segment
    alive: Alive

    @property
    def living(self) -> tuple[int, int]:
        """How many of its images are alive, and how many features they have."""
        if self.alive is None:
            return self.segment.images, self.segment.features
        return int(self.alive.sum()), int(self.segment.feature_counts[self.alive].sum())

    @property
    def waste(self) -> float:
        """The share that is dead: of its images or of its features, whichever is more."""
        images, features = self.living
        segment = self.segment
        return max(1 - images / max(segment.images, 1), 1 - features / max(segment.features, 1))


class Writer(AbstractContextManager["Writer"]):
    """The one writer of an index; with ``create`` a new one is made, else it must be there.

    Images wait in memory until ``segment_features`` features are in hand, and become a segment on
    the disk. Segments are named by the coming generation and visible only after :meth:`commit`.

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
        self.folder = as_path(folder)
        self._create = create
        self._read()  # says what is wrong before a lock file is made
        self._lock = FolderLock(self.folder)
        with writing(self.folder):
            for place in _FOLDERS:
                (self.folder / place).mkdir(parents=True, exist_ok=True)
            if not self._lock.take():
                raise HardnetError(
                    f"another process is writing to the index {self.folder}: "
                    "wait until it has finished, then repeat the command"
                )
        try:
            self._manifest = self._read()  # others may have written until now
            least = max(SEGMENT_FEATURES, FEATURES_PER_WORD * self._manifest.words)
            self._segment_features = segment_features or least
            self._pending: dict[str, IndexedImage] = {}
            self._pending_features = 0
            self._segments: list[Staged] = []  # in the order of their image numbers
            self._changed, self._written = False, 0  # since the last commit
            if self.generation:
                snapshot = open_snapshot(self.folder)
                parts = zip(self._manifest.segments, snapshot.segments, snapshot.alive, strict=True)
                self._segments = [Staged(*part) for part in parts]
            with writing(self.folder):
                self._owned = OwnedFolder.mark(self.folder)
                self._owned.durable = True
                if self.generation:  # all that the manifest names is ours: it has the checksums
                    self._owned.adopt(MANIFEST, *self._manifest.files())
            self._sweep()
            self._open = self._usable = True
        except BaseException:
            self._lock.release()
            raise

    def _read(self) -> Manifest:
        """The manifest that is there, or the one of generation 0, which is nowhere."""
        if self._create is None:
            return read_manifest(self.folder)
        if (self.folder / MANIFEST).exists():
            raise HardnetError(
                f"{self.folder} holds an index already: add to it, or choose another folder"
            )
        vocabulary, none = self._create["vocabulary"], FileFacts(0, 0)
        entry = VocabularyEntry(vocabulary.digest, none)
        return Manifest(0, self._create["settings"], len(vocabulary), entry, (), none, 0, 0, 0)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write. Anything not committed is lost."""
        self._usable = False
        self._pending.clear()
        if self._open:
            self._open = False
            self._sweep()
            self._lock.release()

    @property
    def generation(self) -> int:
        """Of the last commit; 0 before the first one of a new index."""
        return self._manifest.generation

    def add(self, images: Iterable[IndexedImage]) -> None:
        """Add images; one whose name is there already takes the place of the old one.

        A name that comes twice means the later one.
        """
        self._check()
        for image in images:
            encode_name(image.name)
            self._take_back(image.name)
            self._pending[image.name] = image
            self._pending_features += len(image)
            full = len(self._pending) == SEGMENT_IMAGES
            if full or self._pending_features >= self._segment_features:
                self._flush()

    def remove(self, names: Iterable[str]) -> list[str]:
        """Remove images; returns the names that are not in the index."""
        self._check()
        wanted = list(dict.fromkeys(names))
        found = {name for name in wanted if self._take_back(name)} | self._bury(wanted)
        return [name for name in wanted if name not in found]

    def _take_back(self, name: str) -> bool:
        image = self._pending.pop(name, None)
        self._pending_features -= 0 if image is None else len(image)
        return image is not None

    def _bury(self, names: Sequence[str]) -> set[str]:
        hashed = HashedNames(names)
        found: set[str] = set()
        for position, staged in enumerate(self._segments):
            rows, images = staged.segment.find_many(hashed)
            if staged.alive is not None:
                rows, images = rows[staged.alive[images]], images[staged.alive[images]]
            found.update(names[row] for row in rows.tolist())
            self._set_alive(position, images, False)
        return found

    def restore(self, names: Iterable[str]) -> list[str]:
        """Take removed images back, the newest of each name; returns names not stored any more."""
        self._check()
        self._flush()
        wanted = list(dict.fromkeys(names))
        hashed = HashedNames(wanted)
        found: set[str] = set()
        for position in reversed(range(len(self._segments))):
            rows, images = self._segments[position].segment.find_many(hashed)
            new = np.array([wanted[row] not in found for row in rows.tolist()], bool)
            found.update(wanted[row] for row in rows.tolist())
            self._set_alive(position, images[new], True)
        return [name for name in wanted if name not in found]

    def _set_alive(self, position: int, images: NDArray[np.int64], value: bool) -> None:
        staged = self._segments[position]
        alive = np.ones(len(staged.segment), bool) if staged.alive is None else staged.alive.copy()
        if (alive[images] != value).any():
            alive[images] = value
            self._segments[position] = replace(staged, alive=None if alive.all() else alive)
            self._changed = True

    def compact(self, waste: float = 0.1, progress: Progress = silent) -> None:
        """Write segments again that are small, or of which more than ``waste`` is removed images.

        With ``waste`` 0 no byte of a removed image is left after the commit.
        """
        self._check()
        self._flush()
        small = self._between(0, 1 / 2)
        self._merge([s for s in self._segments if s in small or s.waste > waste], progress)

    def commit(self) -> int:
        """Make everything since the last commit visible, at once and for good.

        Returns the new generation; the old one if nothing has changed.
        """
        self._check()
        self._flush()
        if self.generation and not self._changed:
            return self.generation
        # Segments without a living image are dropped: that needs no room on the disk.
        self._segments = [s for s in self._segments if s.alive is None or s.alive.any()]
        # Many segments of about the same size become one, so that small commits do not add up. An
        # image is written again once per order of magnitude, however many commits there are.
        for low, high in pairwise(MAGNITUDES):
            alike = self._between(low, high)
            if len(alike) > MANY:
                self._merge(alike)
        # After a failure in here it is open which generation readers see: no second attempt.
        self._usable = False
        with writing(self.folder):
            self._manifest = self._publish(self.generation + 1)
        self._changed, self._written = False, 0
        self._sweep()
        self._usable = True
        return self.generation

    def _publish(self, generation: int) -> Manifest:
        """Write what the generation needs, all of it to the disk, and then its manifest."""
        segments, alive = [s.segment for s in self._segments], [s.alive for s in self._segments]
        images = sum(staged.living[0] for staged in self._segments)
        statistics = compute_statistics(segments, alive, self._manifest.words)
        path = self._owned.claim(STATE_PATH.format(generation))
        manifest = replace(
            self._manifest,
            generation=generation,
            segments=tuple(staged.entry for staged in self._segments),
            state=write_state(path, alive, statistics),
            images=images,
            features=sum(staged.living[1] for staged in self._segments),
            removed=sum(map(len, segments)) - images,
        )
        if self._create is not None and not self.generation:
            vocabulary = self._create["vocabulary"]
            path = self._owned.claim(VOCABULARY_PATH.format(vocabulary.digest))
            entry = VocabularyEntry(vocabulary.digest, write_file(path, file_content(vocabulary)))
            manifest = replace(manifest, vocabulary=entry)
        for place in _FOLDERS:
            sync_folder(self.folder / place)
        self._owned.claim(MANIFEST)
        write_manifest(self.folder, manifest)
        return manifest

    def _flush(self) -> None:
        if self._pending:
            images = list(self._pending.values())
            staged = self._write(partial(write_segment, images=images, words=self._manifest.words))
            self._bury(list(self._pending))
            self._segments.append(staged)
            self._changed, self._pending, self._pending_features = True, {}, 0

    def _between(self, low: float, high: float) -> list[Staged]:
        """The segments that hold such a share of a full one; ``low`` belongs to it."""

        def share(staged: Staged) -> float:
            images, features = staged.living
            return max(features / self._segment_features, images / SEGMENT_IMAGES)

        return [staged for staged in self._segments if low <= share(staged) < high]

    def _merge(self, chosen: Sequence[Staged], progress: Progress = silent) -> None:
        """Put as few new segments as possible in the place of some, without removed images.

        Raises:
            HardnetError: one of them is damaged. Written again, it would pass for whole.
        """
        groups: list[list[Staged]] = []  # each becomes one, within the limits of a segment
        room_images = room_features = -1
        for staged in chosen:
            images, features = staged.living
            if not images:
                continue
            if images > room_images or features > room_features:
                groups.append([])
                room_images = SEGMENT_IMAGES
                room_features = max(self._segment_features, features)
            groups[-1].append(staged)
            room_images -= images
            room_features -= features
        merged: list[Staged] = []
        for done, group in enumerate(groups):
            progress("compacting", done, len(groups))
            if len(group) == 1 and group[0].alive is None:
                merged += group
                continue
            for staged in group:
                path = staged.segment.path
                if file_facts(path) != staged.entry.facts.file:
                    raise HardnetError(f"{path} is damaged: its checksum is wrong; {REPAIR}")
            parts = [(staged.segment, staged.alive) for staged in group]
            merged.append(
                self._write(partial(merge_segments, parts=parts, words=self._manifest.words))
            )
        progress("compacting", len(groups), len(groups))
        if any(staged not in merged for staged in chosen):
            self._segments = [s for s in self._segments if s not in chosen] + merged
            self._changed = True

    def _write(self, write: Callable[[Path], FileFacts]) -> Staged:
        """Write a segment under a name that no file has, whoever made it, and map it."""
        with writing(self.folder):
            while True:
                name = f"{self.generation + 1:08d}-{self._written:04d}"
                self._written += 1
                if not os.path.lexists(self.folder / SEGMENT_PATH.format(name)):
                    break
            path = self._owned.claim(SEGMENT_PATH.format(name))
            try:
                file = write(path)
            except BaseException:
                self._owned.remove(SEGMENT_PATH.format(name))
                raise
        segment = Segment(path, file.bytes)
        facts = SegmentFacts(segment.images, segment.features, file)
        return Staged(SegmentEntry(name, facts), segment, None)

    def _sweep(self) -> None:
        """Delete the files of the index that its manifest does not name.

        They are those of killed writers and of compacted segments. Files that we did not make are
        never touched, whatever they are called. Readers that have a deleted file open keep it;
        where a system forbids that, it stays until the next sweep.
        """
        kept = {MANIFEST}
        if (self.folder / MANIFEST).exists():
            kept |= read_manifest(self.folder).files().keys()
        self._owned.sweep()
        for name in self._owned.names():
            if name not in kept and not name.endswith("/"):
                with suppress(OSError):
                    self._owned.remove(name)

    def _check(self) -> None:
        if not self._usable:
            raise HardnetError(
                f"this writer of {self.folder} is closed or was stopped by an error: open it again"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Errors of the disk below this become one line that names the folder and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        what = f"the index {folder} cannot be written: {reason}"
        fix = "check the disk and your rights to the folder"
        if error.errno in _FULL:
            what = f"the disk of the index {folder} is full ({reason})"
            fix = "make room and repeat the command"
        raise HardnetError(f"{what}; {committed(folder)}: {fix}") from error


def committed(folder: Path) -> str:
    """What an index holds, for messages about work that failed."""
    try:
        manifest = read_manifest(folder)
    except HardnetError:
        return "nothing was committed yet"
    photos = "1 photo is" if manifest.images == 1 else f"{manifest.images} photos are"
    return f"{photos} committed (generation {manifest.generation}) and unharmed"
