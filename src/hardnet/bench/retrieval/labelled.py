"""Collections in which every photograph shows one thing: UKBench, and any folder with labels."""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

from hardnet.bench.retrieval.collection import Judgement, PhotoCollection, Question
from hardnet.errors import HardnetError
from hardnet.interop.image_names import named_images

PROTOCOL = "others"
VIEWS = 4
"""Photographs of each object in UKBench."""

ABOUT = (
    "every photo asks, as a whole; positives are the other photos of its label, and it is itself "
    "taken out of the ranking"
)
ABOUT_UKBENCH = (
    f"{ABOUT}; N-S is the mean number of photos of the object among the first four, the query, "
    "which stays in for this, included"
)
_NUMBER = re.compile(r"(\d+)$")


def read_ukbench(folder: Path, objects: range | None = None) -> PhotoCollection:
    """UKBench, or the part of it that is there: photo number // 4 is the object.

    Args:
        folder: holds ``ukbench00000.jpg`` and so on.
        objects: only these; default: all.

    Raises:
        HardnetError: a file without a number, or an object without its four photos.
    """
    labels = {}
    images = named_images([folder])
    for name, path in images.items():
        number = _NUMBER.search(path.stem)
        if number is None:
            raise HardnetError(f"{path} has no number, as ukbench00000.jpg: remove it")
        thing = int(number[1]) // VIEWS
        if objects is None or thing in objects:
            labels[name] = str(thing)
    views: dict[str, int] = {}
    for label in labels.values():
        views[label] = views.get(label, 0) + 1
    for label, count in views.items():
        if count != VIEWS:
            raise HardnetError(f"{folder} has {count} photos of object {label}: give all {VIEWS}")
    return _collection("UKBench", images, labels, ABOUT_UKBENCH, with_ns=True)


def read_labels(folder: Path, labels_file: Path | None = None) -> PhotoCollection:
    """Any folder of photographs with labels.

    Args:
        folder: the photographs; without a file, one folder per label inside it.
        labels_file: CSV with the columns ``image`` (path inside the folder) and ``label``; photos
            that it does not name are searched and have no label.

    Raises:
        HardnetError: no labels, or the file names an image that is not there.
    """
    images = named_images([folder])
    if labels_file is None:
        labels = {name: Path(name).parts[0] for name in images if len(Path(name).parts) > 1}
        if not labels:
            raise HardnetError(f"{folder} has no folder per label: make some, or give --labels CSV")
    else:
        labels = _read_csv(labels_file, images)
    return _collection(folder.resolve().name, images, labels, ABOUT, with_ns=False)


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
    """Every photo whose label has another photo asks; with N-S, unlabelled photos are left out."""
    members: dict[str, set[str]] = {}
    for image, label in labels.items():
        members.setdefault(label, set()).add(image)
    questions = []
    for image, label in labels.items():
        same = frozenset(members[label])
        if len(same) < 2:
            continue
        judgement = Judgement(same - {image}, frozenset({image}))
        questions.append(
            Question(
                name=image,
                image=image,
                group=label,
                judgements={PROTOCOL: judgement},
                same=same if with_ns else frozenset(),
            )
        )
    searched = {n: p for n, p in images.items() if n in labels} if with_ns else dict(images)
    return PhotoCollection(name, searched, tuple(questions), about=about)
