"""Collections of photographs with queries and what each of them should find.

Four layouts are read: UKBench, any folder with labels, Oxford and Paris, and their revisited form.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hardnet.errors import HardnetError
from hardnet.images import named_images

Box = tuple[float, float, float, float]
"""x, y, width, height in pixels; the centre of the top-left pixel is (0, 0)."""


@dataclass(frozen=True)
class Judgement:
    """What one protocol says about one query; junk neither helps nor harms."""

    positives: frozenset[str]
    junk: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Question:
    """A query of a benchmark with its answers by protocol.

    Queries of one ``group`` resemble each other: intervals draw whole groups. ``same``: for N-S all
    images of the object, the query included; empty if N-S is not defined.
    """

    name: str
    image: str
    group: str
    judgements: Mapping[str, Judgement]
    box: Box | None = None
    same: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PhotoCollection:
    """Photographs to search, others that are queries only, and the queries."""

    name: str
    images: Mapping[str, Path]
    questions: tuple[Question, ...]
    queries_only: Mapping[str, Path] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        if not self.questions:
            raise HardnetError(f"{self.name} has no query: check the folder and its --layout")

    def file_of(self, image: str) -> Path:
        return self.images[image] if image in self.images else self.queries_only[image]

    @property
    def protocols(self) -> list[str]:
        return list(self.questions[0].judgements)


def by_stem(images: Mapping[str, Path]) -> dict[str, str]:
    """Name without folder and suffix -> name; ground truth files name images like this."""
    found: dict[str, str] = {}
    for name, path in images.items():
        if (other := found.setdefault(path.stem, name)) != name:
            raise HardnetError(
                f"{path} and {images[other]} are both called {path.stem} in the ground truth: "
                "keep one of them"
            )
    return found


OTHERS = "others"
VIEWS = 4
"""Photographs of each object in UKBench."""

_ABOUT_LABELS = (
    "every photo asks, as a whole; positives are the other photos of its label, and it is itself "
    "taken out of the ranking"
)
_ABOUT_UKBENCH = (
    f"{_ABOUT_LABELS}; N-S is the mean number of photos of the object among the first four, the "
    "query, which stays in for this, included"
)
_NUMBER = re.compile(r"(\d+)$")


def read_ukbench(folder: Path, objects: range | None = None) -> PhotoCollection:
    """UKBench, or the available part of it: photo number // 4 is the object."""
    labels = {}
    images = named_images([folder])
    for name, path in images.items():
        number = _NUMBER.search(path.stem)
        if number is None:
            raise HardnetError(f"{path} has no number, as ukbench00000.jpg: remove it")
        thing = int(number[1]) // VIEWS
        if objects is None or thing in objects:
            labels[name] = str(thing)
    for label, count in Counter(labels.values()).items():
        if count != VIEWS:
            raise HardnetError(f"{folder} has {count} photos of object {label}: give all {VIEWS}")
    return _collection("UKBench", images, labels, _ABOUT_UKBENCH, with_ns=True)


def read_labels(folder: Path, labels_file: Path | None = None) -> PhotoCollection:
    """Any folder of photographs with labels: one folder per label inside it, or a CSV file.

    The file has the columns ``image`` (path inside the folder) and ``label``; photos that it does
    not name are searched and have no label.
    """
    images = named_images([folder])
    if labels_file is None:
        labels = {name: Path(name).parts[0] for name in images if len(Path(name).parts) > 1}
        if not labels:
            raise HardnetError(f"{folder} has no folder per label: make some, or give --labels CSV")
    else:
        labels = _read_csv(labels_file, images)
    return _collection(folder.resolve().name, images, labels, _ABOUT_LABELS, with_ns=False)


def _read_csv(path: Path, images: Mapping[str, Path]) -> dict[str, str]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            rows = list(csv.DictReader(stream))
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise HardnetError(f"{path} cannot be read: {reason}") from error
    labels = {}
    for row in rows:
        name, label = row.get("image"), row.get("label")
        if not name or not label:
            raise HardnetError(f"{path} needs the columns image,label in its first line")
        if name not in images:
            raise HardnetError(f"{path} names {name}, but there is no such image: add it")
        labels[name] = label
    return labels


def _collection(
    name: str, images: Mapping[str, Path], labels: Mapping[str, str], about: str, *, with_ns: bool
) -> PhotoCollection:
    """Every photo whose label has another photo is a query; N-S leaves out unlabelled photos."""
    members: dict[str, set[str]] = {}
    for image, label in labels.items():
        members.setdefault(label, set()).add(image)
    questions = []
    for image, label in labels.items():
        same = frozenset(members[label])
        if len(same) > 1:
            others = {OTHERS: Judgement(same - {image}, frozenset({image}))}
            for_ns = same if with_ns else frozenset()
            questions.append(Question(image, image, label, others, same=for_ns))
    searched = {n: p for n, p in images.items() if n in labels} if with_ns else dict(images)
    return PhotoCollection(name, searched, tuple(questions), about=about)


CLASSIC = "classic"
QUERY = "_query.txt"
PREFIX = "oxc1_"
_ABOUT_OXFORD = (
    "classic: good and ok are positives, junk is taken out of the ranking, the query's own image "
    "stays in; features of the query are those of its whole image with centres strictly inside "
    "the region"
)
KNOWN = {"all_souls": "Oxford5k", "defense": "Paris6k"}
"""A landmark of each of the two collections, by which they are recognised."""
QUERIES = 55
"""Queries of each of the two."""


