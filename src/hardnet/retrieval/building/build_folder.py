"""The folder of an index while it is built: who may work there, and with which settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.retrieval.building.index_settings import compare
from hardnet.retrieval.building.work_folder import owned
from hardnet.retrieval.store.snapshot import open_snapshot
from hardnet.retrieval.vocabulary import Vocabulary
from hardnet.storage import OwnedFolder

WORK = "build"
"""The folder inside an index for what is not committed yet."""


def is_index(folder: Path) -> bool:
    """Whether there is an index, be it empty."""
    return (folder / "manifest.json").exists()


def check_begun(folder: Path) -> None:
    """Raise if an index has no photos yet because its vocabulary is not trained."""
    if OwnedFolder.find(folder / WORK) is not None and not is_index(folder):
        raise HardnetError(
            f"{folder} has no photos yet: `hardnet index build` is at work there, or was stopped; "
            "then run the same command again"
        )


@contextmanager
def building(folder: Path) -> Iterator[OwnedFolder]:
    """The folder for what is not committed, as long as nobody else builds this index."""
    work = folder / WORK
    if folder.exists() and not folder.is_dir():
        raise HardnetError(f"{folder} is a file: name a folder for the index")
    begun = OwnedFolder.find(folder) or OwnedFolder.find(work)
    if folder.is_dir() and not is_index(folder) and begun is None:
        other = next((path for path in folder.iterdir() if path.name != WORK), None)
        if other is not None:
            raise HardnetError(
                f"{folder} is no index and not empty (it has {other.name}): name a new folder"
            )
    with owned(work, folder) as ours:
        yield ours


def check_index(
    folder: Path, settings: Mapping[str, Any], vocabulary: Vocabulary | None, words: int | None
) -> None:
    """Raise if photos that are described and quantised in this way do not fit an index."""
    snapshot = open_snapshot(folder)
    compare(snapshot.settings, settings, folder)
    own = snapshot.vocabulary
    if vocabulary is not None and vocabulary.fingerprint != own.fingerprint:
        raise HardnetError(
            f"{folder} was made with another vocabulary: leave it out, or build another index"
        )
    asked = own.provenance.get("words_asked") or len(own)
    if words is not None and words not in (asked, len(own)):
        raise HardnetError(
            f"{folder} has {len(own)} words, not {words}: leave --words out, or build another index"
        )


def check_descriptor(vocabulary: Vocabulary, descriptor: str) -> None:
    """Raise if a vocabulary has words of another descriptor."""
    if vocabulary.descriptor != descriptor:
        raise HardnetError(
            f"the vocabulary has words of {vocabulary.descriptor}, not of {descriptor}: "
            f"use --descriptor {vocabulary.descriptor}, or another vocabulary"
        )
