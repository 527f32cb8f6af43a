"""A photo of an index as a query to the index: which others show the same, and by which map.

The query is what the index knows of the photo. Its mirror image is not known: only for that the
photo is read again, and described as a mirror shows it.

What was found is kept in a log beside the index, one line per photo and way to look at it: the
photo, the state of its file, and the photos that it found. So a photo is compared once; a line of a
photo that was changed or removed says nothing any more, nor does one that a kill has cut short.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Progress, silent
from hardnet.features import prepare
from hardnet.frames import cut_for, rescale
from hardnet.image_files import as_path
from hardnet.images import Pixels, read_image, shrink, to_colour, to_grey
from hardnet.retrieval import compiled, kinds
from hardnet.retrieval.kinds import Evidence, Floats, Laid, Thresholds, inverse, moved
from hardnet.retrieval.photos import name_of, path_of
from hardnet.retrieval.query import Query, Scoring, query_terms
from hardnet.retrieval.search import ImageFeatures, LocalShard, ranking
from hardnet.retrieval.store.segment import unpack_frames
from hardnet.retrieval.store.snapshot import Snapshot, open_snapshot
from hardnet.retrieval.verification import Verification, Verified
from hardnet.storage import FolderLock, OwnedFolder, replace_file, replacing
from hardnet.threads import in_order

if TYPE_CHECKING:
    from hardnet.retrieval.index import Index

SHORTLIST = 50
"""Photos that each photo is compared with: the most similar ones."""

LOOK_SIZE, LOOKED_AT = 512, 256
"""Longer side of photos whose pixels are looked at, and how many of them stay in memory."""

BORDER_FEATURES = 0.1
"""A border has no more than this share of a photo's features."""

AHEAD = 4
"""Photos that are read while others are compared; they are all that is in memory."""


