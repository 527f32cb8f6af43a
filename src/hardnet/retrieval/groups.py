"""Which photos of a collection are copies of each other, or show the same: pairs and groups.

>>> index = hardnet.Index("photos.index")  # doctest: +SKIP
>>> for group in find_groups(index).groups:  # doctest: +SKIP
...     print(group.kind, group.photos, group.best)
"""

from __future__ import annotations

import base64
import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib.resources import files
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, Progress, silent
from hardnet.image_files import as_path
from hardnet.images import Pixels, read_image, shrink, to_colour, to_grey
from hardnet.retrieval.comparing import Compared, Comparing
from hardnet.retrieval.kinds import KINDS, Evidence, Kind, Thresholds, inverse, kind_of, moved
from hardnet.retrieval.photos import path_of, shown
from hardnet.storage import replacing

if TYPE_CHECKING:
    from hardnet.retrieval.index import Index

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
    """Two photos that show the same; of a crop, the one with the larger overlap is the crop."""

    a: str  # path
    b: str
    kind: Kind
    inliers: int
    transform: NDArray[np.float64]  # (2, 3), pixels of a to pixels of b
    overlap: tuple[float, float]  # share of a that b shows, share of b that a shows
    points: NDArray[np.float32] = field(repr=False)  # (n, 4) some inliers: x, y in a; x, y in b

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

    ``kind`` is the loosest one that joins them; of several equally loose ones, the most frequent.
    The photos of a panorama are in the order of the sweep, others sorted. ``best`` is the one to
    keep if only one is kept: most pixels, then sharpest, then largest file.
    """

    kind: Kind
    photos: list[str]
    best: str


@dataclass(frozen=True, eq=False)
class Groups:
    """What the photos of an index are to each other: pairs by kind and path, largest groups first.

    A photo may be in several groups: in one of copies, and with these in one of a scene.
    """

    pairs: list[Pair]
    groups: list[Group]
    photos: int  # how many were looked at
    compared: int  # how many of them were compared now; the others were before
    unread: dict[str, str] = field(default_factory=dict)  # photo -> why it was not mirrored

    def to_json(self) -> dict[str, Any]:
        """One object, as `hardnet groups --json` prints it."""
        return {
            "pairs": [pair.to_json() for pair in self.pairs],
            "groups": [asdict(group) for group in self.groups],
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


def find_groups(
    index: Index,
    *,
    mirrored: bool = True,
    keep: bool = True,
    thresholds: Thresholds = Thresholds(),  # noqa: B008 frozen
    progress: Progress = silent,
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
    snapshot = index.snapshot
    comparing = Comparing(index, snapshot, thresholds)
    about = {"vocabulary": snapshot.vocabulary.digest, "thresholds": asdict(thresholds)}
    with Compared(index.folder if keep else None, about, snapshot) as log:
        compared, unread = _compare(comparing, log, mirrored, progress)
        edges = list(_edges(log, thresholds, mirrored))
    progress("grouping", 0, 1)

    def path(name: str) -> str:
        return path_of(name, index.folder)

    groups = _form_groups(edges, log, path)
    swept = {name for group in groups if group.kind == "panorama" for name in group.photos}
    pairs = []
    for a, b, kind, e in edges:
        if kind == "panorama" and not (a in swept and b in swept):
            kind = "scene"  # neighbours of what is no sweep
        pairs.append(Pair(path(a), path(b), kind, e.inliers, e.transform, e.overlap, e.points))
    pairs.sort(key=lambda pair: (KINDS.index(pair.kind), pair.a, pair.b))
    named = [Group(g.kind, [path(name) for name in g.photos], path(g.best)) for g in groups]
    progress("grouping", 1, 1)
    why = {path(name): reason for name, reason in unread.items()}
    return Groups(pairs, named, len(log.numbers), compared, why)


def _compare(
    comparing: Comparing, log: Compared, mirrored: bool, progress: Progress
) -> tuple[int, dict[str, str]]:
    names = sorted(log.numbers)
    by_number = {number: name for name, number in log.numbers.items()}
    plain = [name for name in names if not log.has(name, False)]
    turned = [name for name in names if not log.has(name, True)] if mirrored else []
    both = (
        ("comparing", plain, (comparing.plain(log.numbers[name]) for name in plain)),
        ("mirror images", turned, comparing.mirrored([log.numbers[name] for name in turned])),
    )
    unread: dict[str, str] = {}
    for what, asking, results in both:
        if asking:
            progress(what, 0, len(asking))
        for done, (name, found) in enumerate(zip(asking, results, strict=True), 1):
            if isinstance(found, HardnetError):
                unread[name] = str(found)
            else:
                log.add(name, asking is turned, {by_number[i]: e for i, e in found.items()})
            progress(what, done, len(asking))
    return len({*plain, *turned}), unread


class Edge(NamedTuple):
    """Two photos, by their names in the index; the first name is the smaller."""

    a: str
    b: str
    kind: Kind
    evidence: Evidence


def _edges(log: Compared, thresholds: Thresholds, mirrored: bool) -> Iterator[Edge]:
    best: dict[tuple[str, str], Evidence] = {}
    for name, other, evidence in log.pairs():
        if evidence.mirrored and not mirrored:
            continue
        key = min(name, other), max(name, other)
        if key not in best or evidence.precise > best[key].precise:
            best[key] = evidence if name == key[0] else _reversed(evidence)
    for (a, b), evidence in best.items():
        if (kind := kind_of(evidence, thresholds)) is not None:
            yield Edge(a, b, kind, evidence)


def _reversed(evidence: Evidence) -> Evidence:
    return replace(
        evidence,
        transform=inverse(evidence.transform),
        sizes=(evidence.sizes[1], evidence.sizes[0]),
        points=evidence.points[:, [2, 3, 0, 1]],
    )


def sharpness(photo: str) -> float:
    """How much fine structure a photo has: the spread of its second derivative."""
    grey, _ = shrink(to_grey(read_image(photo)), SHARP_SIZE)
    return float(cv2.Laplacian(grey, cv2.CV_32F).std())


def _form_groups(edges: list[Edge], log: Compared, path: Callable[[str], str]) -> list[Group]:
    groups: list[Group] = []
    # The larger photo of a pair with a border has pixels that nobody wants.
    framed = {
        edge.a if edge.evidence.overlap[0] < edge.evidence.overlap[1] else edge.b
        for edge in edges
        if edge.evidence.bordered
    }
    parent: dict[str, str] = {}

    @cache
    def sharp(name: str) -> float:
        try:
            return sharpness(path(name))
        except HardnetError:  # the file is gone
            return -1.0

    def best(names: list[str]) -> str:
        names = [name for name in names if name not in framed] or names
        pixels = {name: int(np.prod(log.size(name))) for name in names}
        largest = [name for name in names if pixels[name] == max(pixels.values())]
        if len(largest) == 1:  # no photo is read if the number of pixels decides
            return largest[0]
        return max(largest, key=lambda name: (sharp(name), (log.state(name) or (0,))[0], name))

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
        counts: dict[str, Counter[Kind]] = {}
        for edge in here:
            counts.setdefault(root(edge.a), Counter())[edge.kind] += 1
        for top, kinds in counts.items():
            names = sorted(members[top])
            kind = max(kinds, key=lambda kind: (kinds[kind], -KINDS.index(kind)))
            if kind == "panorama":
                order = _sweep(names, edges)
                kind, names = ("scene", names) if order is None else ("panorama", order)
            groups.append(Group(kind, names, best(names)))
    return sorted(
        groups, key=lambda group: (-len(group.photos), KINDS.index(group.kind), *group.photos[:1])
    )


def _sweep(names: list[str], edges: list[Edge]) -> list[str] | None:
    """The photos of a panorama in their order; None if they drift by less than a frame.

    Neighbours are laid beside each other, from one photo outwards, along the maps between them.
    """
    near: dict[str, list[tuple[str, Evidence]]] = {}
    members = set(names)
    for edge in edges:
        if edge.kind in ("panorama", "burst", "copy") and {edge.a, edge.b} <= members:
            near.setdefault(edge.a, []).append((edge.b, edge.evidence))
            near.setdefault(edge.b, []).append((edge.a, _reversed(edge.evidence)))
    start = next(name for name in names if name in near)
    place, waiting = {start: np.zeros(2)}, [start]
    for here in waiting:
        for other, evidence in near[here]:
            if other not in place:
                sizes = np.array(evidence.sizes)
                centres = (sizes - 1) / 2
                step = moved(centres[:1], evidence.transform)[0] - centres[1]
                place[other] = place[here] - step / sizes[1]
                waiting.append(other)
    if set(place) != members:
        return None
    places = np.array([place[name] for name in names])
    extent = np.ptp(places, axis=0)
    if extent.max() < 1:
        return None
    axis = int(np.argmax(extent))
    return [names[i] for i in np.argsort(places[:, axis], kind="stable")]


THUMBNAIL = 320
"""Pixels of the longer side."""
QUALITY = 72
MOST_PHOTOS = 3000
"""Thumbnails of a page, those of the largest groups; a browser has to hold them all."""
MOST_PAIRS = 60
"""Pairs of a group that can be looked at, those with the most inliers."""


def write_page(path: str | os.PathLike[str], groups: Groups, progress: Progress = silent) -> None:
    """Write groups as one .html file that needs nothing else, to look at and to send.

    The page gets thumbnails, groups and pairs as data and builds itself; names of files are only
    ever shown as text.
    """
    path = as_path(path)
    content = page_data(groups, progress)
    # "</" would end the element that holds the data, whatever JSON it stands in.
    data = json.dumps(content, separators=(",", ":")).replace("</", "<\\/")
    page = (files("hardnet") / "retrieval" / "groups_page.html").read_text("utf-8")
    try:
        with replacing(path) as part:
            part.write_text(page.replace("@DATA@", data), encoding="utf-8")
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror or error}") from error


def page_data(groups: Groups, progress: Progress = silent) -> dict[str, Any]:
    """What the page shows, as JSON values.

    ``photos`` have a path, a size and a thumbnail (a data URI, or null if the file is gone);
    ``groups`` name photos by number, and their pairs with outlines and inliers in pixels.
    """
    every = dict.fromkeys(photo for group in groups.groups for photo in group.photos)
    chosen = {photo: number for number, photo in enumerate(islice(every, MOST_PHOTOS))}
    photos = []
    for done, photo in enumerate(chosen):
        progress("thumbnails", done, len(chosen))
        photos.append(_photo(photo))
    of_photo: dict[str, list[Pair]] = {}
    for pair in groups.pairs:
        if pair.a in chosen and pair.b in chosen:
            of_photo.setdefault(pair.a, []).append(pair)
    shown_groups = []
    for group in groups.groups:
        inside = set(group.photos)
        pairs = [p for photo in group.photos for p in of_photo.get(photo, ()) if p.b in inside]
        pairs.sort(key=lambda pair: -pair.inliers)
        shown_groups.append(
            {
                "kind": group.kind,
                "count": len(group.photos),
                "photos": [chosen[photo] for photo in group.photos if photo in chosen],
                "best": chosen.get(group.best),
                "pairs": [
                    {
                        "a": chosen[pair.a],
                        "b": chosen[pair.b],
                        "kind": pair.kind,
                        "inliers": pair.inliers,
                        "transform": np.round(pair.transform, 4).ravel().tolist(),
                        "overlap": [round(share, 3) for share in pair.overlap],
                        "points": np.round(pair.points).astype(int).tolist(),
                    }
                    for pair in pairs[:MOST_PAIRS]
                ],
            }
        )
    return {"photos": photos, "groups": shown_groups, "total": groups.photos}


def _photo(photo: str) -> dict[str, Any]:
    facts: dict[str, Any] = {"path": shown(photo), "size": None, "bytes": None, "src": None}
    try:
        pixels = to_colour(read_image(photo))
    except HardnetError:
        return facts
    data = base64.b64encode(to_jpeg(pixels, THUMBNAIL, QUALITY)).decode()
    return facts | {
        "size": [*pixels.shape[1::-1]],
        "bytes": Path(photo).stat().st_size,
        "src": f"data:image/jpeg;base64,{data}",
    }


def to_jpeg(pixels: Pixels, size: int, quality: int) -> bytes:
    """A picture with a longer side of at most ``size`` pixels."""
    small, _ = shrink(to_colour(pixels), size)
    bgr = np.ascontiguousarray(small[:, :, ::-1])
    return cv2.imencode(".jpg", bgr, [cv2.IMWRITE_JPEG_QUALITY, quality])[1].tobytes()
