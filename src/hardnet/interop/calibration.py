"""Real patches to calibrate and check an exported network with."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.frames import from_opencv
from hardnet.images import list_images, read_image, to_grey
from hardnet.patches import PATCH_SIZE, cut_patches
from hardnet.storage import as_path


def real_patches(folder: Path | str, count: int, seed: int = 0) -> NDArray[np.uint8]:
    """Patches drawn at random from a patch set in the Brown format or from a folder of photographs.

    Args:
        folder: the set (it has an ``info.txt``) or the photographs, searched recursively.
        count: how many patches are wanted; fewer are returned if there are no more.
        seed: of the draw.

    Returns:
        (N, 32, 32) uint8; images that cannot be read are passed over.
    """
    folder = as_path(folder)
    if not folder.is_dir():
        raise HardnetError(f"no folder {folder}")
    random = np.random.default_rng(seed)
    if (folder / "info.txt").is_file():
        from hardnet.patchsets.brown import read_brown

        patches = read_brown(folder, PATCH_SIZE).patches
        chosen = random.permutation(len(patches))[:count]
        return np.array(patches[np.sort(chosen)])
    files = list_images(folder)
    # A few patches of many photographs say more than many patches of a few.
    files = [files[i] for i in random.permutation(len(files))[: max(16, count // 50)]]
    each = -(-count // len(files))
    cut = np.concatenate([_patches_of(path, each, random) for path in files])
    if not len(cut):
        raise HardnetError(f"no patches in the photographs of {folder}")
    return cut[random.permutation(len(cut))[:count]]


def _patches_of(path: Path, count: int, random: np.random.Generator) -> NDArray[np.uint8]:
    try:
        grey = to_grey(read_image(path))
    except HardnetError:  # a damaged or tiny image among many is no reason to stop
        return np.zeros((0, PATCH_SIZE, PATCH_SIZE), np.uint8)
    # More than wanted: the strongest alone would all be corners of high contrast.
    frames = from_opencv(cv2.SIFT.create(4 * count).detect(grey, None))
    return cut_patches(grey, frames[random.permutation(len(frames))[:count]])
