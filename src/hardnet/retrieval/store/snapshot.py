"""What a reader sees of an index: one generation, whatever the writer does meanwhile.

The manifest says which files are the index, and what each of them must be. It is the only file that
is ever replaced, and it is replaced at once: so a reader sees one generation or the next, whenever
the writer is killed.

What changes with every generation is its state: which images are removed, and what scoring must
know about all images that are not. The writer computes it at every commit; a query only reads it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Progress, silent
from hardnet.image_files import as_path, require_regular_file
from hardnet.retrieval.store.segment import (
    REPAIR,
    Alive,
    Column,
    HashedNames,
    Segment,
    counting,
    map_columns,
    read_words,
    tensor_file,
)
from hardnet.retrieval.vocabulary import Vocabulary, load
from hardnet.storage import FileFacts, file_facts, replace_file, write_file
from hardnet.threads import map_threads

FORMAT = 1
MANIFEST = "manifest.json"

VOCABULARY_PATH = "vocabulary-{}.safetensors"
SEGMENT_PATH = "segments/{}.safetensors"
STATE_PATH = "generations/{:08d}.safetensors"
"""Where files lie in the folder of the index, by digest, name and generation."""

_PLAIN = re.compile(r"[\w-]+")  # a name without a path


@dataclass(frozen=True)
class SegmentFacts:
    """What the manifest knows of a segment."""

    images: int
    features: int
    file: FileFacts


@dataclass(frozen=True)
class SegmentEntry:
    """A segment's name and facts."""

    name: str
    facts: SegmentFacts


@dataclass(frozen=True)
class VocabularyEntry:
    """The file of the vocabulary, by its digest, which the format calls fingerprint."""

    fingerprint: str
    file: FileFacts


@dataclass(frozen=True)
class Manifest:
    """One generation of an index."""

    generation: int  # counts the commits, from 1
    settings: dict[str, Any]  # of the features, as the builder gave them; JSON values
    words: int  # size of the vocabulary
    vocabulary: VocabularyEntry
    segments: tuple[SegmentEntry, ...]  # in the order of their image numbers
    state: FileFacts  # the file of what changes with each generation
    images: int  # how many can be found
    features: int  # how many they have
    removed: int  # how many images are stored that cannot be found any more

    def files(self) -> dict[str, FileFacts]:
        """All files that this generation needs, and what they must be."""
        files = {
            VOCABULARY_PATH.format(self.vocabulary.fingerprint): self.vocabulary.file,
            STATE_PATH.format(self.generation): self.state,
        }
        return files | {SEGMENT_PATH.format(one.name): one.facts.file for one in self.segments}


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Make this generation the one that readers see."""
    body = asdict(manifest)
    document = {"format": FORMAT, "crc32": _checksum(body), **body}
    replace_file(folder / MANIFEST, json.dumps(document, indent=1).encode() + b"\n")


def read_manifest(folder: Path) -> Manifest:
    """The generation that is visible now."""
    path = folder / MANIFEST
    try:
        require_regular_file(path)
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
            "pip install --upgrade hardnet, or build the index again"
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
    """Over all values, however the file is laid out."""
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _parse(body: dict[str, Any]) -> Manifest:
    def file(owner: dict[str, Any]) -> dict[str, Any]:
        return owner | {"file": FileFacts(**owner["file"])}

    segments = tuple(
        SegmentEntry(one["name"], SegmentFacts(**file(one["facts"]))) for one in body["segments"]
    )
    manifest = Manifest(
        **body
        | {
            "vocabulary": VocabularyEntry(**file(body["vocabulary"])),
            "segments": segments,
            "state": FileFacts(**body["state"]),
        }
    )
    counts = [
        getattr(manifest, n) for n in ("generation", "words", "images", "features", "removed")
    ]
    counts += [n for one in segments for n in (one.facts.images, one.facts.features)]
    counts += [n for facts in manifest.files().values() for n in (facts.bytes, facts.crc32)]
    if not all(type(number) is int and number >= 0 for number in counts):
        raise ValueError("a number in it is none")
    if not isinstance(manifest.settings, dict):
        raise ValueError("it has no settings")
    return manifest


IMAGES_PER_PIECE = 256
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


def compute_statistics(
    segments: Sequence[Segment], alive: Sequence[Alive], words: int
) -> Statistics:
    """The statistics of an index.

    Removing an image and never having added it give the same numbers. The norms of removed images
    are computed like any other and mean nothing.
    """
    counts, images = np.zeros(words, np.int64), 0
    for segment, living in zip(segments, alive, strict=True):
        counts += segment.document_counts
        images += segment.images
        if living is not None:
            removed = np.flatnonzero(~living)
            counts -= np.bincount(_word_runs(segment, removed, words)[1], minlength=words)
            images -= len(removed)
    document_counts = counts.astype(np.uint32)
    idf = _inverse_document_frequency(images, document_counts)
    norms = [_norms(segment, idf) for segment in segments]
    bow, he = (tuple(one[which] for one in norms) for which in range(2))
    return Statistics(images, document_counts, idf, bow, he)


def _inverse_document_frequency(images: int, counts: NDArray[np.uint32]) -> NDArray[np.float32]:
    seen = counts > 0
    idf = np.zeros(len(counts), np.float32)
    idf[seen] = np.log(images / counts[seen].astype(np.float64))
    return idf


def _norms(
    segment: Segment, idf: NDArray[np.float32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(I,) lengths of the vectors of all images, for bag of words and for Hamming embedding."""
    bow, he = (np.zeros(segment.images, np.float32) for _ in range(2))

    def piece(first: int) -> None:
        images = np.arange(first, min(first + IMAGES_PER_PIECE, segment.images))
        owner, words, tf = _word_runs(segment, images, len(idf))
        squares = idf[words].astype(np.float64) ** 2
        bow[images] = np.sqrt(np.bincount(owner, tf * tf * squares, len(images)))
        he[images] = np.sqrt(np.bincount(owner, squares, len(images)))

    map_threads(piece, range(0, segment.images, IMAGES_PER_PIECE))
    return bow, he


