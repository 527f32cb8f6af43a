"""The identity of data on disk: one SHA-256 of names and contents, remembered per file.

Hashing a large set takes minutes, so the digest of each file is kept in the set's cache and used
again while the file's size and time are the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hardnet.errors import HardnetError
from hardnet.patchsets.cache import CACHE, cache_folder
from hardnet.storage import MARKER, as_path, replacing

MEMO = "fingerprint.json"
SETTLED = 2_000_000_000
"""Nanoseconds: a file changed twice within the grain of the clock keeps its time, so the digest of
a younger file is not remembered."""


@dataclass(frozen=True)
class Fingerprint:
    """SHA-256 of the names and contents of files, as hex, and how many files there are."""

    sha256: str
    files: int


def fingerprint(path: str | Path) -> str:
    """SHA-256 of a folder or file, as hex; see :func:`fingerprint_files`."""
    return fingerprint_files(path).sha256


def fingerprint_files(path: str | Path) -> Fingerprint:
    """SHA-256 over names and contents of all files of a folder, or of one file.

    Names are relative to the folder, so a copy elsewhere has the same fingerprint. The folder
    ``cache`` of a set and unfinished ``*.part`` files and folders do not count, nor does our list
    of files.
    """
    path = as_path(path)
    if not path.exists():
        raise HardnetError(f"{path} does not exist: check the path")
    memo_file = cache_folder(path) / MEMO
    known = _read_memo(memo_file)
    memo: dict[str, list[int | str]] = {}
    total, count, now = hashlib.sha256(), 0, time.time_ns()
    for name, file in members(path):
        facts = file.stat()
        entry = known.get(name)
        # ctime too: a file copied over another with its date kept has a new one.
        seen = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
        if entry and entry[:3] == seen:
            digest = str(entry[3])
        else:
            with file.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
        if now - facts.st_ctime_ns > SETTLED:
            memo[name] = [*seen, digest]
        total.update(f"{name}\0{digest}\0".encode())
        count += 1
    if memo != known:
        with replacing(memo_file) as part:
            part.write_text(json.dumps(memo))
    return Fingerprint(total.hexdigest(), count)


def members(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) in the order of names; linked folders belong to a set as others do."""
    if path.is_file():
        yield path.name, path
        return
    found = []
    for folder, folders, files in os.walk(path, followlinks=True):
        here = Path(folder)
        skip = {CACHE} if here == path else set()
        folders[:] = [f for f in folders if f not in skip and not f.endswith(".part")]
        for name in files:
            if not name.endswith(".part") and name != MARKER:
                found.append(((here / name).relative_to(path).as_posix(), here / name))
    yield from sorted(found)


def _read_memo(path: Path) -> dict[str, list[int | str]]:
    try:
        memo = json.loads(path.read_text())
    except (OSError, ValueError):  # absent or cut short: hash again
        return {}
    return memo if isinstance(memo, dict) else {}
