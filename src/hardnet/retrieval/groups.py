"""Which photos of a collection are copies of each other, or show the same: pairs and groups.

>>> index = hardnet.Index("photos.index")  # doctest: +SKIP
>>> for group in find_groups(index).groups:  # doctest: +SKIP
...     print(group.kind, group.photos, group.best)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.images import read_image, shrink, to_grey
from hardnet.retrieval.compared import Compared, Found, Photos, opened
from hardnet.retrieval.comparing import Comparing, mirror_queries
from hardnet.retrieval.kinds import (
    KINDS,
    Evidence,
    Kind,
    Thresholds,
    inverse,
    kind_of,
    moved,
)
from hardnet.retrieval.photos import path_of

if TYPE_CHECKING:
    from hardnet.retrieval.index import Index

Progress = Callable[[str, int, int], None]
"""What is being done, how much of it is done, and of how much."""

LEVELS: tuple[tuple[Kind, ...], ...] = (
    ("copy",),
    ("crop", "rotated", "mirrored"),
    ("burst",),
    ("panorama", "scene"),
)
"""Each level joins the groups of those before it: a scene has its bursts, a crop has its copies."""

SHARP_SIZE = 512
"""Longer side at which photos are compared for sharpness."""


@dataclass(frozen=True, eq=False)
class Pair:
    """Two photos that show the same.

    Attributes:
        a: path.
        b: path.
        kind: what they are to each other; of a crop, the one with the larger overlap is the crop.
        inliers: pairs of features that agree with the transform.
        transform: (2, 3) float64, pixels of a to pixels of b.
        overlap: share of a that b shows, share of b that a shows.
        points: (n, 4) float32, some of the inliers: x and y in a, x and y in b.
    """

    a: str
    b: str
    kind: Kind
    inliers: int
    transform: NDArray[np.float64]
    overlap: tuple[float, float]
    points: NDArray[np.float32] = field(repr=False)

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "a": self.a,
            "b": self.b,
            "kind": self.kind,
            "inliers": self.inliers,
            "transform": np.round(self.transform, 6).tolist(),
            "overlap": [round(share, 4) for share in self.overlap],
        }


@dataclass(frozen=True)
class Group:
    """Photos that belong together.

    Attributes:
        kind: the loosest kind that joins them; of several equally loose ones, the most frequent.
        photos: paths; those of a panorama in the order of the sweep, others sorted.
        best: the one to keep if only one is kept: most pixels, then sharpest, then largest file.
    """

    kind: Kind
    photos: list[str]
    best: str

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return {"kind": self.kind, "photos": self.photos, "best": self.best}


@dataclass(frozen=True, eq=False)
class Groups:
    """What the photos of an index are to each other.

    Attributes:
        pairs: sorted by kind, then path.
        groups: the largest first. A photo may be in several: in one of copies, and with these in
            one of a scene.
        photos: how many were looked at.
        compared: how many of them were compared now; the others were before.
        unread: photo -> why its mirror image could not be looked for.
    """

    pairs: list[Pair]
    groups: list[Group]
    photos: int
    compared: int
    unread: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """One object, as `hardnet groups --json` prints it."""
        return {
            "pairs": [pair.to_json() for pair in self.pairs],
            "groups": [group.to_json() for group in self.groups],
        }

    def only(self, kinds: Collection[str]) -> Groups:
        """What is of some kinds."""
        return replace(
            self,
            pairs=[pair for pair in self.pairs if pair.kind in kinds],
            groups=[group for group in self.groups if group.kind in kinds],
        )

    def removable(self) -> list[str]:
        """The copies that are not the best of their group. They stay: this is a proposal."""
        copies = [group for group in self.groups if group.kind == "copy"]
        return sorted({p for group in copies for p in group.photos if p != group.best})


def _no_progress(what: str, done: int, total: int) -> None:
    pass


def find_groups(
    index: Index,
    *,
    mirrored: bool = True,
    keep: bool = True,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 frozen
    progress: Progress = _no_progress,
) -> Groups:
    """Compare all photos of an index with each other.

    What is found is kept in the folder of the index after each photo: a second call, also after a
    first one was stopped or photos were added, compares only what is new.

    Args:
        index: with the photos.
        mirrored: also look for mirror images, for which every photo is read and described again.
        keep: what is found in the folder of the index; without it, all photos are compared.
        thresholds: of the kinds.
        progress: called with what is done, how many are done, how many there are.

    Raises:
        HardnetError: another process is doing the same.
    """
    comparing = Comparing.of(index, thresholds)
    snapshot = comparing.shard.snapshot
    photos = Photos(snapshot)
    about = {"vocabulary": snapshot.vocabulary.digest}
    with opened(index.folder if keep else None, about, photos, thresholds) as log:
        compared, unread = compare(comparing, photos, log, mirrored, progress)
        pairs = list(joined(log, photos, thresholds, mirrored))
    progress("grouping", 0, 1)
    groups = form_groups(pairs, Quality(comparing, photos))
    final = _as_paths(pairs, groups, comparing)
    progress("grouping", 1, 1)
    named = {path_of(name, index.folder): why for name, why in unread.items()}
    return Groups(final[0], final[1], len(photos.numbers), compared, named)


def compare(
    comparing: Comparing, photos: Photos, log: Compared, mirrored: bool, progress: Progress
) -> tuple[int, dict[str, str]]:
    """Compare what the log does not have; how many photos, and why some could not be mirrored."""
    names = sorted(photos.numbers)
    by_number = {number: name for name, number in photos.numbers.items()}
    plain = [name for name in names if not log.has(name, False)]
    for done, name in enumerate(plain):
        progress("comparing", done, len(plain))
        found = comparing.plain(photos.numbers[name])
        log.add(name, False, _named(found, by_number))
    unread: dict[str, str] = {}
    turned = [name for name in names if not log.has(name, True)] if mirrored else []
    queries = mirror_queries(comparing, [photos.numbers[name] for name in turned])
    for done, (name, query) in enumerate(zip(turned, queries, strict=True)):
        progress("mirror images", done, len(turned))
        if isinstance(query, HardnetError):
            unread[name] = str(query)
            continue
        found = comparing.mirrored(photos.numbers[name], query)
        log.add(name, True, _named(found, by_number))
    return len({*plain, *turned}), unread


def _named(found: Mapping[int, Evidence], names: Mapping[int, str]) -> list[Found]:
    return [Found(names[image], evidence) for image, evidence in found.items()]


@dataclass(frozen=True, eq=False)
class Edge:
    """Two photos, by their names in the index; the first name is the smaller."""

    a: str
    b: str
    kind: Kind
    evidence: Evidence


def joined(
    log: Compared, photos: Photos, thresholds: Thresholds, mirrored: bool = True
) -> Iterable[Edge]:
    """Each pair of photos once, with the evidence that has more precise inliers."""
    best: dict[tuple[str, str], Evidence] = {}
    for name, found in log.pairs():
        evidence = found.evidence
        if evidence.mirrored and not mirrored:
            continue
        key = min(name, found.name), max(name, found.name)
        if key not in best or evidence.precise > best[key].precise:
            best[key] = evidence if name == key[0] else _reversed(evidence)
    for (a, b), evidence in best.items():
        kind = kind_of(evidence, thresholds)
        if kind is not None:
            yield Edge(a, b, kind, evidence)


def _reversed(evidence: Evidence) -> Evidence:
    return replace(
        evidence,
        transform=inverse(evidence.transform),
        sizes=(evidence.sizes[1], evidence.sizes[0]),
        points=evidence.points[:, [2, 3, 0, 1]],
    )


class Quality:
    """What decides which of several photos is the best: pixels, sharpness, size of the file."""

    def __init__(self, comparing: Comparing, photos: Photos) -> None:
        self._photos = photos
        self._folder = comparing.index.folder
        self._sharpness: dict[str, float] = {}

    def best(self, names: Iterable[str], framed: Collection[str] = ()) -> str:
        """The best photo; photos are read only if the number of pixels does not decide.

        Those that are ``framed`` have pixels that nobody wants.
        """
        names = list(names)
        names = [name for name in names if name not in framed] or names
        pixels = {name: int(np.prod(self._photos.size(name))) for name in names}
        largest = [name for name in names if pixels[name] == max(pixels.values())]
        if len(largest) == 1:
            return largest[0]
        return max(largest, key=lambda name: (self._sharp(name), self._bytes(name), name))

    def _bytes(self, name: str) -> int:
        state = self._photos.state(name)
        return 0 if state is None else state[0]

    def _sharp(self, name: str) -> float:
        if name not in self._sharpness:
            try:
                self._sharpness[name] = sharpness(path_of(name, self._folder))
            except HardnetError:  # the file is gone
                self._sharpness[name] = -1.0
        return self._sharpness[name]


def sharpness(photo: str) -> float:
    """How much fine structure a photo has: the spread of its second derivative."""
    grey, _ = shrink(to_grey(read_image(photo)), SHARP_SIZE)
    return float(cv2.Laplacian(grey, cv2.CV_32F).std())


def form_groups(edges: list[Edge], quality: Quality) -> list[Group]:
    """Photos that edges join, level by level; the largest groups first."""
    groups: list[Group] = []
    framed = {_larger(edge) for edge in edges if edge.evidence.bordered}
    parent: dict[str, str] = {}

    def root(name: str) -> str:
        while parent.setdefault(name, name) != name:
            parent[name] = name = parent[parent[name]]
        return name

    for level in LEVELS:
        # Two crops of one photo may share a part: the photo has joined them already.
        here = [e for e in edges if e.kind in level and root(e.a) != root(e.b)]
        for edge in here:
            parent[root(edge.a)] = root(edge.b)
        members: dict[str, list[str]] = {}
        for name in parent:
            members.setdefault(root(name), []).append(name)
        kinds: dict[str, list[Edge]] = {}
        for edge in here:
            kinds.setdefault(root(edge.a), []).append(edge)
        for top, own in kinds.items():
            names = sorted(members[top])
            kind = _kind_of_group(own)
            if kind == "panorama":
                order = sweep(names, edges)
                if order is None:
                    kind = "scene"
                else:
                    names = order
            groups.append(Group(kind, names, quality.best(names, framed)))
    return sorted(
        groups, key=lambda group: (-len(group.photos), KINDS.index(group.kind), *group.photos[:1])
    )


def _larger(edge: Edge) -> str:
    """The photo that shows more."""
    return edge.a if edge.evidence.overlap[0] < edge.evidence.overlap[1] else edge.b


def _kind_of_group(edges: list[Edge]) -> Kind:
    counts: dict[Kind, int] = {}
    for edge in edges:
        counts[edge.kind] = counts.get(edge.kind, 0) + 1
    return max(counts, key=lambda kind: (counts[kind], -KINDS.index(kind)))


def sweep(names: list[str], edges: list[Edge]) -> list[str] | None:
    """The photos of a panorama in their order; None if they drift by less than a frame.

    Neighbours are laid beside each other, from one photo outwards, along the maps between them.
    """
    near: dict[str, list[Edge]] = {}
    for edge in edges:
        if edge.kind in ("panorama", "burst", "copy"):
            near.setdefault(edge.a, []).append(edge)
            near.setdefault(edge.b, []).append(edge)
    members = set(names)
    start = next((name for name in names if name in near), None)
    if start is None:
        return None
    place = {start: np.zeros(2)}
    waiting = [start]
    while waiting:
        here = waiting.pop(0)
        for edge in near.get(here, ()):
            other = edge.b if edge.a == here else edge.a
            if other in place or other not in members:
                continue
            evidence = edge.evidence if edge.a == here else _reversed(edge.evidence)
            centre = (np.array([evidence.sizes[0]]) - 1) / 2
            step = moved(centre, evidence.transform)[0] - (np.array(evidence.sizes[1]) - 1) / 2
            place[other] = place[here] - step / np.array(evidence.sizes[1])
            waiting.append(other)
    if set(place) != members:
        return None
    places = np.array([place[name] for name in names])
    extent = np.ptp(places, axis=0)
    if extent.max() < 1:
        return None
    axis = int(np.argmax(extent))
    return [names[i] for i in np.argsort(places[:, axis], kind="stable")]


def _as_paths(
    edges: list[Edge], groups: list[Group], comparing: Comparing
) -> tuple[list[Pair], list[Group]]:
    """The same with paths that can be opened; neighbours of what is no sweep are one scene."""
    folder = comparing.index.folder
    swept = {name for group in groups if group.kind == "panorama" for name in group.photos}
    pairs = []
    for edge in edges:
        kind = edge.kind
        if kind == "panorama" and not (edge.a in swept and edge.b in swept):
            kind = "scene"
        e = edge.evidence
        a, b = path_of(edge.a, folder), path_of(edge.b, folder)
        pairs.append(Pair(a, b, kind, e.inliers, e.transform, e.overlap, e.points))
    pairs.sort(key=lambda pair: (KINDS.index(pair.kind), pair.a, pair.b))
    shown = [
        Group(g.kind, [path_of(n, folder) for n in g.photos], path_of(g.best, folder))
        for g in groups
    ]
    return pairs, shown
