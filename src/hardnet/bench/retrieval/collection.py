"""A collection of photographs with queries and what each of them should find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hardnet.errors import HardnetError

Box = tuple[float, float, float, float]
"""x, y, width, height in pixels; the centre of the top-left pixel is (0, 0)."""


@dataclass(frozen=True)
class Judgement:
    """What one protocol says about one query.

    Attributes:
        positives: names of the images that should be found.
        junk: names of images that neither help nor harm.
    """

    positives: frozenset[str]
    junk: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Question:
    """A query of a benchmark with its answers.

    Attributes:
        name: of the query.
        image: name of its image, one of the collection's or of its ``queries_only``.
        group: queries of one group resemble each other: intervals draw whole groups.
        judgements: by the name of a protocol.
        box: the region that is asked for; None for the whole image.
        same: for N-S: all images of the object, the query included; empty if N-S is not defined.
    """

    name: str
    image: str
    group: str
    judgements: Mapping[str, Judgement]
    box: Box | None = None
    same: frozenset[str] = frozenset()


@dataclass(frozen=True)
class PhotoCollection:
    """Photographs, and questions about them.

    Attributes:
        name: what tables call it.
        images: name -> file, those that are searched.
        questions: all queries.
        queries_only: name -> file of images that ask but are not searched.
        about: how the ground truth is read, for the results file.
    """

    name: str
    images: Mapping[str, Path]
    questions: tuple[Question, ...]
    queries_only: Mapping[str, Path] = field(default_factory=dict)
    about: str = ""

    def __post_init__(self) -> None:
        if not self.questions:
            raise HardnetError(f"{self.name} has no query: check the folder and its --layout")

    def file_of(self, image: str) -> Path:
        """The file of an image, searched or only asking."""
        return self.images[image] if image in self.images else self.queries_only[image]

    @property
    def protocols(self) -> list[str]:
        """Names of the protocols, in the order of the first question."""
        return list(self.questions[0].judgements)


def corner_box(left: float, top: float, right: float, bottom: float) -> Box:
    """The box between two corners, as ground truth files give it."""
    return left, top, right - left, bottom - top


def by_stem(images: Mapping[str, Path]) -> dict[str, str]:
    """Name without folder and suffix -> name; ground truth files name images like this.

    Raises:
        HardnetError: two images would have one name.
    """
    found: dict[str, str] = {}
    for name, path in images.items():
        if (other := found.setdefault(path.stem, name)) != name:
            raise HardnetError(
                f"{path} and {images[other]} are both called {path.stem} in the ground truth: "
                "keep one of them"
            )
    return found