def read_oxford(folder: Path) -> PhotoCollection:
    """Oxford5k and Paris6k as they are distributed: photographs, and four text files per query.

    ``all_souls_1_query.txt`` holds one line ``oxc1_all_souls_000013 136.5 34.1 648.5 955.7``: the
    image (Oxford's names begin with ``oxc1_``, which its files do not) and the corners of the query
    region. ``all_souls_1_good.txt``, ``_ok.txt`` and ``_junk.txt`` list images, one name per line.
    Good and ok ones are positives; the query's own image is one of them, a positive like any other.
    """
    images = named_images([folder])
    stems = by_stem(images)
    files = sorted(folder.rglob(f"*{QUERY}"))
    if not files:
        raise HardnetError(f"{folder} has no NAME_1{QUERY}: add the folder of the ground truth")
    questions = tuple(_oxford_question(path, stems) for path in files)
    name = folder.resolve().name
    if len(questions) == QUERIES:  # only a complete collection may stand beside the paper's numbers
        landmarks = {question.group for question in questions}
        name = next((name for mark, name in KNOWN.items() if mark in landmarks), name)
    return PhotoCollection(name, images, questions, about=_ABOUT_OXFORD)


def _oxford_question(path: Path, stems: Mapping[str, str]) -> Question:
    name = path.name.removesuffix(QUERY)
    words = _text(path).split()
    try:
        image, (left, top, right, bottom) = words[0], (float(word) for word in words[1:])
    except (IndexError, ValueError) as error:
        raise HardnetError(f"{path} is not a line IMAGE X1 Y1 X2 Y2: download it again") from error
    lists = {
        what: frozenset(
            _image(line, path.parent, stems)
            for line in _text(path.with_name(f"{name}_{what}.txt")).split()
        )
        for what in ("good", "ok", "junk")
    }
    judgement = Judgement(lists["good"] | lists["ok"], lists["junk"])
    return Question(
        name=name,
        image=_image(image, path.parent, stems),
        group=name.rpartition("_")[0] or name,
        judgements={CLASSIC: judgement},
        box=(left, top, right - left, bottom - top),
    )


def _image(name: str, source: Path, stems: Mapping[str, str]) -> str:
    found = stems.get(name) or stems.get(name.removeprefix(PREFIX))
    if found is None:
        raise HardnetError(f"{source} names {name}, but there is no such image: add it")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error


_ABOUT_REVISITED = (
    "revisited: easy, medium and hard positives; junk and the query's own image are taken out of "
    "the ranking; a query without positives does not count in the mean; features of the query are "
    "those of its whole image with centres strictly inside the region"
)


def read_revisited(folder: Path) -> PhotoCollection:
    """Revisited Oxford and Paris (ROxford5k, RParis6k): Easy, Medium and Hard.

    The ground truth is distributed as a pickle, which can run any code when it is opened. It is
    never opened here: docs/benchmarks.md shows how to convert it once into JSON. ``imlist`` names
    the images to search, ``qimlist`` the queries, and ``gnd`` has for each query ``bbx`` (x1, y1,
    x2, y2) and the places in ``imlist`` of its ``easy``, ``hard`` and ``junk`` images.
    """
    path = _ground_truth(folder)
    try:
        truth = json.loads(path.read_text())
        searched, asking, rows = list(truth["imlist"]), list(truth["qimlist"]), truth["gnd"]
        images = named_images([folder])
        stems = by_stem(images)
        names = [_image(str(stem), path, stems) for stem in searched]
        queries = [_image(str(stem), path, stems) for stem in asking]
        questions = tuple(
            _revisited_question(stem, name, row, names)
            for stem, name, row in zip(asking, queries, rows, strict=True)
        )
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise HardnetError(
            f"{path} is not a ground truth with imlist, qimlist and gnd: convert it again ({error})"
        ) from error
    return PhotoCollection(
        name=path.stem.removeprefix("gnd_"),
        images={name: images[name] for name in names},
        questions=questions,
        queries_only={name: images[name] for name in queries if name not in names},
        about=_ABOUT_REVISITED,
    )


def _ground_truth(folder: Path) -> Path:
    found = sorted(folder.rglob("gnd_*.json"))
    if len(found) == 1:
        return found[0]
    if found:
        raise HardnetError(f"{folder} has {len(found)} files gnd_*.json: keep one of them")
    pickles = sorted(folder.rglob("gnd_*.pkl"))
    if pickles:
        raise HardnetError(
            f"{pickles[0]} is a pickle, which is not opened here: convert it to "
            f"{pickles[0].stem}.json as docs/benchmarks.md shows"
        )
    raise HardnetError(f"{folder} has no gnd_NAME.json: add the ground truth")


def _revisited_question(
    stem: str, image: str, row: Mapping[str, Any], names: list[str]
) -> Question:
    easy, hard, junk = (
        frozenset(names[int(place)] for place in row[what]) for what in ("easy", "hard", "junk")
    )
    itself = frozenset({image})
    left, top, right, bottom = (float(value) for value in row["bbx"])
    return Question(
        name=stem,
        image=image,
        group=stem.rpartition("_")[0] or stem,
        judgements={
            "easy": Judgement(easy - itself, junk | hard | itself),
            "medium": Judgement((easy | hard) - itself, junk | itself),
            "hard": Judgement(hard - itself, junk | easy | itself),
        },
        box=(left, top, right - left, bottom - top),
    )
