"""Which photos to match with which."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal

from hardnet.errors import HardnetError

Pair = tuple[str, str]
Method = Literal["exhaustive", "sequential"]
MANY_PHOTOS = 300
"""All pairs of more photos than this take long: 300 photos are 44,850 pairs."""


@dataclass(frozen=True)
class PairSettings:
    """How pairs are chosen.

    Attributes:
        method: "exhaustive": every photo with every other; "sequential": with those that follow,
            for the frames of a video or photos taken along a path.
        overlap: sequential: how many of the following photos.
        quadratic: sequential: also those 2, 4, 8, ... 2^overlap photos later.
        loop: sequential: also every n-th photo with each other, to notice that the camera
            came back; 0: none.
    """

    method: Method = "exhaustive"
    overlap: int = 10
    quadratic: bool = True
    loop: int = 0

    def __post_init__(self) -> None:
        if self.method not in ("exhaustive", "sequential"):
            raise HardnetError(f"no pairs '{self.method}': choose exhaustive or sequential")
        if self.overlap < 1:
            raise HardnetError(f"overlap is {self.overlap}: give at least 1")
        if self.loop < 0:
            raise HardnetError(f"loop is {self.loop}: give a number of photos, or 0 for none")


def choose_pairs(names: Sequence[str], settings: PairSettings) -> list[Pair]:
    """Pairs of photos to match, each once, in an order that does not depend on the machine."""
    if settings.method == "exhaustive":
        return list(combinations(sorted(names), 2))
    order = sorted(names, key=_by_number)
    steps = set(range(1, settings.overlap + 1))
    if settings.quadratic:
        steps |= {2**k for k in range(1, settings.overlap + 1)}
    found = {(i, i + step) for i in range(len(order)) for step in steps if i + step < len(order)}
    if settings.loop:
        found |= set(combinations(range(0, len(order), settings.loop), 2))
    return [(order[i], order[j]) for i, j in sorted(found)]


def read_pairs(path: Path, names: Sequence[str], left_out: Sequence[str] = ()) -> list[Pair]:
    """Pairs of a text file: two names of photos per line, with a space or a tab between.

    Empty lines and lines that begin with # do not count, nor do pairs of photos that are left out.
    """
    lines = read_text(path).splitlines()
    known, passed = set(names), set(left_out)
    found: dict[Pair, None] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        a, b = _split(line, known | passed, f"{path}, line {number}")
        if a == b:
            raise HardnetError(f"{path}, line {number}: {a} is paired with itself")
        if a in known and b in known:
            found[(min(a, b), max(a, b))] = None
    if not found:
        raise HardnetError(f"{path} names no pair of photos")
    return list(found)


def read_text(path: Path) -> str:
    """The text of a file of pairs."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardnetError(f"{path} cannot be read as a list of pairs: {error}") from error


def _split(line: str, known: set[str], where: str) -> Pair:
    """The two names of a line; names may contain spaces themselves."""
    text = line.strip()
    for gap in re.finditer(r"\s+", text):
        a, b = text[: gap.start()], text[gap.end() :]
        if a in known and b in known:
            return a, b
    words = text.split("\t") if "\t" in text else text.split()
    if len(words) != 2:
        raise HardnetError(f"{where}: '{text}' is not two names of photos")
    missing = next(word for word in words if word not in known)
    raise HardnetError(f"{where}: no photo is called {missing}; names are relative to the folder")


def _by_number(name: str) -> list[tuple[int, int, str]]:
    parts = re.split(r"(\d+)", name)
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts if p]