class Comparing:
    """The photos of one snapshot of an index, whatever is added meanwhile."""

    def __init__(self, index: Index, snapshot: Snapshot, thresholds: Thresholds) -> None:
        compiled.load()  # every photo is a query
        self._index, self._limits, self._shard = index, thresholds, LocalShard(snapshot)
        self._verification = Verification(shortlist=SHORTLIST)
        self._look = lru_cache(LOOKED_AT)(self._read)

    def plain(self, image: int) -> dict[int, Evidence]:
        """The photos that show what a photo shows, by number; nothing is read again."""
        features = self._features(image)
        return self._found(features, features.as_query(), np.eye(2, 3))

    def mirrored(self, images: Sequence[int]) -> Iterator[dict[int, Evidence] | HardnetError]:
        """The same for each photo seen in a mirror; an error if it cannot be read any more.

        The next photos are read meanwhile; describing keeps all cores busy by itself.
        """
        with ThreadPoolExecutor(2) as pool:
            for seen in in_order(pool, self._see_mirrored, images, AHEAD):
                if isinstance(seen, HardnetError):
                    yield seen
                    continue
                features, patches, query = seen
                if len(patches):
                    vocabulary = self._shard.snapshot.vocabulary
                    vectors = vocabulary.prepare(self._index.describer(patches))
                    words = vocabulary.assign(vectors, self._verification.ma)
                    signatures = vocabulary.signatures(vectors, words)
                    query = replace(query, words=words, signatures=signatures)
                mirror = np.array([[-1.0, 0.0, features.size[0] - 1], [0.0, 1.0, 0.0]])
                yield self._found(features, query, mirror)

    def _see_mirrored(
        self, image: int
    ) -> tuple[ImageFeatures, NDArray[np.uint8], Query] | HardnetError:
        """(N, S, S) what the features of a photo see in a mirror; a query of mirrored frames."""
        features, settings = self._features(image), self._index.settings
        path = self._path(image)
        try:
            prepared = prepare(path, settings.max_size)
        except HardnetError as error:
            return error
        if prepared.image_size != features.size:
            return HardnetError(f"{path} was changed: add it to the index again")
        # A dominant direction, the x axis of a patch, turns with the mirror; an upright x axis
        # does not. So the patch's y axis is reversed, or its x axis.
        seen = features.frames.copy()
        seen[:, :, :2] *= np.array([-1, 1] if settings.upright else [1, -1], np.float32)
        patches = cut_for(self._index.describer, prepared.grey, rescale(seen, prepared.factors))
        seen[:, 0] *= -1
        seen[:, 0, 2] += features.size[0] - 1
        return features, patches, replace(features.as_query(), frames=seen)

    def _features(self, image: int) -> ImageFeatures:
        (features,) = self._shard.features_of(np.array([image], np.int64))
        return features

    def _path(self, image: int) -> str:
        return path_of(self._shard.snapshot.name(image), self._index.folder)

    def _found(self, features: ImageFeatures, query: Query, before: Floats) -> dict[int, Evidence]:
        if not len(query):
            return {}
        limits = self._limits
        candidates = self._candidates(features.image, query)
        verified = self._shard.verify(query, candidates, self._verification)
        likely = [one for one in verified if one.inliers >= limits.fewest]
        others = self._shard.features_of(np.array([one.image for one in likely], np.int64))
        found: dict[int, Evidence] = {}
        for one, other in zip(likely, others, strict=True):
            evidence = self._evidence(features, query, other, one, before)
            if kinds.may_be_copy(evidence, limits):
                x, y = (theirs / own for theirs, own in zip(other.size, features.size, strict=True))
                same_frame = np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5]])
                laid = self._lay(features, other, same_frame)
                if laid.alike >= limits.agree and laid.drift <= limits.drift:
                    found[one.image] = replace(evidence, agreed=True, **laid._asdict())
                    continue
            if not self._verification.is_sure(one):
                continue
            if kinds.is_edit(evidence, limits):
                laid = self._lay(features, other, evidence.transform)
                evidence = replace(evidence, **laid._asdict())
            crop = kinds.kind_of(evidence, limits) == "crop"
            bordered = crop and self._is_bordered(features, other, evidence)
            found[one.image] = replace(evidence, bordered=bordered)
        return found

    def _candidates(self, image: int, query: Query) -> NDArray[np.int64]:
        def similar(scoring: Scoring) -> NDArray[np.int64]:
            images, scores = self._shard.score(query_terms(query, scoring), scoring, SHORTLIST + 1)
            return np.asarray(images[(images != image) & (scores > 0)][:SHORTLIST], np.int64)

        candidates = similar(Scoring())
        counts = self._shard.statistics.document_counts[query.words[query.words >= 0]]
        # A word that every photo has weighs nothing. Where photos share only such words, as in a
        # folder of copies, they would never meet: count the words without their weights.
        if len(candidates) < SHORTLIST and np.any(counts == self._shard.statistics.images):
            others = similar(Scoring(idf=False, normalise=False))
            new = others[~np.isin(others, candidates)]
            candidates = np.concatenate([candidates, new])[:SHORTLIST]
        return candidates

    def _evidence(
        self,
        features: ImageFeatures,
        query: Query,
        other: ImageFeatures,
        verified: Verified,
        before: Floats,
    ) -> Evidence:
        position, _ = self._shard.snapshot.locate(verified.image)
        geometry = self._shard.snapshot.segments[position].geometry[verified.pairs[:, 1]]
        xy_b = unpack_frames(np.asarray(geometry), other.size)[:, :, 2]
        xy_a = query.frames[verified.pairs[:, 0], :, 2].astype(np.float64)
        transform = verified.transform
        assert transform is not None
        shift = moved(before[None, :, 2], transform)[0]
        return kinds.measure(
            np.column_stack([transform[:, :2] @ before[:, :2], shift]),
            (features.size, moved(xy_a, inverse(before)), features.frames[:, :, 2]),
            (other.size, xy_b, other.frames[:, :, 2]),
            self._limits.precise,
            verified.tentatives,
        )

    def _lay(self, a: ImageFeatures, b: ImageFeatures, transform: Floats) -> Laid:
        try:
            (one, to_one), (other, to_other) = self._look(a.image), self._look(b.image)
        except HardnetError:
            return Laid(0.0, 0.0)
        seen = to_other @ np.vstack([transform, (0, 0, 1)]) @ np.linalg.inv(to_one)
        return kinds.lay(to_grey(one), to_grey(other), seen[:2])

    def _is_bordered(self, a: ImageFeatures, b: ImageFeatures, found: Evidence) -> bool:
        outer, inner, transform = b, a, found.transform
        if found.overlap[0] < found.overlap[1]:
            outer, inner, transform = a, b, inverse(found.transform)
        edges = moved(kinds.corners(inner.size), transform)
        hull = cv2.convexHull(edges.astype(np.float32))
        within = [cv2.pointPolygonTest(hull, xy.tolist(), False) > 0 for xy in outer.frames[..., 2]]
        if np.mean(within) < 1 - BORDER_FEATURES:
            return False
        try:
            small, to_small = self._look(outer.image)
        except HardnetError:
            return False
        return kinds.is_border(small, moved(edges, to_small[:2]))

    def _read(self, image: int) -> tuple[Pixels, Floats]:
        small, (x, y) = shrink(to_colour(read_image(self._path(image))), LOOK_SIZE)
        return small, np.array([[x, 0, x / 2 - 0.5], [0, y, y / 2 - 0.5], [0, 0, 1]])


