"""The files of an index: arrays that are mapped into memory, and the manifest that names them.

Arrays are in the safetensors format, checked with a crc32; equal contents are equal bytes. One file
for all columns of a segment keeps the number of open files as small as the number of segments, and
its writing down to one sync.

The manifest says which files are the index, and what each of them must be. It is the only file that
is ever replaced, and it is replaced at once: so a reader sees one generation or the next, whenever
the writer is killed.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import require_regular_file
from hardnet.storage import replacing

KINDS = {
    "U8": "<u1",
    "U16": "<u2",
    "U32": "<u4",
    "U64": "<u8",
    "I64": "<i8",
    "F16": "<f2",
    "F32": "<f4",
}
_CODES = {np.dtype(kind): code for code, kind in KINDS.items()}

METADATA = "__metadata__"
"""Where the header of a file has its facts, among the names of the arrays."""


def tensor_file(
    arrays: Mapping[str, NDArray[Any]], facts: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of a file of arrays by name, and of facts about them, in parts, in order."""
    little = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        # The widest numbers come first, so that all are aligned.
        for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    }
    header: dict[str, Any] = {METADATA: dict(facts)} if facts else {}
    end = 0
    for name, array in little.items():
        start, end = end, end + array.nbytes
        kind = _CODES[array.dtype]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    views = [array.reshape(-1).view(np.uint8).data for array in little.values() if array.size]
    return [struct.pack("<Q", len(text)), text, *views]


Column = NDArray[Any]

REPAIR = "bring the index folder back from a copy, or build the index again"
"""The fix for any damage."""


_CHUNK = 1 << 24


@dataclass(frozen=True)
class FileFacts:
    """What a file must be: its size, and the crc32 of its bytes."""

    bytes: int
    crc32: int


def write_file(path: Path, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    """Write and sync a new file; its name is on the disk after :func:`sync_folder`.

    It must not exist: another process may have it mapped and would see it change.
    """
    with path.open("xb", buffering=0) as file:
        return _write(file, chunks)


def _write(file: FileIO, chunks: Iterable[bytes | memoryview]) -> FileFacts:
    size = crc = 0
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        crc = zlib.crc32(view, crc)
        size += len(view)
        while len(view):
            view = view[file.write(view) :]
    os.fsync(file.fileno())
    return FileFacts(size, crc)


def sync_folder(folder: Path) -> None:
    """Names made or replaced in a folder survive a power cut from here on."""
    if os.name == "nt":  # a folder cannot be opened there
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_facts(path: Path) -> FileFacts:
    """The facts of a file as it is."""
    size = crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            crc = zlib.crc32(chunk, crc)
            size += len(chunk)
    return FileFacts(size, crc)


def write_columns(path: Path, columns: Mapping[str, Column]) -> FileFacts:
    """Write arrays under their names."""
    return write_file(path, tensor_file(columns))


def map_columns(path: Path, expected: int | None = None) -> dict[str, Column]:
    """The arrays of a file, read-only and mapped: nothing but the header is read.

    They stay readable while anybody holds one of them, even if the file is deleted. ``expected`` is
    its size in bytes, if known.

    Raises:
        FileNotFoundError: it is not there.
        HardnetError: it is not what was written.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        fix = "raise the number of files you may open (ulimit -n)"
        fix = fix if error.errno == errno.EMFILE else "check the disk and your rights to the file"
        raise HardnetError(f"{path} cannot be read: {error.strerror}; {fix}") from error
    except ValueError as error:
        raise HardnetError(f"{path} is empty; {REPAIR}") from error
    if expected is not None and len(content) != expected:
        raise HardnetError(f"{path} has {len(content)} bytes instead of {expected}; {REPAIR}")
    try:
        return _arrays(content)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error


def _arrays(content: mmap.mmap) -> dict[str, Column]:
    (length,) = struct.unpack_from("<Q", content)
    header: dict[str, dict[str, Any]] = json.loads(content[8 : 8 + length])
    arrays: dict[str, Column] = {}
    for name, facts in header.items():
        kind, shape = np.dtype(KINDS[facts["dtype"]]), tuple(facts["shape"])
        start, _ = facts["data_offsets"]
        count = int(np.prod(shape, dtype=np.int64))
        if not count:
            arrays[name] = np.zeros(shape, kind)
            arrays[name].flags.writeable = False
            continue
        arrays[name] = np.frombuffer(content, kind, count, 8 + length + start).reshape(shape)
    return arrays


FORMAT = 1
MANIFEST = "manifest.json"

_PLAIN = re.compile(r"[\w-]+")  # a name without a path


@dataclass(frozen=True)
class SegmentFacts:
    """What the manifest knows of a segment."""

    images: int
    features: int
    file: FileFacts


@dataclass(frozen=True)
class VocabularyEntry:
    """The file of the vocabulary, by its digest, which the format calls fingerprint."""

    fingerprint: str
    file: FileFacts


@dataclass(frozen=True)
class SegmentEntry:
    """A segment's name and facts."""

    name: str
    facts: SegmentFacts


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
            vocabulary_path(self.vocabulary.fingerprint): self.vocabulary.file,
            state_path(self.generation): self.state,
        }
        return files | {segment_path(entry.name): entry.facts.file for entry in self.segments}


def vocabulary_path(fingerprint: str) -> str:
    """Where a vocabulary lies in the folder of the index."""
    return f"vocabulary-{fingerprint}.safetensors"


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
    with replacing(folder / MANIFEST) as part, part.open("wb", buffering=0) as file:
        _write(file, [json.dumps(document, indent=1).encode() + b"\n"])
    sync_folder(folder)


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
