"""Making a staged generation the one that readers see."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypedDict

from hardnet.retrieval.store import compaction
from hardnet.retrieval.store.manifest import (
    MANIFEST,
    Manifest,
    VocabularyEntry,
    state_path,
    write_manifest,
)
from hardnet.retrieval.store.staging import Staging
from hardnet.retrieval.store.state import write_state
from hardnet.retrieval.store.statistics import compute
from hardnet.retrieval.vocabulary import Vocabulary, file_content
from hardnet.storage import FileFacts, OwnedFolder, sync_folder, write_file


class NewIndex(TypedDict):
    """What a new index is made of: settings (JSON values) of the features, and a vocabulary."""

    settings: dict[str, Any]
    vocabulary: Vocabulary


def publish(owned: OwnedFolder, present: Manifest | NewIndex, staging: Staging) -> Manifest:
    """Write what the coming generation needs, all of it to the disk, and then its manifest.

    Args:
        owned: folder of the index.
        present: the generation before, or what a new index is made of.
        staging: the coming generation.

    Returns:
        Its manifest.
    """
    segments = [staged.segment for staged in staging.segments]
    alive = [staged.alive for staged in staging.segments]
    counts = [compaction.living(staged.part) for staged in staging.segments]
    images = sum(count for count, _ in counts)
    words = present.words if isinstance(present, Manifest) else len(present["vocabulary"])
    facts: dict[str, Any] = {
        "generation": staging.generation,
        "segments": tuple(staged.entry for staged in staging.segments),
        "state": write_state(
            owned.claim(state_path(staging.generation)), alive, compute(segments, alive, words)
        ),
        "images": images,
        "features": sum(count for _, count in counts),
        "removed": sum(len(segment) for segment in segments) - images,
    }
    if isinstance(present, Manifest):
        manifest = replace(present, **facts)
    else:
        vocabulary = _save_vocabulary(owned, present["vocabulary"])
        manifest = Manifest(
            settings=present["settings"], words=words, vocabulary=vocabulary, **facts
        )
    for place in ("segments", "generations"):
        sync_folder(owned.path / place)
    owned.claim(MANIFEST)
    write_manifest(owned.path, manifest)
    return manifest


def _save_vocabulary(owned: OwnedFolder, vocabulary: Vocabulary) -> VocabularyEntry:
    entry = VocabularyEntry(vocabulary.fingerprint, FileFacts(0, 0))
    return replace(entry, file=write_file(owned.claim(entry.path), file_content(vocabulary)))
