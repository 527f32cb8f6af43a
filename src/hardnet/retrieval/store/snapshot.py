"""What a reader sees of an index: one generation, whatever the writer does meanwhile.

The manifest says which files are the index, and what each of them must be. It is the only file that
is ever replaced, and it is replaced at once: so a reader sees one generation or the next, whenever
the writer is killed.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.store.columns import REPAIR, map_columns
from hardnet.retrieval.store.segment import HashedNames, Segment, SegmentFacts
from hardnet.retrieval.store.statistics import bases_of, read_alive, read_statistics
from hardnet.storage import FileFacts, as_path, replace_file

if TYPE_CHECKING:
    from hardnet.retrieval.vocabulary import Vocabulary

FORMAT = 1
MANIFEST = "manifest.json"

_PLAIN = re.compile(r"[\w-]+")  # a name without a path


@dataclass(frozen=True)
class VocabularyEntry:
    """The file of the vocabulary, by its digest, which the format calls fingerprint."""

    fingerprint: str
    file: FileFacts

    @property
    def path(self) -> str:
        """Inside the folder of the index."""
        return f"vocabulary-{self.fingerprint}.safetensors"


@dataclass(frozen=True)
class SegmentEntry:
    """A segment's name and facts."""

    name: str
    facts: SegmentFacts

    @property
    def path(self) -> str:
        """Inside the folder of the index."""
        return segment_path(self.name)


@dataclass(frozen=True)
class Manifest:
    """One generation of an index."""

    generation: int  # counts the commits, from 1
    settings: dict[str, Any]  # of the features, as the builder gave them; JSON values
    words: int  # size of the vocabulary
    vocabulary: VocabularyEntry  # its file
    segments: tuple[SegmentEntry, ...]  # in the order of their image numbers
    state: FileFacts  # the file of what changes with each generation: removed images and statistics
    images: int  # how many can be found
    features: int  # how many they have
    removed: int  # how many images are stored that cannot be found any more

    def files(self) -> dict[str, FileFacts]:
        """All files that this generation needs, and what they must be."""
        files = {
            self.vocabulary.path: self.vocabulary.file,
            state_path(self.generation): self.state,
        }
        return files | {entry.path: entry.facts.file for entry in self.segments}


def segment_path(name: str) -> str:
    """Where a segment lies in the folder of the index."""
    return f"segments/{name}.safetensors"


def state_path(generation: int) -> str:
    """Where the state of a generation lies in the folder of the index."""
    return f"generations/{generation:08d}.safetensors"


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make this generation the one that readers see."""
    body = asdict(manifest)
    document = {"format": FORMAT, "crc32": _checksum(body), **body}
    replace_file(folder / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """The generation that is visible now."""
    path = folder / MANIFEST
    try:
        body: Any = json.loads(path.read_bytes())
        version, checksum = body.pop("format"), body.pop("crc32")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise HardnetError(
            f"{folder} holds no index (no {MANIFEST}): build one with hardnet index build"
        ) from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise HardnetError(f"{path} is damaged: it is no manifest of an index; {REPAIR}") from error
    if version != FORMAT:
        raise HardnetError(
            f"{path} is of format {version}, this version of hardnet reads format {FORMAT}: "
            'pip install --upgrade "hardnet[search]", or build the index again'
        )
    if checksum != _checksum(body):
        raise HardnetError(f"{path} is damaged: its checksum is wrong; {REPAIR}")
    try:
        manifest = _parse(body)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error
    names = [entry.name for entry in manifest.segments]
    if not all(_PLAIN.fullmatch(str(n)) for n in (*names, manifest.vocabulary.fingerprint)):
        raise HardnetError(f"{path} names files outside the index: do not use this index")
    return manifest


def _checksum(body: dict[str, Any]) -> int:
    """Crc32 over all values, however the file is laid out."""
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _parse(body: dict[str, Any]) -> Manifest:
    def segment(name: str, facts: dict[str, Any]) -> SegmentEntry:
        images, features, file = facts["images"], facts["features"], FileFacts(**facts["file"])
        return SegmentEntry(name, SegmentFacts(images, features, file))

    vocabulary = body["vocabulary"]
    entry = VocabularyEntry(vocabulary["fingerprint"], FileFacts(**vocabulary["file"]))
    segments = tuple(segment(one["name"], one["facts"]) for one in body["segments"])
    state = FileFacts(**body["state"])
    manifest = Manifest(**{**body, "vocabulary": entry, "segments": segments, "state": state})
    counts = [manifest.generation, manifest.words, manifest.images, manifest.features]
    counts += [manifest.removed, *(n for e in segments for n in (e.facts.images, e.facts.features))]
    counts += [n for file in manifest.files().values() for n in (file.bytes, file.crc32)]
    if not all(type(number) is int and number >= 0 for number in counts):
        raise ValueError("a number in it is none")
    if not isinstance(manifest.settings, dict):
        raise ValueError("it has no settings")
    return manifest


class Snapshot:
    """One generation of an index, mapped into memory; safe to share between threads.

    Images are numbered through all segments, removed ones too. A number means something in its
    snapshot only: a compaction gives new ones. ``bases`` are the numbers of the first image of each
    segment; ``alive`` says per segment (I,) which images are in the index, None for all.
    """

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.folder, self.manifest = folder, manifest
        self.generation, self.settings = manifest.generation, manifest.settings
        self.words = manifest.words
        self.images, self.features = manifest.images, manifest.features  # removed do not count
        self.segments = tuple(
            Segment(folder / entry.path, entry.facts.file.bytes) for entry in manifest.segments
        )
        sizes = [len(segment) for segment in self.segments]
        self.bases = tuple(bases_of(sizes))
        if any(segment.words != manifest.words for segment in self.segments):
            raise HardnetError(f"{folder / MANIFEST} has other words than its files; {REPAIR}")
        path = folder / state_path(manifest.generation)
        state = map_columns(path, manifest.state.bytes)
        try:
            self.alive = read_alive(state, sizes)
            self.statistics = read_statistics(state, sizes, self.images)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words, read when first asked for."""
        from hardnet.retrieval.vocabulary import load

        return load(self.folder / self.manifest.vocabulary.path)

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
        return list(self.feature_counts())

    def removed_names(self) -> list[str]:
        """The names of removed images that are still stored, sorted."""
        dead = {
            segment.name(int(local))
            for segment, living in zip(self.segments, self.alive, strict=True)
            if living is not None
            for local in np.flatnonzero(~living)
        }
        return sorted(dead - set(self.names()))

    def feature_counts(self) -> dict[str, int]:
        """Name -> how many features it has, of all images that are in the index."""
        return {
            name: count
            for segment, living in zip(self.segments, self.alive, strict=True)
            for local, (name, count) in enumerate(
                zip(segment.names(), segment.feature_counts.tolist(), strict=True)
            )
            if living is None or living[local]
        }


