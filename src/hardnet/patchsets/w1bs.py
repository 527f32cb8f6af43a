"""The layout of the W1BS (wide baseline stereo) patch set, read and written.

A folder per nuisance factor (subset: A, G, L, S, map2photo), each with the folders ``1`` and ``2``
that hold a column strip of square patches per image pair, ``NAME.bmp``. Row k of both strips shows
the same place. Geometry (``h``) and keypoints (``.keys``) may lie beside them and are not needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hardnet.errors import HardnetError
from hardnet.images import Pixels
from hardnet.patchsets.patchset import read_strip, require, strip_shape, write_strip
from hardnet.storage import claim, folder_name

SUFFIXES = (".bmp", ".png")


@dataclass(frozen=True)
class W1BSPair:
    """Two strips of ``count`` corresponding patches."""

    subset: str
    name: str
    first: Path
    second: Path
    count: int

    def patches(self, side: Literal[1, 2]) -> Pixels:
        """(N, S, S) patches of strip 1 or 2, decoded at each call."""
        return read_strip(self.first if side == 1 else self.second)


@dataclass(frozen=True)
class W1BS:
    """Pairs of strips, ordered by subset and name."""

    name: str
    folder: Path
    pairs: tuple[W1BSPair, ...]

    @property
    def subsets(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(pair.subset for pair in self.pairs))

    def __len__(self) -> int:
        return 2 * sum(pair.count for pair in self.pairs)


def read_w1bs(folder: str | Path) -> W1BS:
    """Open a set of subsets, or a single subset; strips are checked by their headers only."""
    folder = require(folder, "w1bs")
    found = [folder] if has_sides(folder) else sorted(filter(has_sides, folder.iterdir()))
    pairs = tuple(pair for subset in found for pair in _read_subset(subset))
    return W1BS(folder_name(folder), folder, pairs)


def has_sides(folder: Path) -> bool:
    """Whether ``folder`` looks like a subset: strips in a folder ``1`` or ``2``."""
    return any(_strips(folder / side) for side in "12")


def _strips(folder: Path) -> dict[str, Path]:
    if not folder.is_dir():
        return {}
    return {p.stem: p for p in sorted(folder.iterdir()) if p.suffix.lower() in SUFFIXES}


def _read_subset(folder: Path) -> list[W1BSPair]:
    first, second = _strips(folder / "1"), _strips(folder / "2")
    pairs = []
    for name in sorted(first.keys() | second.keys()):
        if name not in first or name not in second:
            side, there = ("1", second) if name not in first else ("2", first)
            raise HardnetError(f"{folder / side} has no strip {name} to go with {there[name]}")
        (count, _), (other, _) = strip_shape(first[name]), strip_shape(second[name])
        if count != other:
            raise HardnetError(f"{first[name]} has {count} patches, but {second[name]} has {other}")
        pairs.append(W1BSPair(folder_name(folder), name, first[name], second[name], count))
    return pairs


def write_pair(folder: Path, subset: str, name: str, first: Pixels, second: Pixels) -> None:
    """Write ``SUBSET/1/NAME.bmp`` and ``SUBSET/2/NAME.bmp``; row i of both shows the same spot."""
    if first.shape != second.shape:
        raise ValueError(f"{name}: {first.shape} and {second.shape} patches")
    for side, patches in (("1", first), ("2", second)):
        path = folder / subset / side / f"{name}.bmp"
        claim(path)  # before its folder is made
        path.parent.mkdir(parents=True, exist_ok=True)
        write_strip(path, patches)
