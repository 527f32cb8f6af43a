"""Changing an index: one writer at a time, and nothing is visible before it commits."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hardnet.errors import HardnetError
from hardnet.retrieval.closable import Closable
from hardnet.retrieval.store import compaction
from hardnet.retrieval.store.manifest import MANIFEST, Manifest, read_manifest
from hardnet.retrieval.store.names import encode_name
from hardnet.retrieval.store.publish import NewIndex as NewIndex
from hardnet.retrieval.store.publish import publish
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.segment_columns import SEGMENT_IMAGES
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.store.staging import Progress, Staged, Staging, writing
from hardnet.retrieval.store.sweep import sweep
from hardnet.storage import FolderLock, OwnedFolder, as_path

SEGMENT_FEATURES = 4_000_000
"""A segment is written when so many features are in hand: a hundred megabytes."""
FEATURES_PER_WORD = 16
"""But at least so many per word, or the table of a large vocabulary would weigh too much."""


class Writer(Closable):
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
        self.folder = as_path(folder)
        self._present = self._read(create)  # says what is wrong before a lock file is made
        self._lock = FolderLock(self.folder)
        with writing(self.folder):
            for place in ("segments", "generations"):
                (self.folder / place).mkdir(parents=True, exist_ok=True)
            if not self._lock.take():
                raise HardnetError(
                    f"another process is writing to the index {self.folder}: "
                    "wait until it has finished, then repeat the command"
                )
        try:
            self._present = self._read(create)  # others may have written until now
            self._pending: dict[str, IndexedImage] = {}
            self._pending_features = 0
            self._open = self._usable = True
            self._segment_features = segment_features or max(
                SEGMENT_FEATURES, FEATURES_PER_WORD * self.words
            )
            segments = self._open_segments()
            self._owned = self._own()
            self._staging = Staging(self._owned, self.words, segments, self._segment_features)
            self._staging.begin(self.generation + 1)
            sweep(self._owned)
        except BaseException:
            self._lock.release()
            raise

    def _read(self, create: NewIndex | None) -> Manifest | NewIndex:
        if create is None:
            return read_manifest(self.folder)
        if (self.folder / MANIFEST).exists():
            raise HardnetError(
                f"{self.folder} holds an index already: add to it, or choose another folder"
            )
        return create

    def _own(self) -> OwnedFolder:
        """The folder, with all that the manifest names as ours: it has their checksums."""
        with writing(self.folder):
            owned = OwnedFolder.mark(self.folder)
            owned.durable = True
            if isinstance(self._present, Manifest):
                owned.adopt(MANIFEST, *self._present.files())
        return owned

    def _open_segments(self) -> list[Staged]:
        if not isinstance(self._present, Manifest):
            return []
        snapshot = open_snapshot(self.folder)
        parts = zip(self._present.segments, snapshot.segments, snapshot.alive, strict=True)
        return [Staged(*part) for part in parts]

    def close(self) -> None:
        """Let others write. What was not committed is forgotten."""
        self._usable = False
        self._pending.clear()
        if self._open:
            self._open = False
            sweep(self._owned)
            self._lock.release()

    @property
    def words(self) -> int:
        """Size of the vocabulary."""
        if isinstance(self._present, Manifest):
            return self._present.words
        return len(self._present["vocabulary"])

    @property
    def generation(self) -> int:
        """Of the last commit; 0 before the first one of a new index."""
        return self._present.generation if isinstance(self._present, Manifest) else 0

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
        found = {name for name in wanted if self._take_back(name)}
        found |= self._staging.bury(wanted)
        return [name for name in wanted if name not in found]

    def compact(self, waste: float = 0.1, progress: Progress | None = None) -> None:
        """Write segments anew that are small, or of which more than ``waste`` is removed images.

        With ``waste`` 0 no byte of a removed image is left after the commit.
        """
        self._check()
        self._flush()
        small = self._staging.between(0, 1 / 2)
        chosen = [
            staged
            for staged in self._staging.segments
            if staged in small or compaction.waste(staged.part) > waste
        ]
        self._staging.merge(chosen, progress)

    def commit(self) -> int:
        """Make everything since the last commit visible, at once and for good.

        Returns:
            The new generation; the old one if nothing has changed.
        """
        self._check()
        self._flush()
        if isinstance(self._present, Manifest) and not self._staging.changed:
            return self.generation
        self._staging.tidy()
        # After a failure in here it is open which generation readers see: no second attempt.
        self._usable = False
        with writing(self.folder):
            self._present = publish(self._owned, self._present, self._staging)
        self._staging.begin(self.generation + 1)
        sweep(self._owned)
        self._usable = True
        return self.generation

    def _flush(self) -> None:
        """Write what is in hand as a segment."""
        if self._pending:
            self._staging.append(list(self._pending.values()))
            self._pending, self._pending_features = {}, 0

    def _take_back(self, name: str) -> bool:
        """Forget an image that is in hand; whether it was."""
        image = self._pending.pop(name, None)
        if image is None:
            return False
        self._pending_features -= len(image)
        return True

    def _check(self) -> None:
        if not self._usable:
            raise HardnetError(
                f"this writer of {self.folder} is closed or was stopped by an error: open it again"
            )