def _word_runs(
    segment: Segment, images: NDArray[np.int64], vocabulary_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int64]]:
    """The different words of images: (n,) which of the images, (n,) the word, (n,) how often."""
    counts = segment.feature_counts[images]
    rows = segment.forward_words[counting(segment.forward_offsets[images], counts)]
    owner, words = np.repeat(np.arange(len(images)), counts), read_words(rows)
    known = words < vocabulary_size  # or the segment is damaged
    owner, words = owner[known], words[known]
    # The words of an image are ascending: equal ones lie side by side.
    new = np.ones(len(words), bool)
    new[1:] = (words[1:] != words[:-1]) | (owner[1:] != owner[:-1])
    first = np.flatnonzero(new)
    return owner[first], words[first], np.diff(first, append=len(words))


def write_state(path: Path, alive: Sequence[Alive], statistics: Statistics) -> FileFacts:
    """Write the state of a generation."""
    bases = _bases([len(norms) for norms in statistics.bow_norms])
    dead = [
        base + np.flatnonzero(~living)
        for base, living in zip(bases, alive, strict=True)
        if living is not None
    ]
    columns = {
        "removed": np.concatenate([np.zeros(0, np.int64), *dead]).astype(np.uint32),
        "document_counts": statistics.document_counts,
        "bow_norms": np.concatenate([np.zeros(0, np.float32), *statistics.bow_norms]),
        "he_norms": np.concatenate([np.zeros(0, np.float32), *statistics.he_norms]),
    }
    return write_file(path, tensor_file(columns))


