"""What a reader sees of an index: one generation, whatever the writer does meanwhile."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.store.columns import REPAIR, Column, map_columns
from hardnet.retrieval.store.manifest import Manifest, read_manifest
from hardnet.retrieval.store.names import HashedNames
from hardnet.retrieval.store.segment import Segment
from hardnet.retrieval.store.state import bases_of, read_alive, read_statistics
from hardnet.retrieval.store.statistics import Statistics
from hardnet.storage import as_path

if TYPE_CHECKING:
    from hardnet.retrieval.vocabulary import Vocabulary


class Snapshot:
    """One generation of an index, mapped into memory; safe to share between threads.

    Images are numbered through all segments, removed ones too. A number means something in its
    snapshot only: a compaction numbers anew.

    Attributes:
        folder: of the index.
        manifest: of this generation.
        segments: in the order of their image numbers.
        bases: the number of the first image of each segment.
        alive: per segment (I,) bool, which images are in the index; None for all.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder = folder
        self.manifest = manifest
        self.segments = tuple(
            Segment(folder / entry.path, entry.facts.file.bytes) for entry in manifest.segments
        )
        sizes = [len(segment) for segment in self.segments]
        self.bases = tuple(bases_of(sizes))
        self._state: dict[str, Column] = map_columns(
            folder / manifest.state_path, manifest.state.bytes
        )
        self.alive = read_alive(self._state, sizes)

    @property
    def generation(self) -> int:
        """Counts the commits."""
        return self.manifest.generation

    @property
    def settings(self) -> dict[str, Any]:
        """Of the features: what a query must be extracted with."""
        return self.manifest.settings

    @property
    def words(self) -> int:
        """Size of the vocabulary."""
        return self.manifest.words

    @property
    def images(self) -> int:
        """How many images are in the index; removed ones do not count."""
        return self.manifest.images

    @property
    def features(self) -> int:
        """How many features these images have."""
        return self.manifest.features

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words, read when first asked for."""
        from hardnet.retrieval.vocabulary import load

        return load(self.folder / self.manifest.vocabulary.path)

    @cached_property
    def statistics(self) -> Statistics:
        """Counts and norms, as the writer computed them."""
        sizes = [len(segment) for segment in self.segments]
        return read_statistics(self._state, sizes, self.images)

    def locate(self, image: int) -> tuple[int, int]:
        """Position of its segment, and its number there."""
        position = bisect_right(self.bases, image) - 1
        if position < 0 or image - self.bases[position] >= len(self.segments[position]):
            raise IndexError(f"no image {image} in {self.folder}")
        return position, image - self.bases[position]

    def name(self, image: int) -> str:
        """The name of an image."""
        position, local = self.locate(image)
        return self.segments[position].name(local)

    def size(self, image: int) -> tuple[int, int]:
        """Width and height of an image."""
        position, local = self.locate(image)
        return self.segments[position].size(local)

    def file(self, image: int) -> tuple[int, int]:
        """Bytes and time of change (ns) of the file that an image was read from."""
        position, local = self.locate(image)
        segment = self.segments[position]
        return int(segment.file_bytes[local]), int(segment.mtime_ns[local])

    def find(self, name: str) -> int | None:
        """The image of that name, if it is in the index."""
        image = int(self.find_many([name])[0])
        return None if image < 0 else image

    def find_many(self, names: Sequence[str]) -> NDArray[np.int64]:
        """(N,) the images of those names; -1 where there is none. Much quicker than one by one."""
        hashed = HashedNames(names)
        out = np.full(len(names), -1, np.int64)
        for segment, base, living in zip(self.segments, self.bases, self.alive, strict=True):
            rows, local = segment.find_many(hashed)
            if len(rows) and living is not None:
                rows, local = rows[living[local]], local[living[local]]
            out[rows] = base + local
        return out

    def names(self) -> list[str]:
        """The names of all images that are in the index."""
        return [
            name
            for segment, living in zip(self.segments, self.alive, strict=True)
            for local, name in enumerate(segment.names())
            if living is None or living[local]
        ]


def open_snapshot(folder: str | os.PathLike[str]) -> Snapshot:
    """The newest generation of an index; needs no lock and no right to write.

    Sizes of files are checked here, their checksums by
    :func:`~hardnet.retrieval.store.checks.verify`.
    """
    folder = as_path(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            snapshot = Snapshot(folder, manifest)
            check_vocabulary(folder, manifest)
            return snapshot
        except FileNotFoundError as error:
            # A writer may have made a new generation and deleted files of the one before.
            newer = read_manifest(folder)
            if newer.generation == manifest.generation:
                raise HardnetError(f"{error.filename} is missing; {REPAIR}") from error
            manifest = newer


def check_vocabulary(folder: Path, manifest: Manifest) -> None:
    """The vocabulary is there and has its size; reading it can wait."""
    path = folder / manifest.vocabulary.path
    found, expected = path.stat().st_size, manifest.vocabulary.file.bytes
    if found != expected:
        raise HardnetError(f"{path} has {found} bytes instead of {expected}; {REPAIR}")
