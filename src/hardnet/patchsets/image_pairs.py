"""Pairs of photographs with what is known about them, as they lie on disk.

Four layouts are read, told apart by what a folder holds:

* ``pairs.txt``: one pair a line, ``IMAGE_A IMAGE_B [TRUTH]``, relative to the folder; a name with
  spaces stands in quotes, ``#`` starts a comment. TRUTH is a homography (three rows of three
  numbers, a -> b) or a list of correspondences (rows ``x1 y1 x2 y2``). Without it nothing is known.
  This is our own convention, for any set of pairs.
* ``KIND/SCENE/{01,02}.*`` and ``corrs.txt`` (WxBS): correspondences picked by hand.
* sequence folders and pair folders with homographies: see :mod:`hardnet.patchsets.sequences`. Image
  1 makes a pair with each of the others.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.patchsets.sequences import (
    find_sequences,
    has_sequences,
    image_file,
    read_homography,
)
from hardnet.storage import as_path

PAIR_LIST = "pairs.txt"
CORRESPONDENCES = "corrs.txt"
MIN_CORRESPONDENCES = 8
"""What a fundamental matrix takes."""

Layout = Literal["list", "wxbs", "homographies"]


@dataclass(frozen=True, eq=False)
class ImagePair:
    """Two images of one scene.

    Attributes:
        name: unique in its folder.
        first: image a.
        second: image b.
        homography: (3, 3), pixels of a -> pixels of b, of positive determinant; or None.
        correspondences: (K, 4) x1 y1 x2 y2, K >= 8; or None. A pair has at most one of the two.
    """

    name: str
    first: Path
    second: Path
    homography: NDArray[np.float64] | None = None
    correspondences: NDArray[np.float64] | None = None

    @property
    def truth(self) -> Literal["homography", "correspondences", "none"]:
        """The kind of ground truth."""
        if self.homography is not None:
            return "homography"
        return "none" if self.correspondences is None else "correspondences"


def find_pairs(root: Path | str) -> tuple[Layout, list[ImagePair]]:
    """The pairs of one folder and the layout it has.

    Raises:
        HardnetError: no such folder, no layout that is known, a file that is missing or broken.
    """
    root = as_path(root)
    if not root.is_dir():
        raise HardnetError(f"{root}: no such folder")
    if (root / PAIR_LIST).is_file():
        return "list", _read_list(root / PAIR_LIST)
    if scenes := _scenes(root):
        return "wxbs", [_read_scene(root, scene) for scene in scenes]
    if not has_sequences(root):
        raise HardnetError(
            f"{root}: no image pairs here: neither {PAIR_LIST}, nor KIND/SCENE/{CORRESPONDENCES}, "
            "nor H_1_k files, nor folders 1, 2 and h"
        )
    pairs = [
        ImagePair(
            s.name if len(s.targets) == 1 else f"{s.name}-1-{t.name}",
            s.reference,
            t.image,
            homography=t.homography,
        )
        for s in find_sequences([root])
        for t in s.targets
    ]
    return "homographies", pairs


def read_correspondences(path: Path) -> NDArray[np.float64]:
    """(K, 4) rows x1 y1 x2 y2, at least 8."""
    rows = _numbers(path)
    if wrong := [number for number, row in rows if len(row) != 4]:
        raise HardnetError(f"{path}: line {wrong[0]} has not the four numbers x1 y1 x2 y2")
    if len(rows) < MIN_CORRESPONDENCES:
        raise HardnetError(
            f"{path}: {len(rows)} correspondences, a fundamental matrix takes at least "
            f"{MIN_CORRESPONDENCES}"
        )
    return np.array([row for _, row in rows], np.float64)


def _numbers(path: Path) -> list[tuple[int, list[float]]]:
    """(line number, its numbers) for every line that is not empty."""
    rows = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = [float(word) for word in line.replace(",", " ").split()]
        except ValueError:
            raise HardnetError(f"{path}: line {number} is not numbers: {line.strip()!r}") from None
        if not np.isfinite(row).all():
            raise HardnetError(f"{path}: line {number} has NaN or infinity")
        rows.append((number, row))
    return rows


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise HardnetError(f"{path} cannot be read: {reason}") from error


def _scenes(root: Path) -> list[Path]:
    """Folders with correspondences, one or two levels down (one KIND alone will do)."""
    found = [*root.glob(f"*/{CORRESPONDENCES}"), *root.glob(f"*/*/{CORRESPONDENCES}")]
    return sorted({path.parent for path in found})


def _read_scene(root: Path, scene: Path) -> ImagePair:
    truth = read_correspondences(scene / CORRESPONDENCES)
    images = image_file(scene, "01"), image_file(scene, "02")
    name = scene.relative_to(root).as_posix().replace("/", "-")
    return ImagePair(name, *images, correspondences=truth)


def _read_list(path: Path) -> list[ImagePair]:
    pairs: list[ImagePair] = []
    for number, line in enumerate(_text(path).splitlines(), 1):
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise HardnetError(f"{path}: line {number}: {error}") from None
        if not words:
            continue
        if len(words) not in (2, 3):
            raise HardnetError(f"{path}: line {number} is not IMAGE_A IMAGE_B [TRUTH]")
        files = [path.parent / word for word in words]
        if missing := [file for file in files if not file.is_file()]:
            raise HardnetError(f"{path}: line {number}: {missing[0]} does not exist")
        name = f"{number:03d}-{files[0].stem}-{files[1].stem}"
        pairs.append(_with_truth(name, files))
    if not pairs:
        raise HardnetError(f"{path} lists no pair: write IMAGE_A IMAGE_B [TRUTH] lines")
    return pairs


def _with_truth(name: str, files: list[Path]) -> ImagePair:
    first, second, *truth = files
    if not truth:
        return ImagePair(name, first, second)
    widths = [len(row) for _, row in _numbers(truth[0])]
    if widths == [3, 3, 3]:
        return ImagePair(name, first, second, homography=read_homography(truth[0]))
    return ImagePair(name, first, second, correspondences=read_correspondences(truth[0]))
