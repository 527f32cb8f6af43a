"""Several patch sets as one, as HardNet++ and "full Brown" are trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.patchset import PatchSet


def open_sets(
    folders: Sequence[str], size: int, progress: Callable[[int, int], None] | None = None
) -> PatchSet:
    """Open sets in the Brown format and join them; see :func:`join`."""
    return join([read_brown(folder, size, progress) for folder in folders])


def join(sets: Sequence[PatchSet]) -> PatchSet:
    """One set of all patches; the points of different sets never share an id.

    A single set stays memory-mapped; a union is copied into memory.
    """
    if len(sets) == 1:
        return sets[0]
    points, pairs = [], []
    next_point = next_patch = 0
    for part in sets:
        _, dense = np.unique(part.points, return_inverse=True)
        points.append(dense + next_point)
        pairs.append(part.pairs + next_patch)
        next_point += int(dense.max()) + 1
        next_patch += len(part)
    return PatchSet(
        "+".join(part.name for part in sets),
        np.concatenate([part.patches for part in sets]),
        np.concatenate(points).astype(np.int64),
        np.concatenate(pairs),
    )
