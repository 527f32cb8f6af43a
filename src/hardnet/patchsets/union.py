"""Several patch sets as one, as HardNet++ and "full Brown" are trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import read_brown
from hardnet.patchsets.catalogue import identify
from hardnet.patchsets.hpatches import as_patchset, choose_split, read_hpatches
from hardnet.patchsets.joined import JoinedPatches
from hardnet.patchsets.patchset import PatchSet, Progress


def open_sets(names: Sequence[str], size: int, progress: Progress | None = None) -> PatchSet:
    """Open sets by name and join them; see :func:`open_training_set` and :func:`join`.

    A folder may be named once: its points would get two ids, and then count as non-matching.
    """
    seen: set[Path] = set()
    for name in names:
        folder = Path(_parse(name)[0]).resolve()
        if folder in seen:
            raise HardnetError(f"{name} is named twice: name it once and give it a larger weight")
        seen.add(folder)
    return join([open_training_set(name, size, progress) for name in names])


def open_training_set(name: str, size: int, progress: Progress | None = None) -> PatchSet:
    """Open one set to train on.

    Args:
        name: a folder in the Brown or HPatches format; ``FOLDER:SPLIT`` means the training
            sequences of that split of an HPatches folder, a folder alone all its sequences.
        size: side of the patches wanted.
        progress: called with (files done, files in all) while patches are decoded.
    """
    folder, split = _parse(name)
    kind = identify(folder)
    if kind == "w1bs":
        raise HardnetError(f"{folder} is a W1BS set, which is for testing only")
    if kind == "brown":
        if split:
            raise HardnetError(f"{name}: only HPatches sets have splits, {folder} is a Brown set")
        return read_brown(folder, size, progress)
    hpatches = read_hpatches(folder)
    sequences = choose_split(hpatches, split).train if split else tuple(hpatches.sequences)
    if not sequences:
        raise HardnetError(f"{name}: split {split} has no training sequences")
    patches = as_patchset(hpatches, sequences, size, progress)
    return replace(patches, name=f"{hpatches.name}:{split}") if split else patches


def join(sets: Sequence[PatchSet]) -> PatchSet:
    """One set of all patches; neither points nor images of different sets share an id.

    The patches stay where they are, usually memory-mapped. ``sets`` of the result tells the sets
    apart, for the weights of :class:`hardnet.patchsets.pairs.PairSampler`. It knows the images if
    all of its parts do.
    """
    if len(sets) == 1:
        return sets[0]
    sides = {part.name: part.patches.shape[1:] for part in sets}
    if len(set(sides.values())) > 1:
        found = ", ".join(f"{name} {side[0]}" for name, side in sides.items())
        raise HardnetError(f"sets with patches of different sides cannot be joined: {found}")
    points, pairs, images = [], [], []
    next_point = next_patch = next_image = 0
    for part in sets:
        if not len(part):
            raise HardnetError(f"{part.name} has no patches: leave it out")
        _, dense = np.unique(part.points, return_inverse=True)
        points.append(dense + next_point)
        pairs.append(part.pairs + next_patch)
        if part.images is not None:
            images.append(part.images + next_image)
            next_image += int(part.images.max()) + 1
        next_point += int(dense.max()) + 1
        next_patch += len(part)
    return PatchSet(
        "+".join(part.name for part in sets),
        JoinedPatches([part.patches for part in sets]),
        np.concatenate(points).astype(np.int64),
        np.concatenate(pairs),
        np.repeat(np.arange(len(sets)), [len(part) for part in sets]),
        np.concatenate(images) if len(images) == len(sets) else None,
    )


def _parse(name: str) -> tuple[str, str]:
    """Folder and split ("" for none); a folder that has a colon in its name is a folder."""
    if Path(name).exists() or ":" not in name:
        return name, ""
    folder, _, split = name.rpartition(":")
    return folder, split
