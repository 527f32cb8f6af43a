"""What there is to know about an index."""

from __future__ import annotations

from typing import Any

from hardnet.retrieval.store.snapshot import Snapshot


def index_info(snapshot: Snapshot) -> dict[str, Any]:
    """Numbers and settings of an index, as JSON values.

    ``bytes`` are those of the segments and the statistics; the vocabulary is counted by itself,
    as it does not grow with the photos.
    """
    vocabulary, manifest = snapshot.vocabulary, snapshot.manifest
    size = manifest.state.bytes + sum(part.facts.file.bytes for part in manifest.segments)
    return {
        "folder": str(snapshot.folder),
        "images": snapshot.images,
        "features": snapshot.features,
        "removed": manifest.removed,
        "segments": len(snapshot.segments),
        "generation": snapshot.generation,
        "bytes": size,
        "bytes_per_feature": round(size / snapshot.features, 2) if snapshot.features else None,
        "words": len(vocabulary),
        "vocabulary": {
            "fingerprint": vocabulary.fingerprint,
            "descriptor": vocabulary.descriptor,
            "bytes": manifest.vocabulary.file.bytes,
            "provenance": vocabulary.provenance,
        },
        "settings": dict(snapshot.settings),
    }
