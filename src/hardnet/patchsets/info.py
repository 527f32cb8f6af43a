"""What a patch set contains: in numbers, and as a picture with a row of patches per point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from hardnet.image_files import as_path
from hardnet.images import Pixels
from hardnet.patchsets.brown import PATCH, Brown
from hardnet.patchsets.hpatches import SIDE, TAGS, HPatches, find_splits, group_of
from hardnet.patchsets.patchset import open_set, set_cache, strip_shape
from hardnet.patchsets.w1bs import W1BS
from hardnet.provenance import data_digest, members

CELL, GAP, HEADING = 65, 2, 16
FONT = (cv2.FONT_HERSHEY_SIMPLEX, 0.38)
MOST = 8  # patches in a row, if a point may have any number of them
SPREAD = 4  # sequences to draw points from: each costs the decoding of its 16 strips


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
class Description:
    """What a set is made of, bytes on disk and in its cache, and its digest.

    ``per_point`` is the least, median and greatest number of patches, ``cache`` the decoded files.
    """

    kind: str
    name: str
    patches: int
    points: int
    per_point: tuple[int, float, int]
    sides: tuple[int, ...]
    positive_pairs: int
    negative_pairs: int
    parts: tuple[Part, ...]
    splits: tuple[SplitSize, ...]
    bytes: int
    cache: dict[str, int]
    digest: str


def describe(path: str | Path) -> Description:
    """Describe a set of any format, from headers and lists alone."""
    path = as_path(path)
    found = open_set(path)
    positive = negative = 0
    parts: list[Part] = []
    splits: list[SplitSize] = []
    per_point: tuple[int, float, int]
    if isinstance(found, Brown):
        found.check_sheets()
        kind, sides = "brown", {PATCH}
        _, counts = np.unique(found.points, return_counts=True)
        points = len(counts)
        per_point = int(counts.min()), float(np.median(counts)), int(counts.max())
        a, b = found.points[found.pairs].T
        positive = int((a == b).sum())
        negative = len(found.pairs) - positive
    else:
        if isinstance(found, HPatches):
            kind, sides, each = "hpatches", {SIDE}, len(TAGS)
            for s in found.sequences.values():
                parts.append(Part(s.name, group_of(s.name), s.count, each * s.count))
            for split in find_splits(found).values():
                missing = len({*split.test, *split.train} - set(found.sequences))
                splits.append(SplitSize(split.name, len(split.test), len(split.train), missing))
        else:
            kind, each = "w1bs", 2
            sides = {strip_shape(file)[1] for p in found.pairs for file in (p.first, p.second)}
            parts = [Part(p.name, p.subset, p.count, each * p.count) for p in found.pairs]
        points, per_point = sum(part.points for part in parts), (each, each, each)
    decoded = sorted(set_cache(path).folder.glob("*patches-*.npy"))
    return Description(
        kind,
        found.name,
        len(found),
        points,
        per_point,
        tuple(sorted(sides)),
        positive,
        negative,
        tuple(parts),
        tuple(splits),
        sum(file.stat().st_size for _, file in members(path)),
        {file.name: file.stat().st_size for file in decoded},
        data_digest(path).sha256,
    )


@dataclass(frozen=True)
class Row:
    """Patches of one point, and what to write beside them."""

    label: str
    patches: Sequence[Pixels]


def matching_rows(
    patch_set: Brown | HPatches | W1BS, points: int = 16, seed: int = 0
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