def _read_state(
    columns: dict[str, Column], sizes: Sequence[int], images: int
) -> tuple[tuple[Alive, ...], Statistics]:
    """Which images of segments of these sizes are alive, and the statistics of all ``images``.

    The norms stay mapped.
    """
    bases, removed = _bases(sizes), columns["removed"].astype(np.int64)
    alive: list[Alive] = []
    for base, size in zip(bases, sizes, strict=True):
        first, last = np.searchsorted(removed, [base, base + size])
        living = np.ones(size, bool)
        living[removed[first:last] - base] = False
        living.flags.writeable = False
        alive.append(living if last > first else None)
    if not len(columns["bow_norms"]) == len(columns["he_norms"]) == sum(sizes):
        raise ValueError("it has norms of other images")
    bow, he = (
        tuple(np.split(columns[name], bases[1:])) if sizes else ()
        for name in ("bow_norms", "he_norms")
    )
    counts: NDArray[np.uint32] = columns["document_counts"]
    idf = _inverse_document_frequency(images, counts)
    return tuple(alive), Statistics(images, counts, idf, bow, he)


def _bases(sizes: Sequence[int]) -> list[int]:
    return list(accumulate(sizes, initial=0))[:-1]


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
            Segment(folder / SEGMENT_PATH.format(entry.name), entry.facts.file.bytes)
            for entry in manifest.segments
        )
        sizes = [len(segment) for segment in self.segments]
        self.bases = tuple(_bases(sizes))
        if any(segment.words != manifest.words for segment in self.segments):
            raise HardnetError(f"{folder / MANIFEST} has other words than its files; {REPAIR}")
        path = folder / STATE_PATH.format(manifest.generation)
        state = map_columns(path, manifest.state.bytes)
        try:
            self.alive, self.statistics = _read_state(state, sizes, self.images)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error
        self._vocabulary_path = folder / VOCABULARY_PATH.format(manifest.vocabulary.fingerprint)
        found, expected = self._vocabulary_path.stat().st_size, manifest.vocabulary.file.bytes
        if found != expected:  # reading it can wait
            raise HardnetError(
                f"{self._vocabulary_path} has {found} bytes instead of {expected}; {REPAIR}"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The words, read when first asked for."""
        return load(self._vocabulary_path)

    def locate(self, image: int) -> tuple[int, int]:
        """Position of its segment, and its number there."""
        position = bisect_right(self.bases, image) - 1
        if position < 0 or image - self.bases[position] >= len(self.segments[position]):
            raise IndexError(f"no image {image} in {self.folder}")
        return position, image - self.bases[position]

    def name(self, image: int) -> str:
        position, local = self.locate(image)
        return self.segments[position].name(local)

    def size(self, image: int) -> tuple[int, int]:
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
        """(N,) the images of those names, -1 where there is none; much quicker than one by one."""
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
            return Snapshot(folder, manifest)
        except FileNotFoundError as error:
            # A writer may have made a new generation and deleted files of the one before.
            newer = read_manifest(folder)
            if newer.generation == manifest.generation:
                raise HardnetError(f"{error.filename} is missing; {REPAIR}") from error
            manifest = newer


@dataclass(frozen=True)
class Report:
    """What a check found."""

    generation: int  # the one that was checked
    files: int  # how many files it needs, the manifest not counted
    bytes: int  # how many bytes they should have
    problems: tuple[str, ...]  # one line for each file that is not what was written

    @property
    def ok(self) -> bool:
        return not self.problems


def verify(folder: str | os.PathLike[str], progress: Progress = silent) -> Report:
    """Compare every file of the newest generation with its size and checksum.

    A writer may work meanwhile; it needs no lock and no right to write. The progress is "checking",
    bytes read, bytes in all.
    """
    folder = as_path(folder)
    manifest = read_manifest(folder)
    problems: dict[str, str] = {}
    done, total = 0, sum(facts.bytes for facts in manifest.files().values())
    for name, facts in manifest.files().items():
        if (problem := _problem(folder / name, facts)) is not None:
            problems[name] = problem
        done += facts.bytes
        progress("checking", done, total)
    needed = read_manifest(folder).files()  # a writer may have deleted files that it replaced
    found = tuple(problem for name, problem in problems.items() if name in needed)
    return Report(manifest.generation, len(manifest.files()), total, found)


def _problem(path: Path, expected: FileFacts) -> str | None:
    try:
        found = file_facts(path)
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    if found.bytes != expected.bytes:
        return f"{path} has {found.bytes} bytes instead of {expected.bytes}"
    return None if found == expected else f"{path} is damaged: its checksum is wrong"
