"""Deleting files that no generation needs: those of killed writers and of compacted segments."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from hardnet.retrieval.store.manifest import MANIFEST, read_manifest

_OURS = re.compile(
    r"segments/\d{8}-\d{4,}\.safetensors"
    r"|generations/\d{8,}\.safetensors"
    r"|vocabulary-[0-9a-f]{16}\.safetensors"
    rf"|{re.escape(MANIFEST)}\.part"
)


def sweep(folder: Path) -> None:
    """Delete the files of an index that its manifest does not name; only its writer may.

    Files that are not called as ours are never touched. Readers that have a deleted file open
    keep it; where a system forbids that, it stays until the next sweep.
    """
    kept = read_manifest(folder).files() if (folder / MANIFEST).exists() else {}
    for pattern in ("*", "segments/*", "generations/*"):
        for path in folder.glob(pattern):
            name = path.relative_to(folder).as_posix()
            if _OURS.fullmatch(name) and name not in kept:
                with suppress(OSError):
                    path.unlink()
