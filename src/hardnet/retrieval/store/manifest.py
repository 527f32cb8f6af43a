"""The manifest: which files are the index, and what each of them must be.

It is the only file of an index that is ever replaced, and it is replaced at once. So a reader
sees one generation or the next, whenever the writer is killed.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.retrieval.store.columns import REPAIR
from hardnet.retrieval.store.segment_columns import SegmentFacts
from hardnet.storage import FileFacts, replace_file

FORMAT = 1
MANIFEST = "manifest.json"

_PLAIN = re.compile(r"[\w-]+")  # a name without a path


@dataclass(frozen=True)
class VocabularyEntry:
    """The vocabulary's file, by its fingerprint."""

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
    """One generation of an index.

    Attributes:
        generation: counts the commits, from 1.
        settings: of the features, as the builder gave them; JSON values.
        words: size of the vocabulary.
        vocabulary: its file.
        segments: in the order of their image numbers.
        state: the file of what changes with each generation: removed images and statistics.
        images: how many can be found.
        features: how many they have.
        removed: how many images are stored that cannot be found any more.
    """

    generation: int
    settings: dict[str, Any]
    words: int
    vocabulary: VocabularyEntry
    segments: tuple[SegmentEntry, ...]
    state: FileFacts
    images: int
    features: int
    removed: int

    @property
    def state_path(self) -> str:
        """Inside the folder of the index."""
        return state_path(self.generation)

    def files(self) -> dict[str, FileFacts]:
        """All files that this generation needs, and what they must be."""
        segments = {entry.path: entry.facts.file for entry in self.segments}
        return {
            self.vocabulary.path: self.vocabulary.file,
            self.state_path: self.state,
            **segments,
        }


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
    manifest = _parse(body)
    names = [entry.name for entry in manifest.segments]
    if not all(_PLAIN.fullmatch(str(n)) for n in (*names, manifest.vocabulary.fingerprint)):
        raise HardnetError(f"{path} names files outside the index: do not use this index")
    return manifest


def _checksum(body: dict[str, Any]) -> int:
    """Crc32 over all values, however the file is laid out."""
    return zlib.crc32(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


def _parse(body: dict[str, Any]) -> Manifest:
    vocabulary = body["vocabulary"]
    return Manifest(
        **{
            **body,
            "vocabulary": VocabularyEntry(
                vocabulary["fingerprint"], FileFacts(**vocabulary["file"])
            ),
            "segments": tuple(_segment(entry) for entry in body["segments"]),
            "state": FileFacts(**body["state"]),
        }
    )


def _segment(entry: dict[str, Any]) -> SegmentEntry:
    facts = entry["facts"]
    return SegmentEntry(
        entry["name"],
        SegmentFacts(facts["images"], facts["features"], FileFacts(**facts["file"])),
    )
