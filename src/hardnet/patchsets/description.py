"""What a patch set holds, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.patchsets.brown import PATCH, PER_SHEET, Brown, read_sheet
from hardnet.patchsets.catalogue import open_set
from hardnet.patchsets.hpatches import (
    SIDE,
    TAGS,
    HPatches,
    find_splits,
    group_of,
    read_strip,
)
from hardnet.patchsets.patchset import set_cache
from hardnet.patchsets.strips import picture_size
from hardnet.patchsets.w1bs import W1BS
from hardnet.provenance import data_digest, members
from hardnet.storage import as_path

LOW_CONTRAST = 10
"""Standard deviation of grey values below which a patch shows next to nothing."""
FILES = 16
"""Sheets or strips of the sample; of each, at most ``PER_FILE`` patches."""
PER_FILE = 256


@dataclass(frozen=True)
class Part:
    """A sequence or an image pair: its group or subset, 3D points and patches."""

    name: str
    group: str
    points: int
    patches: int


@dataclass(frozen=True)
class SplitSize:
    """A split, its number of test and training sequences, and how many are not on disk."""

    name: str
    test: int
    train: int
    missing: int


@dataclass(frozen=True)
class Grey:
    """Grey values of ``patches`` patches drawn at random.

    ``low_contrast`` is the share of patches whose standard deviation is below 10.
    """

    patches: int
    mean: float
    std: float
    low_contrast: float


@dataclass(frozen=True)
class Contents:
    """What a set is made of; ``per_point`` is the least, median and greatest number of patches."""

    kind: str
    name: str
    patches: int
    points: int
    per_point: tuple[int, float, int]
    sides: tuple[int, ...]
    positive_pairs: int = 0
    negative_pairs: int = 0
    parts: tuple[Part, ...] = ()
    splits: tuple[SplitSize, ...] = ()


@dataclass(frozen=True)
class Description:
    """A set: contents, looks, bytes on disk, decoded arrays in its cache, identity."""

    contents: Contents
    grey: Grey
    bytes: int
    cache: dict[str, int]
    fingerprint: str


def describe(path: str | Path, seed: int = 0) -> Description:
    """Describe a set of any format, or a single HPatches strip.

    Args:
        path: folder of the set, or the png of a strip.
        seed: of the sample of grey values.
    """
    path = as_path(path)
    decoded: list[Path] = []
    if path.is_file():
        patches = read_strip(path)
        contents = Contents("strip", path.name, len(patches), len(patches), (1, 1, 1), (SIDE,))
        grey = grey_values([patches])
    else:
        patch_set = open_set(path)
        contents = contents_of(patch_set)
        grey = grey_values(_sample(patch_set, np.random.default_rng(seed)))
        decoded = sorted(set_cache(path).folder.glob("*patches-*.npy"))
    return Description(
        contents,
        grey,
        sum(file.stat().st_size for _, file in members(path)),
        {file.name: file.stat().st_size for file in decoded},
        data_digest(path).sha256,
    )


def contents_of(patch_set: Brown | HPatches | W1BS) -> Contents:
    """Count what is in a set, from headers and lists alone."""
    if isinstance(patch_set, Brown):
        return _brown_contents(patch_set)
    if isinstance(patch_set, HPatches):
        return _hpatches_contents(patch_set)
    return _w1bs_contents(patch_set)


def grey_values(samples: Iterable[NDArray[np.uint8]]) -> Grey:
    """Statistics over arrays (n, S, S) of patches, which may differ in S."""
    patches = pixels = low = 0
    total = squares = 0.0
    for sample in samples:
        values = sample.astype(np.float64)
        patches += len(values)
        pixels += values.size
        total += float(values.sum())
        squares += float((values**2).sum())
        low += int((values.std((1, 2)) < LOW_CONTRAST).sum())
    mean = total / pixels
    return Grey(patches, mean, float(np.sqrt(squares / pixels - mean**2)), low / patches)


def _brown_contents(brown: Brown) -> Contents:
    brown.check_sheets()
    _, counts = np.unique(brown.points, return_counts=True)
    a, b = brown.points[brown.pairs].T
    positive = int((a == b).sum())
    return Contents(
        "brown",
        brown.name,
        len(brown),
        len(counts),
        (int(counts.min()), float(np.median(counts)), int(counts.max())),
        (PATCH,),
        positive,
        len(brown.pairs) - positive,
    )


def _hpatches_contents(hpatches: HPatches) -> Contents:
    sequences = hpatches.sequences
    splits = [
        SplitSize(
            split.name,
            len(split.test),
            len(split.train),
            len({*split.test, *split.train} - set(sequences)),
        )
        for split in find_splits(hpatches).values()
    ]
    return Contents(
        "hpatches",
        hpatches.name,
        len(hpatches),
        len(hpatches) // len(TAGS),
        (len(TAGS), len(TAGS), len(TAGS)),
        (SIDE,),
        parts=tuple(
            Part(s.name, group_of(s.name), s.count, s.count * len(TAGS)) for s in sequences.values()
        ),
        splits=tuple(splits),
    )


def _w1bs_contents(w1bs: W1BS) -> Contents:
    return Contents(
        "w1bs",
        w1bs.name,
        len(w1bs),
        len(w1bs) // 2,
        (2, 2, 2),
        tuple(sorted({picture_size(path)[0] for p in w1bs.pairs for path in (p.first, p.second)})),
        parts=tuple(Part(p.name, p.subset, p.count, 2 * p.count) for p in w1bs.pairs),
    )


def _sample(
    patch_set: Brown | HPatches | W1BS, rng: np.random.Generator
) -> Iterator[NDArray[np.uint8]]:
    """Patches of some sheets or strips, so that a large set is sampled in about a second."""

    def draw(count: int) -> list[int]:
        return [int(k) for k in np.sort(rng.permutation(count)[:FILES])]

    def some(patches: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return patches[np.sort(rng.permutation(len(patches))[:PER_FILE])]

    if isinstance(patch_set, Brown):
        for k in draw(len(patch_set.sheets)):
            yield read_sheet(patch_set.sheets[k])[: len(patch_set) - k * PER_SHEET]
    elif isinstance(patch_set, HPatches):
        sequences = list(patch_set.sequences.values())
        for k in draw(len(sequences) * len(TAGS)):
            yield some(sequences[k // len(TAGS)].patches(TAGS[k % len(TAGS)]))
    else:
        for k in draw(2 * len(patch_set.pairs)):
            yield some(patch_set.pairs[k // 2].patches(2 if k % 2 else 1))
