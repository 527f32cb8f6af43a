"""Reading every byte of an index, to know that it is what was written."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hardnet.errors import HardnetError
from hardnet.retrieval.store.columns import REPAIR
from hardnet.retrieval.store.manifest import Manifest, read_manifest
from hardnet.storage import FileFacts, as_path

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""

_CHUNK = 1 << 24


@dataclass(frozen=True)
class Report:
    """What a check found.

    Attributes:
        generation: the one that was checked.
        files: how many files it needs, the manifest not counted.
        bytes: how many bytes they should have.
        problems: one line for each file that is not what was written.
    """

    generation: int
    files: int
    bytes: int
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Every file is what was written."""
        return not self.problems

    def raise_problems(self) -> None:
        """HardnetError with all problems, if there are any."""
        if self.problems:
            raise HardnetError("; ".join((*self.problems, REPAIR)))


def verify(folder: str | os.PathLike[str], progress: Progress | None = None) -> Report:
    """Compare every file of the newest generation with its size and checksum.

    A writer may go on meanwhile; it needs no lock and no right to write.

    Args:
        folder: of the index.
        progress: called with "checking", bytes read, bytes in all.

    Raises:
        HardnetError: there is no manifest, or it is damaged.
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
