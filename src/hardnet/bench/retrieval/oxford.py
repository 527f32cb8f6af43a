"""Oxford5k and Paris6k as they are distributed: photographs, and four text files per query.

``all_souls_1_query.txt`` holds one line ``oxc1_all_souls_000013 136.5 34.1 648.5 955.7``: the image
(Oxford's names begin with ``oxc1_``, which its files do not) and the corners of the query region.
``all_souls_1_good.txt``, ``_ok.txt`` and ``_junk.txt`` list images, one name per line. Good and ok
ones are positives; the query's own image is one of them, a positive like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hardnet.bench.retrieval.collection import (
    Judgement,
    PhotoCollection,
    Question,
    by_stem,
    corner_box,
)
from hardnet.errors import HardnetError
from hardnet.interop.image_names import named_images

PROTOCOL = "classic"
QUERY = "_query.txt"
PREFIX = "oxc1_"
ABOUT = (
    "classic: good and ok are positives, junk is taken out of the ranking, the query's own image "
    "stays in; features of the query are those of its whole image with centres strictly inside "
    "the region"
)
KNOWN = {"all_souls": "Oxford5k", "defense": "Paris6k"}
"""A landmark of each of the two collections, which tells them from others."""
QUERIES = 55
"""Of each of the two."""


def read(folder: Path) -> PhotoCollection:
    """Read a collection.

    Args:
        folder: holds, at any depth, the photographs and the files of the ground truth.

    Raises:
        HardnetError: no ground truth, a file of it is damaged, or an image that it names is
            missing.
    """
    images = named_images([folder])
    stems = by_stem(images)
    files = sorted(folder.rglob(f"*{QUERY}"))
    if not files:
        raise HardnetError(f"{folder} has no NAME_1{QUERY}: add the folder of the ground truth")
    questions = tuple(_question(path, stems) for path in files)
    return PhotoCollection(_name(folder, questions), images, questions, about=ABOUT)


def _name(folder: Path, questions: tuple[Question, ...]) -> str:
    """Only a complete collection may stand beside the paper's numbers."""
    landmarks = {question.group for question in questions}
    known = (name for mark, name in KNOWN.items() if mark in landmarks)
    name = next(known, None) if len(questions) == QUERIES else None
    return name or folder.resolve().name


def _question(path: Path, stems: Mapping[str, str]) -> Question:
    name = path.name.removesuffix(QUERY)
    words = _text(path).split()
    try:
        image, (left, top, right, bottom) = words[0], (float(word) for word in words[1:])
    except (IndexError, ValueError) as error:
        raise HardnetError(f"{path} is not a line IMAGE X1 Y1 X2 Y2: download it again") from error
    lists = {
        what: frozenset(
            _image(line, path, stems)
            for line in _text(path.with_name(f"{name}_{what}.txt")).split()
        )
        for what in ("good", "ok", "junk")
    }
    judgement = Judgement(lists["good"] | lists["ok"], lists["junk"])
    return Question(
        name=name,
        image=_image(image, path, stems),
        group=name.rpartition("_")[0] or name,
        judgements={PROTOCOL: judgement},
        box=corner_box(left, top, right, bottom),
    )


def _image(name: str, path: Path, stems: Mapping[str, str]) -> str:
    found = stems.get(name) or stems.get(name.removeprefix(PREFIX))
    if found is None:
        raise HardnetError(f"{path.parent} names {name}, but there is no such image: add it")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
