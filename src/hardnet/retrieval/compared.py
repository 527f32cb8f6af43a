"""What comparing the photos of an index has found, kept beside the index.

A log has one line per photo and way to look at it: the photo, the state of its file, and the photos
that it found. So a photo is compared once; a line of a photo that was changed or removed says
nothing any more. A line that a kill has cut short is as good as none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import numpy as np

from hardnet.errors import HardnetError
from hardnet.retrieval.kinds import Evidence
from hardnet.storage import FolderLock, OwnedFolder, replacing

if TYPE_CHECKING:
    from hardnet.retrieval.store.snapshot import Snapshot

FOLDER = "groups"
"""Inside the folder of an index; it lists its files itself: no writer of the index sweeps them."""

_LOG = "compared.jsonl"
_FORMAT = "hardnet-groups-3"
_NOT_OURS = (ValueError, KeyError, TypeError)  # of a line that is not as we wrote it


class Photos:
    """The photos that an index has now: their numbers and the states of their files, by name."""

    def __init__(self, snapshot: Snapshot) -> None:
        names = snapshot.names()
        numbers = snapshot.find_many(names).tolist()
        self.numbers: dict[str, int] = dict(zip(names, numbers, strict=True))
        self._snapshot = snapshot

    def state(self, name: str) -> tuple[int, int] | None:
        """Bytes and time of change of its file; None if the index does not have the photo."""
        image = self.numbers.get(name)
        return None if image is None else self._snapshot.file(image)

    def size(self, name: str) -> tuple[int, int]:
        """Width and height."""
        return self._snapshot.size(self.numbers[name])


class Compared:
    """The log, on the disk if the folder of the index may be written to, else in memory.

    ``about`` are JSON values that must be the same for old lines to count.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any], photos: Photos) -> None:
        self._photos = photos
        self._done: set[tuple[str, bool]] = set()
        self._memory: list[tuple[str, str, Evidence]] = []
        self._path: Path | None = None
        self._file: IO[str] | None = None
        self._lock: FolderLock | None = None
        self._head = json.dumps({"format": _FORMAT, **about}, sort_keys=True)
        if folder is not None and os.access(folder, os.W_OK):
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

    def add(self, name: str, mirrored: bool, found: Mapping[str, Evidence]) -> None:
        """Keep what a photo, or its mirror image, has found, by name."""
        self._done.add((name, mirrored))
        if self._file is None:
            self._memory += [(name, other, evidence) for other, evidence in found.items()]
            return
        line = {
            "photo": name,
            "mirrored": mirrored,
            "state": self._photos.state(name),
            "found": [self._to_json(other, evidence) for other, evidence in found.items()],
        }
        # A line break in front: the line before may have been cut short by a kill.
        self._file.write(f"\n{json.dumps(line)}\n")
        self._file.flush()

    def pairs(self) -> Iterator[tuple[str, str, Evidence]]:
        """All that was found: the photo that asked, one that answered, and what was measured."""
        yield from self._memory
        for _, value in self._values():
            for one in value["found"]:
                try:
                    if self._photos.state(one["photo"]) != tuple(one["state"]):
                        continue
                    evidence = self._from_json(value["photo"], one)
                except _NOT_OURS:
                    continue
                yield value["photo"], one["photo"], evidence

    def _open(self, folder: Path) -> None:
        place = folder / FOLDER
        if (index := OwnedFolder.find(folder)) is not None:
            index.claim(f"{FOLDER}/")
        place.mkdir(exist_ok=True)
        lock = FolderLock(place)
        if not lock.take():
            raise HardnetError(
                f"another process is comparing the photos of {folder}: wait until it has "
                "finished, then repeat the command"
            )
        self._lock = lock
        try:
            owned = OwnedFolder.begin(place, ["lock"])
            owned.sweep()
            self._path = owned.claim(_LOG)
            self._begin(self._path, owned)
            self._file = self._path.open("a", encoding="utf-8")
        except BaseException:
            self.close()
            raise

    def _begin(self, path: Path, owned: OwnedFolder) -> None:
        """Take up the lines that hold, and write the log again if most do not."""
        lines = 0
        self._done = {(value["photo"], bool(value["mirrored"])) for _, value in self._values()}
        if path.exists():
            with path.open("rb") as file:
                lines = sum(line != b"\n" for line in file)
        if lines > 2 * len(self._done):
            with replacing(path, owned) as part, part.open("w", encoding="utf-8") as file:
                file.write(f"{self._head}\n")
                file.writelines(line for line, _ in self._values())
        elif not lines:
            path.write_text(f"{self._head}\n", encoding="utf-8")

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
                except _NOT_OURS:
                    continue

    def _to_json(self, name: str, evidence: Evidence) -> dict[str, Any]:
        plain = ("inliers", "precise", "tentatives", "bordered", "agreed")
        return {
            "photo": name,
            "state": self._photos.state(name),
            "transform": np.asarray(evidence.transform).ravel().tolist(),
            **{field: getattr(evidence, field) for field in plain},
            "explained": round(evidence.explained, 4),
            "spread": round(evidence.spread, 4),
            "alike": round(evidence.alike, 4),
            "drift": round(evidence.drift, 4),
            "turning": round(evidence.turning, 4),
            "points": np.round(evidence.points, 1).astype(float).ravel().tolist(),
        }

    def _from_json(self, name: str, value: dict[str, Any]) -> Evidence:
        return Evidence(
            np.array(value["transform"], np.float64).reshape(2, 3),
            (self._photos.size(name), self._photos.size(value["photo"])),
            int(value["inliers"]),
            int(value["precise"]),
            int(value["tentatives"]),
            float(value["explained"]),
            float(value["spread"]),
            np.array(value["points"], np.float32).reshape(-1, 4),
            bool(value["bordered"]),
            bool(value["agreed"]),
            float(value["alike"]),
            float(value["drift"]),
            float(value["turning"]),
        )
