"""What a patch set contains: in numbers, and as a picture with a row of patches per point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import cv2
import numpy as np

from hardnet.image_files import as_path
from hardnet.images import Pixels
from hardnet.patchsets.brown import PATCH, PER_SHEET, Brown, read_sheet
from hardnet.patchsets.hpatches import SIDE, TAGS, HPatches, find_splits, group_of, read_strip
from hardnet.patchsets.patchset import open_set, picture_size, set_cache
from hardnet.patchsets.w1bs import W1BS
from hardnet.provenance import data_digest, members

LOW_CONTRAST = 10  # standard deviation of grey values below which a patch shows next to nothing
FILES = 16  # sheets or strips of the sample; of each, at most ``PER_FILE`` patches
PER_FILE = 256

CELL, GAP, HEADING = 65, 2, 16
FONT = (cv2.FONT_HERSHEY_SIMPLEX, 0.38)
MOST = 8  # patches in a row, if a point may have any number of them
SPREAD = 4  # sequences to draw points from: each costs the decoding of its 16 strips

AnySet = Brown | HPatches | W1BS


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
    """Grey values of a sample; ``low_contrast`` is the share of patches with a std below 10."""

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
    """A set: contents, looks, bytes on disk, decoded arrays in its cache, digest."""

    contents: Contents
    grey: Grey
    bytes: int
    cache: dict[str, int]
    digest: str


def describe(path: str | Path, seed: int = 0) -> Description:
    """Describe a set of any format, or a single HPatches strip (png); ``seed`` draws the sample."""
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


def _strips(patch_set: HPatches | W1BS) -> list[tuple[str, str, int, list[Callable[[], Pixels]]]]:
    if isinstance(patch_set, HPatches):
        return [
            (s.name, group_of(s.name), s.count, [partial(s.patches, tag) for tag in TAGS])
            for s in patch_set.sequences.values()
        ]
    return [
        (p.name, p.subset, p.count, [partial(p.patches, 1), partial(p.patches, 2)])
        for p in patch_set.pairs
    ]


def contents_of(patch_set: AnySet) -> Contents:
    """Count what is in a set, from headers and lists alone."""
    name, patches = patch_set.name, len(patch_set)
    if isinstance(patch_set, Brown):
        patch_set.check_sheets()
        _, counts = np.unique(patch_set.points, return_counts=True)
        a, b = patch_set.points[patch_set.pairs].T
        positive = int((a == b).sum())
        per_point = int(counts.min()), float(np.median(counts)), int(counts.max())
        pairs = positive, len(patch_set.pairs) - positive
        return Contents("brown", name, patches, len(counts), per_point, (PATCH,), *pairs)
    strips, splits = _strips(patch_set), list[SplitSize]()
    parts = tuple(Part(part, group, n, n * len(reads)) for part, group, n, reads in strips)
    if isinstance(patch_set, HPatches):
        kind, each, sides = "hpatches", len(TAGS), {SIDE}
        for split in find_splits(patch_set).values():
            missing = len({*split.test, *split.train} - set(patch_set.sequences))
            splits.append(SplitSize(split.name, len(split.test), len(split.train), missing))
    else:
        kind, each = "w1bs", 2
        sides = {picture_size(path)[0] for p in patch_set.pairs for path in (p.first, p.second)}
    side, points, split_sizes = tuple(sorted(sides)), patches // each, tuple(splits)
    return Contents(kind, name, patches, points, (each,) * 3, side, 0, 0, parts, split_sizes)


def grey_values(samples: Iterable[Pixels]) -> Grey:
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


def _sample(patch_set: AnySet, rng: np.random.Generator) -> Iterator[Pixels]:
    files: list[Callable[[], Pixels]]
    if whole := isinstance(patch_set, Brown):
        files = [partial(read_sheet, sheet) for sheet in patch_set.sheets]
    else:
        files = [read for *_, reads in _strips(patch_set) for read in reads]
    for k in np.sort(rng.permutation(len(files))[:FILES]).tolist():
        patches = files[k]()
        if whole:
            yield patches[: len(patch_set) - k * PER_SHEET]
        else:
            yield patches[np.sort(rng.permutation(len(patches))[:PER_FILE])]


@dataclass(frozen=True)
class Row:
    """Patches of one point, and what to write beside them."""

    label: str
    patches: Sequence[Pixels]


def matching_rows(
    patch_set: AnySet, points: int = 16, seed: int = 0
) -> tuple[list[Row], tuple[str, ...]]:
    """A row for each of some random points, and headings if the columns have a meaning."""
    rng = np.random.default_rng(seed)
    rows = []
    if isinstance(patch_set, Brown):
        order = np.argsort(patch_set.points, kind="stable")
        ordered = patch_set.points[order]
        names, first, counts = np.unique(ordered, return_index=True, return_counts=True)
        several = np.flatnonzero(counts > 1)
        pool = several if len(several) else np.arange(len(names))
        for k in np.sort(rng.permutation(pool)[:points]):
            members = order[first[k] : first[k] + counts[k]][:MOST]
            rows.append(Row(f"point {names[k]}", list(patch_set.patches(members))))
        return rows, ()
    if isinstance(patch_set, HPatches):
        chosen = rng.permutation(list(patch_set.sequences))[: min(SPREAD, points)]
        for k, name in enumerate(sorted(chosen)):
            sequence = patch_set.sequences[name]
            share = points * (k + 1) // len(chosen) - points * k // len(chosen)
            places = np.sort(rng.permutation(sequence.count)[:share])
            # Copies: a view would keep each decoded strip in memory.
            strips = [sequence.patches(tag)[places] for tag in TAGS]
            for i, place in enumerate(places):
                rows.append(Row(f"{name} {place}", [strip[i] for strip in strips]))
        return rows, TAGS
    drawn = set()
    for k in range(points):
        # Cycle through the subsets, so that each nuisance factor is seen.
        subset = patch_set.subsets[k % len(patch_set.subsets)]
        number = int(rng.choice([i for i, p in enumerate(patch_set.pairs) if p.subset == subset]))
        drawn.add((number, int(rng.integers(patch_set.pairs[number].count))))
    for number, place in sorted(drawn):
        pair = patch_set.pairs[number]
        both = [pair.patches(1)[place], pair.patches(2)[place]]
        rows.append(Row(f"{pair.subset}/{pair.name} {place}", both))
    return rows, ("1", "2")


def strip_rows(patches: Pixels, rows: int = 16, seed: int = 0) -> list[Row]:
    """Rows of patches drawn from a single strip (N, S, S); they do not match each other."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(patches))[: rows * MOST])
    starts = range(0, len(chosen), MOST)
    return [Row(f"from {chosen[k]}", list(patches[chosen[k : k + MOST]])) for k in starts]


def draw_rows(rows: Sequence[Row], headings: Sequence[str] = ()) -> Pixels:
    """(H, W) grey picture of ``rows``, white between the patches and where a row has fewer."""
    columns = max((len(row.patches) for row in rows), default=0)
    step, top = CELL + GAP, HEADING if headings else 0
    left = 12 + max((cv2.getTextSize(row.label, *FONT, 1)[0][0] for row in rows), default=0)
    picture = np.full((top + step * len(rows) + GAP, left + step * columns + GAP), 255, np.uint8)

    def write(text: str, x: int, y: int) -> None:
        cv2.putText(picture, text, (x, y), *FONT, 0, 1, cv2.LINE_AA)

    for k, heading in enumerate(headings[:columns]):
        write(heading, left + GAP + step * k, HEADING - 4)
    for r, row in enumerate(rows):
        y = top + GAP + step * r
        write(row.label, 6, y + CELL // 2 + 4)
        for k, patch in enumerate(row.patches):
            x = left + GAP + step * k
            same = patch.shape == (CELL, CELL)
            picture[y : y + CELL, x : x + CELL] = patch if same else cv2.resize(patch, (CELL, CELL))
    return picture
