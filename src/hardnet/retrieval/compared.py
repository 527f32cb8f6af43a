"""What comparing the photos of an index has found, kept beside the index.

A log has one line per photo and way to look at it: the photo, the state of its file, and the photos
that it found. So a photo is compared once; a line of a photo that was changed or removed says
nothing any more. A line that a kill has cut short is as good as none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from hardnet.errors import HardnetError
from hardnet.retrieval.kinds import Evidence, Thresholds
from hardnet.storage import FolderLock, OwnedFolder, replacing

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot

FOLDER = "groups"
"""Inside the folder of an index; it lists its files itself: no writer of the index sweeps them."""

_LOG = "compared.jsonl"
_FORMAT = "hardnet-groups-1"

State = tuple[int, int]
"""Bytes and time of change of a file."""


@dataclass(frozen=True, eq=False)
class Found:
    """One photo that a photo has found."""

    name: str
    evidence: Evidence


class Photos:
    """The photos that an index has now: their numbers and the states of their files, by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        names = snapshot.names()
        numbers = snapshot.find_many(names).tolist()
        self.numbers: dict[str, int] = dict(zip(names, numbers, strict=True))
        self._snapshot = snapshot

    def state(self, name: str) -> State | None:
        """Of the file that a photo was read from; None if the index does not have the photo."""
        image = self.numbers.get(name)
        return None if image is None else self._snapshot.file(image)

    def size(self, name: str) -> tuple[int, int]:
        """Width and height."""
        return self._snapshot.size(self.numbers[name])


class Compared:
    """The log, in memory and, if it may be written, on the disk.

    Args:
        folder: of the index; None keeps the log in memory only.
        about: what must be the same for old lines to count: JSON values.
        photos: of the index.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any], photos: Photos) -> None:
        self._photos = photos
        self._lines: dict[tuple[str, bool], list[Found]] = {}
        self._file: IO[str] | None = None
        self._lock: FolderLock | None = None
        self._head = json.dumps({"format": _FORMAT, **about}, sort_keys=True)
        if folder is not None:
            self._open(folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others compare."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def has(self, name: str, mirrored: bool) -> bool:
        """Whether a photo has been compared, or its mirror image has."""
        return (name, mirrored) in self._lines

    def add(self, name: str, mirrored: bool, found: list[Found]) -> None:
        """Keep what a photo, or its mirror image, has found."""
        self._lines[name, mirrored] = found
        if self._file is not None:
            # A line break in front: the line before may have been cut short by a kill.
            self._file.write(f"\n{json.dumps(self._to_json(name, mirrored, found))}\n")
            self._file.flush()

    def pairs(self) -> Iterator[tuple[str, Found]]:
        """All that was found: the photo that asked, and one that answered."""
        for (name, _), found in self._lines.items():
            for one in found:
                yield name, one

    def _open(self, folder: Path) -> None:
        place = folder / FOLDER
        index = OwnedFolder.find(folder)
        if index is not None:
            index.claim(f"{FOLDER}/")
        place.mkdir(exist_ok=True)
        self._lock = FolderLock(place)
        if not self._lock.take():
            self._lock = None
            raise HardnetError(
                f"another process is comparing the photos of {folder}: wait until it has "
                "finished, then repeat the command"
            )
        try:
            owned = OwnedFolder.begin(place, ["lock"])
            owned.sweep()
            path = owned.claim(_LOG)
            stale = self._read(path) if path.exists() else True
            if stale:
                self._write_again(path, owned)
            self._file = path.open("a", encoding="utf-8")
        except BaseException:
            self.close()
            raise

    def _read(self, path: Path) -> bool:
        """Take up the lines that still hold; whether most do not."""
        lines, kept = 0, 0
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") != self._head:
                return True
            for line in file:
                if line == "\n":
                    continue
                lines += 1
                kept += self._take(line)
        return lines > 2 * kept

    def _take(self, line: str) -> bool:
        try:
            value = json.loads(line)
            name, mirrored = value["photo"], bool(value["mirrored"])
            if self._photos.state(name) != tuple(value["state"]):
                return False
            found = [self._from_json(name, one) for one in value["found"]]
        except (ValueError, KeyError, TypeError):
            return False
        self._lines[name, mirrored] = [one for one in found if one is not None]
        return True

    def _write_again(self, path: Path, owned: OwnedFolder) -> None:
        with replacing(path, owned) as part, part.open("w", encoding="utf-8") as file:
            file.write(f"{self._head}\n")
            for (name, mirrored), found in self._lines.items():
                file.write(f"{json.dumps(self._to_json(name, mirrored, found))}\n")

    def _to_json(self, name: str, mirrored: bool, found: list[Found]) -> dict[str, Any]:
        return {
            "photo": name,
            "mirrored": mirrored,
            "state": self._photos.state(name),
            "found": [
                {
                    "photo": one.name,
                    "state": self._photos.state(one.name),
                    "transform": np.asarray(one.evidence.transform).ravel().tolist(),
                    "inliers": one.evidence.inliers,
                    "precise": one.evidence.precise,
                    "explained": round(one.evidence.explained, 4),
                    "spread": round(one.evidence.spread, 4),
                    "points": np.round(one.evidence.points, 1).astype(float).ravel().tolist(),
                }
                for one in found
            ],
        }

    def _from_json(self, name: str, value: dict[str, Any]) -> Found | None:
        other = value["photo"]
        if self._photos.state(other) != tuple(value["state"]):
            return None
        evidence = Evidence(
            np.array(value["transform"], np.float64).reshape(2, 3),
            (self._photos.size(name), self._photos.size(other)),
            int(value["inliers"]),
            int(value["precise"]),
            float(value["explained"]),
            float(value["spread"]),
            np.array(value["points"], np.float32).reshape(-1, 4),
        )
        return Found(other, evidence)


@contextmanager
def opened(
    folder: Path | None, about: Mapping[str, Any], photos: Photos, thresholds: Thresholds
) -> Iterator[Compared]:
    """The log of an index; in memory only where the folder may not be written."""
    about = {**about, "precise": asdict(thresholds)["precise"]}
    if folder is not None and not os.access(folder, os.W_OK):
        folder = None
    with Compared(folder, about, photos) as compared:
        yield compared
