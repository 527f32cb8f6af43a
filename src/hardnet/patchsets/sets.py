"""Open a patch set of any format, found from what lies in its folder, or several as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import INFO, Brown, open_brown, read_brown
from hardnet.patchsets.hpatches import (
    HPatches,
    as_patchset,
    choose_split,
    has_strips,
    read_hpatches,
)
from hardnet.patchsets.patchset import PatchSet, Progress, join, silent
from hardnet.patchsets.w1bs import W1BS, has_sides, read_w1bs
from hardnet.storage import as_path

Kind = Literal["brown", "hpatches", "w1bs"]

LAYOUTS = (
    "info.txt and *.bmp sheets (Brown), SEQUENCE/ref.png to t5.png (HPatches) or "
    "SUBSET/1/NAME.bmp and SUBSET/2/NAME.bmp (W1BS)"
)


def identify(folder: str | Path) -> Kind:
    """The format of the set in ``folder``; an error says what would make it one."""
    folder = as_path(folder)
    if not folder.is_dir():
        problem = "is a file, not a folder" if folder.exists() else "does not exist"
        raise HardnetError(f"{folder} {problem}: name the folder of a patch set")
    folders = sorted(path for path in folder.iterdir() if path.is_dir())
    kind = _kind(folder, folders)
    if kind is None and any(folder.glob("*.bmp")):
        raise HardnetError(f"{folder} has *.bmp sheets but no {INFO}: copy the Brown set again")
    if kind is None:
        inside = [path.name for path in folders if _kind(path, []) or (path / INFO).is_file()]
        hint = f"; name one of the folders in it: {', '.join(inside[:5])}" if inside else ""
        raise HardnetError(f"{folder} is not a patch set: expected {LAYOUTS}{hint}")
    return kind


def require(folder: str | Path, kind: Kind) -> None:
    """HardnetError unless ``folder`` is a set of this kind; it says which other one it is."""
    found = identify(folder)
    if found != kind:
        raise HardnetError(
            f"{folder} is in the {found} layout, not {kind}: use `hardnet bench {found}`"
        )


def open_set(folder: str | Path) -> Brown | HPatches | W1BS:
    """Open a set of any format; nothing is decoded yet."""
    kind = identify(folder)
    if kind == "brown":
        return open_brown(folder)
    return read_hpatches(folder) if kind == "hpatches" else read_w1bs(folder)


def open_sets(names: Sequence[str], size: int, progress: Progress = silent) -> PatchSet:
    """Open sets by name and join them, as HardNet++ and "full Brown" are trained.

    A folder may be named once: its points would get two ids, and then count as non-matching.
    """
    seen: set[Path] = set()
    for name in names:
        folder = Path(folder_and_split(name)[0]).resolve()
        if folder in seen:
            raise HardnetError(f"{name} is named twice: name it once and give it a larger weight")
        seen.add(folder)
    return join([open_training_set(name, size, progress) for name in names])


def open_training_set(name: str, size: int, progress: Progress = silent) -> PatchSet:
    """Open one set to train on, with patches of ``size`` pixels.

    ``name`` is a folder in the Brown or HPatches format; ``FOLDER:SPLIT`` means the training
    sequences of that split of an HPatches folder, a folder alone all its sequences.
    """
    folder, split = folder_and_split(name)
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


def _kind(folder: Path, folders: Sequence[Path]) -> Kind | None:
    if (folder / INFO).is_file():
        return "brown"
    if any(map(has_strips, (folder, *folders))):
        return "hpatches"
    if any(map(has_sides, (folder, *folders))):
        return "w1bs"
    return None


def folder_and_split(name: str) -> tuple[str, str]:
    """What ``FOLDER:SPLIT`` names, "" for no split; a folder may have a colon in its name."""
    if Path(name).exists() or ":" not in name:
        return name, ""
    folder, _, split = name.rpartition(":")
    return folder, split
