"""How large an index is."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hardnet.retrieval.manifest import MANIFEST, read_manifest


@dataclass(frozen=True)
class Info:
    """Sizes of one generation of an index.

    Attributes:
        images: how many can be found.
        features: how many these have.
        removed: images that take up room until a compaction.
        words: size of the vocabulary.
        segments: how many.
        generation: counts the commits.
        bytes: on the disk, all but the vocabulary.
        vocabulary_bytes: of the vocabulary, which does not grow with the collection.
    """

    images: int
    features: int
    removed: int
    words: int
    segments: int
    generation: int
    bytes: int
    vocabulary_bytes: int

    @property
    def bytes_per_feature(self) -> float:
        """What a feature that can be found costs; 0 without features."""
        return self.bytes / self.features if self.features else 0.0


def index_info(folder: str | os.PathLike[str]) -> Info:
    """Sizes of the newest generation; reads the manifest only."""
    manifest = read_manifest(Path(folder))
    vocabulary = manifest.vocabulary.file.bytes
    files = sum(facts.bytes for facts in manifest.files().values()) - vocabulary
    return Info(
        images=manifest.images,
        features=manifest.features,
        removed=manifest.removed,
        words=manifest.words,
        segments=len(manifest.segments),
        generation=manifest.generation,
        bytes=files + (Path(folder) / MANIFEST).stat().st_size,
        vocabulary_bytes=vocabulary,
    )
