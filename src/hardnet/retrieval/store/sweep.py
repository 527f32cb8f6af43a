"""Deleting files that no generation needs: those of killed writers and of compacted segments."""

from __future__ import annotations

from contextlib import suppress

from hardnet.retrieval.store.manifest import MANIFEST, read_manifest
from hardnet.storage import OwnedFolder


def sweep(owned: OwnedFolder) -> None:
    """Delete the files of an index that its manifest does not name; only its writer may.

    Files that we did not make are never touched, whatever they are called. Readers that have a
    deleted file open keep it; where a system forbids that, it stays until the next sweep.
    """
    kept = {MANIFEST}
    if (owned.path / MANIFEST).exists():
        kept |= read_manifest(owned.path).files().keys()
    owned.sweep()
    for name in owned.names():
        if name not in kept and not name.endswith("/"):
            with suppress(OSError):
                owned.remove(name)
