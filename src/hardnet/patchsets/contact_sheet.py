"""A picture of matching patches: one row per 3D point, its patches side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.patchsets.brown import Brown
from hardnet.patchsets.hpatches import TAGS, HPatches
from hardnet.patchsets.w1bs import W1BS

CELL = 65
GAP = 2
HEADING = 16
FONT = (cv2.FONT_HERSHEY_SIMPLEX, 0.38)
MOST = 8
"""Patches of a row where a point may have any number of them."""
SPREAD = 4
"""Sequences to draw points from: each costs the decoding of its 16 strips."""


@dataclass(frozen=True)
class Row:
    """Patches of one point, and what to write beside them."""

    label: str
    patches: Sequence[NDArray[np.uint8]]


def matching_rows(
    patch_set: Brown | HPatches | W1BS, points: int = 16, seed: int = 0
) -> tuple[list[Row], tuple[str, ...]]:
    """Draw points at random.

    Returns:
        A row for each of them, and the headings of the columns where columns have a meaning.
    """
    rng = np.random.default_rng(seed)
    if isinstance(patch_set, Brown):
        return list(_brown_rows(patch_set, points, rng)), ()
    if isinstance(patch_set, HPatches):
        return list(_hpatches_rows(patch_set, points, rng)), TAGS
    return list(_w1bs_rows(patch_set, points, rng)), ("1", "2")


def strip_rows(patches: NDArray[np.uint8], rows: int = 16, seed: int = 0) -> list[Row]:
    """Rows of patches drawn from a single strip (N, S, S); they do not match each other."""
    rng = np.random.default_rng(seed)
    chosen = np.sort(rng.permutation(len(patches))[: rows * MOST])
    starts = range(0, len(chosen), MOST)
    return [Row(f"from {chosen[k]}", list(patches[chosen[k : k + MOST]])) for k in starts]


def draw_rows(rows: Sequence[Row], headings: Sequence[str] = ()) -> NDArray[np.uint8]:
    """(H, W) grey picture of ``rows``, white between the patches and where a row has fewer."""
    columns = max((len(row.patches) for row in rows), default=0)
    step, top = CELL + GAP, HEADING if headings else 0
    left = 12 + max((cv2.getTextSize(row.label, *FONT, 1)[0][0] for row in rows), default=0)
    picture = np.full((top + step * len(rows) + GAP, left + step * columns + GAP), 255, np.uint8)
    for k, heading in enumerate(headings[:columns]):
        _write(picture, heading, left + GAP + step * k, HEADING - 4)
    for r, row in enumerate(rows):
        y = top + GAP + step * r
        _write(picture, row.label, 6, y + CELL // 2 + 4)
        for k, patch in enumerate(row.patches):
            x = left + GAP + step * k
            same = patch.shape == (CELL, CELL)
            picture[y : y + CELL, x : x + CELL] = patch if same else cv2.resize(patch, (CELL, CELL))
    return picture


def _brown_rows(brown: Brown, points: int, rng: np.random.Generator) -> Iterator[Row]:
    order = np.argsort(brown.points, kind="stable")
    names, first, counts = np.unique(brown.points[order], return_index=True, return_counts=True)
    several = np.flatnonzero(counts > 1)
    pool = several if len(several) else np.arange(len(names))
    for k in np.sort(rng.permutation(pool)[:points]):
        members = order[first[k] : first[k] + counts[k]][:MOST]
        yield Row(f"point {names[k]}", list(brown.patches(members)))


def _hpatches_rows(hpatches: HPatches, points: int, rng: np.random.Generator) -> Iterator[Row]:
    names = rng.permutation(list(hpatches.sequences))[: min(SPREAD, points)]
    for k, name in enumerate(sorted(names)):
        sequence = hpatches.sequences[name]
        share = points * (k + 1) // len(names) - points * k // len(names)
        chosen = np.sort(rng.permutation(sequence.count)[:share])
        # Copies: a view would keep each decoded strip in memory.
        strips = [sequence.patches(tag)[chosen] for tag in TAGS]
        for i, row in enumerate(chosen):
            yield Row(f"{name} {row}", [strip[i] for strip in strips])


def _w1bs_rows(w1bs: W1BS, points: int, rng: np.random.Generator) -> Iterator[Row]:
    drawn = set()
    for k in range(points):
        # Round and round the subsets, so that each nuisance factor is seen.
        subset = w1bs.subsets[k % len(w1bs.subsets)]
        chosen = int(rng.choice([i for i, p in enumerate(w1bs.pairs) if p.subset == subset]))
        drawn.add((chosen, int(rng.integers(w1bs.pairs[chosen].count))))
    for chosen, row in sorted(drawn):
        pair = w1bs.pairs[chosen]
        patches = [pair.patches(1)[row], pair.patches(2)[row]]
        yield Row(f"{pair.subset}/{pair.name} {row}", patches)


def _write(picture: NDArray[np.uint8], text: str, x: int, y: int) -> None:
    cv2.putText(picture, text, (x, y), *FONT, 0, 1, cv2.LINE_AA)