FOLDER = "groups"
"""Inside the folder of an index; it lists its files itself: no writer of the index sweeps them."""

_LOG = "compared.jsonl"
_FORMAT = "hardnet-groups-4"
_NUMBERS: dict[str, Any] = {
    **dict.fromkeys(("inliers", "precise", "tentatives"), int),
    **dict.fromkeys(("bordered", "agreed"), bool),
    **dict.fromkeys(("explained", "spread", "alike", "drift", "turning"), float),
}


class Compared:
    """What photos have found, on the disk if the folder of the index may be written to.

    ``about`` are JSON values that must be the same for old lines to count. ``numbers`` are those of
    the photos that the snapshot has, by name.
    """

    def __init__(self, folder: Path | None, about: Mapping[str, Any], snapshot: Snapshot) -> None:
        self._snapshot, names = snapshot, snapshot.names()
        numbers: list[int] = snapshot.find_many(names).tolist()
        self.numbers = dict(zip(names, numbers, strict=True))
        # Photo and whether it was mirrored -> the photos that it found
        self._found: dict[tuple[str, bool], dict[str, Evidence]] = {}
        self._file: IO[str] | None = None
        if folder is not None and os.access(folder, os.W_OK):
            self._open(folder, json.dumps({"format": _FORMAT, **about}, sort_keys=True))

    def _open(self, folder: Path, head: str) -> None:
        place = folder / FOLDER
        if (index := OwnedFolder.find(folder)) is not None:
            index.claim(f"{FOLDER}/")
        place.mkdir(exist_ok=True)
        self._lock = FolderLock(place)
        if not self._lock.take():
            raise HardnetError(
                f"another process is comparing the photos of {folder}: wait until it has "
                "finished, then repeat the command"
            )
        try:
            owned = OwnedFolder.begin(place, ["lock"])
            owned.sweep()
            path = owned.claim(_LOG)
            if self._read(path, head) > 2 * len(self._found) or not self._found:
                with replacing(path, owned) as part, part.open("w", encoding="utf-8") as file:
                    file.write(f"{head}\n")
                    file.writelines(self._line(*key, one) for key, one in self._found.items())
            self._file = path.open("a", encoding="utf-8")
        except BaseException:
            self._lock.release()
            raise

    def _read(self, path: Path, head: str) -> int:
        """Take the lines that hold; returns how many there are."""
        if not path.exists():
            return 0
        lines = 0
        with path.open(encoding="utf-8", errors="replace") as file:
            if file.readline().rstrip("\n") != head:
                return 0
            for line in file:
                lines += line != "\n"
                try:
                    value = json.loads(line)
                    photo = value["photo"]
                    if self._holds(value):
                        self._found[photo, bool(value["mirrored"])] = {
                            one["photo"]: self._from_json(photo, one)
                            for one in value["found"]
                            if self._holds(one)
                        }
                except (ValueError, KeyError, TypeError):  # not as we wrote it
                    continue
        return lines

    def _holds(self, value: dict[str, Any]) -> bool:
        return self.state(value["photo"]) == tuple(value["state"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Let others compare."""
        if self._file is not None:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
            self._lock.release()

    def state(self, name: str) -> tuple[int, int] | None:
        """Bytes and time of change of its file; None if the index does not have the photo."""
        image = self.numbers.get(name)
        return None if image is None else self._snapshot.file(image)

    def size(self, name: str) -> tuple[int, int]:
        return self._snapshot.size(self.numbers[name])

    def has(self, name: str, mirrored: bool) -> bool:
        """Whether a photo has been compared, or its mirror image has."""
        return (name, mirrored) in self._found

    def add(self, name: str, mirrored: bool, found: Mapping[str, Evidence]) -> None:
        """Keep what a photo, or its mirror image, has found, by name."""
        line = self._line(name, mirrored, found)
        # As the next process will read it: with the same digits.
        answers = json.loads(line)["found"]
        self._found[name, mirrored] = {one["photo"]: self._from_json(name, one) for one in answers}
        if self._file is not None:
            # A line break in front: the line before may have been cut short by a kill.
            self._file.write(f"\n{line}")
            self._file.flush()

    def pairs(self) -> Iterator[tuple[str, str, Evidence]]:
        """All that was found: the photo that asked, one that answered, and what was measured."""
        for (name, _), found in self._found.items():
            for other, evidence in found.items():
                yield name, other, evidence

    def _line(self, name: str, mirrored: bool, found: Mapping[str, Evidence]) -> str:
        line = {
            "photo": name,
            "mirrored": mirrored,
            "state": self.state(name),
            "found": [self._to_json(other, evidence) for other, evidence in found.items()],
        }
        return f"{json.dumps(line)}\n"

    def _to_json(self, name: str, evidence: Evidence) -> dict[str, Any]:
        plain = {field: getattr(evidence, field) for field in _NUMBERS}
        return {
            "photo": name,
            "state": self.state(name),
            "transform": np.asarray(evidence.transform).ravel().tolist(),
            **{k: round(value, 4) if _NUMBERS[k] is float else value for k, value in plain.items()},
            "points": np.round(evidence.points, 1).astype(float).ravel().tolist(),
        }

    def _from_json(self, name: str, value: dict[str, Any]) -> Evidence:
        return Evidence(
            transform=np.array(value["transform"], np.float64).reshape(2, 3),
            sizes=(self.size(name), self.size(value["photo"])),
            points=np.array(value["points"], np.float32).reshape(-1, 4),
            **{field: kind(value[field]) for field, kind in _NUMBERS.items()},
        )


SIMILAR = 20
"""Photos that each photo is paired with."""

Pair = tuple[str, str]


def similar_pairs(
    index: str | os.PathLike[str],
    photos: Mapping[str, Path],
    similar: int = SIMILAR,
    progress: Progress = silent,
) -> tuple[list[Pair], list[str]]:
    """Each photo with those that an index finds most similar to it; nothing is extracted again.

    ``photos`` are what to call them in the pairs -> file; the index may have others, too. Returns
    pairs of names, each once, sorted; and the names of photos that the index does not have.

    Raises:
        HardnetError: the index has not even two of the photos.
    """
    if similar < 1:
        raise HardnetError(f"similar is {similar}: give at least 1")
    folder = as_path(index)
    snapshot = open_snapshot(folder)
    shard = LocalShard(snapshot)
    images = snapshot.find_many([name_of(photo, folder) for photo in photos.values()]).tolist()
    named = list(zip(images, photos, strict=True))
    numbers = {image: name for image, name in named if image >= 0}
    if len(numbers) < 2:
        raise HardnetError(
            f"{folder} has {len(numbers)} of {len(photos)} photos: add them with "
            "`hardnet index add`"
        )
    found: set[Pair] = set()
    for done, (image, name) in enumerate(numbers.items()):
        progress("similar photos", done, len(numbers))
        (features,) = shard.features_of(np.array([image], np.int64))
        ranked = ranking(features.as_query(), shard).tolist()
        others = [numbers[one] for one in ranked if one != image and one in numbers][:similar]
        found |= {(min(name, other), max(name, other)) for other in others}
    return sorted(found), [name for image, name in named if image < 0]


def write_pairs(path: Path, pairs: list[Pair]) -> None:
    """Write pairs as ``hardnet colmap --pairs-file`` reads them."""
    replace_file(path, "".join(f"{a}\t{b}\n" for a, b in pairs).encode())
