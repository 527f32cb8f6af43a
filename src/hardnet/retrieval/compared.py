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
    """The log, on the disk if it may be written there, else in memory.

    Args:
        folder: of the index; None keeps the log in memory.
        about: what must be the same for old lines to count: JSON values.
        photos: of the index.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any], photos: Photos) -> None:
        self._photos = photos
        self._done: set[tuple[str, bool]] = set()
        self._memory: list[tuple[str, Found]] = []
        self._path: Path | None = None
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
        return (name, mirrored) in self._done

    def add(self, name: str, mirrored: bool, found: list[Found]) -> None:
        """Keep what a photo, or its mirror image, has found."""
        self._done.add((name, mirrored))
        if self._file is None:
            self._memory += [(name, one) for one in found]
            return
        # A line break in front: the line before may have been cut short by a kill.
        self._file.write(f"\n{json.dumps(self._to_json(name, mirrored, found))}\n")
        self._file.flush()

    def pairs(self) -> Iterator[tuple[str, Found]]:
        """All that was found: the photo that asked, and one that answered."""
        yield from self._memory
        for _, value in self._values():
            name = value["photo"]
            for one in value["found"]:
                try:
                    holds = self._photos.state(one["photo"]) == tuple(one["state"])
                    found = self._from_json(name, one) if holds else None
                except (ValueError, KeyError, TypeError):  # not as we wrote it
                    continue
                if found is not None:
                    yield name, found

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
            self._path = owned.claim(_LOG)
            self._begin(owned)
            self._file = self._path.open("a", encoding="utf-8")
        except BaseException:
            self.close()
            raise

    def _begin(self, owned: OwnedFolder) -> None:
        """Take up the lines that hold, and write the log again if most do not."""
        assert self._path is not None
        lines = 0
        for _, value in self._values():
            self._done.add((value["photo"], bool(value["mirrored"])))
        if self._path.exists():
            with self._path.open("rb") as file:
                lines = sum(line != b"\n" for line in file)
        if lines > 2 * len(self._done):
            with replacing(self._path, owned) as part, part.open("w", encoding="utf-8") as file:
                file.write(f"{self._head}\n")
                file.writelines(line for line, _ in self._values())
        elif not lines:
            self._path.write_text(f"{self._head}\n", encoding="utf-8")

    def _values(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The lines that hold, as they are and as JSON values; one at a time is in memory."""
        if self._path is None or not self._path.exists():
            return
        if self._file is not None:
            self._file.flush()
        with self._path.open(encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") != self._head:
                return
            for line in file:
                try:
                    value = json.loads(line)
                    holds = self._photos.state(value["photo"]) == tuple(value["state"])
                    if holds and isinstance(value["found"], list) and "mirrored" in value:
                        yield line, value
                except (ValueError, KeyError, TypeError):
                    continue

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
                    "tentatives": one.evidence.tentatives,
                    "explained": round(one.evidence.explained, 4),
                    "spread": round(one.evidence.spread, 4),
                    "bordered": one.evidence.bordered,
                    "agreed": one.evidence.agreed,
                    "points": np.round(one.evidence.points, 1).astype(float).ravel().tolist(),
                }
                for one in found
            ],
        }

    def _from_json(self, name: str, value: dict[str, Any]) -> Found:
        other = value["photo"]
        evidence = Evidence(
            np.array(value["transform"], np.float64).reshape(2, 3),
            (self._photos.size(name), self._photos.size(other)),
            int(value["inliers"]),
            int(value["precise"]),
            int(value["tentatives"]),
            float(value["explained"]),
            float(value["spread"]),
            np.array(value["points"], np.float32).reshape(-1, 4),
            bool(value["bordered"]),
            bool(value["agreed"]),
        )
        return Found(other, evidence)


@contextmanager
def opened(
    folder: Path | None, about: Mapping[str, Any], photos: Photos, thresholds: Thresholds
) -> Iterator[Compared]:
    """The log of an index; in memory only where the folder may not be written."""
    about = {**about, "thresholds": asdict(thresholds)}
    if folder is not None and not os.access(folder, os.W_OK):
        folder = None
    with Compared(folder, about, photos) as compared:
        yield compared