def open_snapshot(folder: str | os.PathLike[str]) -> Snapshot:
    """The newest generation of an index; needs no lock and no right to write.

    Sizes of files are checked here, their checksums by :func:`verify`.
    """
    folder = as_path(folder)
    manifest = read_manifest(folder)
    while True:
        try:
            snapshot = Snapshot(folder, manifest)
            path, expected = folder / manifest.vocabulary.path, manifest.vocabulary.file.bytes
            if (found := path.stat().st_size) != expected:  # reading it can wait
                raise HardnetError(f"{path} has {found} bytes instead of {expected}; {REPAIR}")
            return snapshot
        except FileNotFoundError as error:
            # A writer may have made a new generation and deleted files of the one before.
            newer = read_manifest(folder)
            if newer.generation == manifest.generation:
                raise HardnetError(f"{error.filename} is missing; {REPAIR}") from error
            manifest = newer


Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""

_CHUNK = 1 << 24


@dataclass(frozen=True)
class Report:
    """What a check found."""

    generation: int  # the one that was checked
    files: int  # how many files it needs, the manifest not counted
    bytes: int  # how many bytes they should have
    problems: tuple[str, ...]  # one line for each file that is not what was written

    @property
    def ok(self) -> bool:
        """Every file is what was written."""
        return not self.problems


def verify(folder: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Compare every file of the newest generation with its size and checksum.

    A writer may work meanwhile; it needs no lock and no right to write. The progress is "checking",
    bytes read, bytes in all.
    """
    folder = as_path(folder)
    with ExitStack() as stack:
        manifest, opened, problems = _open_all(folder, stack)
        total = sum(facts.bytes for _, facts in opened)
        done = 0
        for file, facts in opened:
            found, size = 0, 0
            while chunk := file.read(_CHUNK):
                found, size = zlib.crc32(chunk, found), size + len(chunk)
                if progress:
                    progress("checking", min(done + size, total), total)
            done += facts.bytes
            if size != facts.bytes:
                problems.append(f"{file.name} has {size} bytes instead of {facts.bytes}")
            elif found != facts.crc32:
                problems.append(f"{file.name} is damaged: its checksum is wrong")
    files = manifest.files().values()
    return Report(
        manifest.generation, len(files), sum(facts.bytes for facts in files), tuple(problems)
    )


def _open_all(
    folder: Path, stack: ExitStack
) -> tuple[Manifest, list[tuple[BinaryIO, FileFacts]], list[str]]:
    """All files of one generation, open before any is read: no writer can take them away."""
    manifest = read_manifest(folder)
    while True:
        opened: list[tuple[BinaryIO, FileFacts]] = []
        problems: list[str] = []
        for name, facts in manifest.files().items():
            path = folder / name
            try:
                opened.append((stack.enter_context(path.open("rb")), facts))
            except FileNotFoundError:
                problems.append(f"{path} is missing")
            except OSError as error:
                problems.append(f"{path} cannot be read: {error.strerror or error}")
        newer = read_manifest(folder)
        if not problems or newer.generation == manifest.generation:
            return manifest, opened, problems
        stack.close()
        manifest = newer
