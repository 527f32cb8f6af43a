"""Write a patch set in the HPatches layout; see :mod:`hardnet.patchsets.hpatches`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.patchsets.hpatches import LEVELS
from hardnet.storage import claim


def write_strip(path: Path, patches: NDArray[np.uint8]) -> None:
    """Write (N, S, S) patches as one picture, S wide and N S high, the first patch on top.

    The suffix of ``path`` chooses the format: png for HPatches, bmp for W1BS.
    """
    if patches.ndim != 3 or patches.shape[1] != patches.shape[2] or not len(patches):
        raise ValueError(f"a strip needs (N, S, S) patches, got {patches.shape}")
    good, data = cv2.imencode(path.suffix, patches.reshape(-1, patches.shape[2]))
    if not good:
        raise HardnetError(f"{path}: {len(patches)} patches are too many for one strip")
    claim(path).write_bytes(data.tobytes())


def write_sequence(
    folder: Path,
    reference: NDArray[np.uint8],
    targets: Mapping[str, Iterable[NDArray[np.uint8]]],
) -> None:
    """Write one sequence: ``ref.png``, and ``e1.png`` ... ``t5.png`` for the targets.

    Args:
        folder: made here; its name is that of the sequence.
        reference: (N, S, S).
        targets: noise level ("easy", "hard", "tough") -> (N, S, S) per target image.
    """
    if folder.exists():
        raise FileExistsError(folder)
    claim(folder / "ref.png")  # before its folder is made
    folder.mkdir(parents=True, exist_ok=True)
    write_strip(folder / "ref.png", reference)
    for level, strips in targets.items():
        for number, patches in enumerate(strips, 1):
            if patches.shape != reference.shape:
                raise ValueError(f"{level} {number}: {patches.shape}, not {reference.shape}")
            write_strip(folder / f"{LEVELS[level]}{number}.png", patches)


def write_splits(path: Path, names: Iterable[str]) -> None:
    """Write ``splits.json`` as the HPatches benchmark reads it: full, view and illum to test on.

    As in HPatches, these three have no list to train on; a user who trains on some of the
    sequences adds a split of their own to the file.
    """
    names = sorted(names)
    tests = {
        "full": names,
        "view": [name for name in names if name.startswith("v_")],
        "illum": [name for name in names if name.startswith("i_")],
    }
    table = {split: {"name": split, "test": test} for split, test in tests.items() if test}
    if not table:
        raise HardnetError(f"{path}: no sequence to list")
    claim(path).write_text(json.dumps(table, indent=1) + "\n")
