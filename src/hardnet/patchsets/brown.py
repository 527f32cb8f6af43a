"""The Brown (UBC PhotoTour) on-disk format.

A folder of 1024 x 1024 ``.bmp`` sheets, each a 16 x 16 grid of 64 x 64 grey patches in reading
order; ``info.txt`` with one row per patch, its first column the 3D point; and a pair file
``m50_<n>_<n>_0.txt`` whose columns 0, 1, 3, 4 are patch, point, patch, point. The last sheet is
padded: the number of rows of ``info.txt`` says how many patches are real.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import PatchSet

SHEET = 1024
PATCH = 64
GRID = SHEET // PATCH
PER_SHEET = GRID * GRID
PAIR_FILE = "m50_100000_100000_0.txt"


def read_brown(
    folder: str | Path, size: int = PATCH, progress: Callable[[int, int], None] | None = None
) -> PatchSet:
    """Open a set in the Brown format.

    The sheets are decoded once into ``<folder>/cache/patches-<size>.npy``, which later calls map
    into memory: a set larger than memory works, and a large set opens at once.

    Args:
        folder: the set.
        size: side of the patches wanted; 64 as on disk, 32 for the networks.
        progress: called with (sheets done, sheets in all) while the cache is written.
    """
    folder = Path(folder)
    points = _read_points(folder)
    cache = folder / "cache" / f"patches-{size}.npy"
    if not cache.exists():
        _write_cache(folder, cache, len(points), size, progress)
    patches = np.load(cache, mmap_mode="r")
    if patches.shape != (len(points), size, size):
        raise HardnetError(
            f"{cache} holds {patches.shape} patches but info.txt has {len(points)} rows; "
            "the set has changed: delete the cache folder"
        )
    return PatchSet(folder.name, patches, points, _read_pairs(folder, points))


def _read_points(folder: Path) -> NDArray[np.int64]:
    info = folder / "info.txt"
    if not info.is_file():
        raise HardnetError(f"{folder} is not a patch set in the Brown format: no info.txt there")
    try:
        points = np.array([int(row.split()[0]) for row in info.read_text().splitlines()], np.int64)
    except (ValueError, IndexError) as error:
        raise HardnetError(f"{info}: each row must start with a point number ({error})") from None
    if not len(points):
        raise HardnetError(f"{info} is empty: the set has no patches")
    return points


def _read_pairs(folder: Path, points: NDArray[np.int64]) -> NDArray[np.int64]:
    files = sorted(folder.glob("m50_*_0.txt"))
    if not files:
        return np.zeros((0, 2), np.int64)
    try:
        table = np.loadtxt(files[-1], np.int64, usecols=(0, 1, 3, 4), ndmin=2)
    except ValueError as error:
        raise HardnetError(f"{files[-1]}: cannot be read as a pair file ({error})") from None
    pairs = np.ascontiguousarray(table[:, [0, 2]])
    if len(pairs) and (pairs.min() < 0 or pairs.max() >= len(points)):
        raise HardnetError(
            f"{files[-1]} names patch {pairs.max()}, but {folder / 'info.txt'} has only "
            f"{len(points)} rows"
        )
    if (points[pairs] != table[:, [1, 3]]).any():
        raise HardnetError(f"{files[-1]} and {folder / 'info.txt'} disagree about the points")
    return pairs


def _write_cache(
    folder: Path,
    cache: Path,
    count: int,
    size: int,
    progress: Callable[[int, int], None] | None,
) -> None:
    sheets = sorted(folder.glob("*.bmp"))
    needed = -(-count // PER_SHEET)
    if len(sheets) < needed:
        raise HardnetError(
            f"{folder} has {len(sheets)} sheets (*.bmp); {count} rows of info.txt need {needed}"
        )
    cache.parent.mkdir(exist_ok=True)
    part = cache.with_name(f"{cache.name}.{os.getpid()}.part")
    out = np.lib.format.open_memmap(part, "w+", np.uint8, (count, size, size))
    try:
        for k, sheet in enumerate(sheets[:needed]):
            start = k * PER_SHEET
            stop = min(start + PER_SHEET, count)
            for i, patch in enumerate(_read_sheet(sheet)[: stop - start]):
                # One by one: resizing a whole sheet would bleed across neighbours at odd sizes.
                out[start + i] = patch if size == PATCH else cv2.resize(patch, (size, size))
            if progress:
                progress(k + 1, needed)
        out.flush()
        os.replace(part, cache)
    finally:
        part.unlink(missing_ok=True)


def _read_sheet(path: Path) -> NDArray[np.uint8]:
    """(256, 64, 64) patches of one sheet."""
    sheet = cv2.imread(str(path), cv2.IMREAD_GRAYSCALE)
    if sheet is None or sheet.shape != (SHEET, SHEET):
        found = "unreadable" if sheet is None else f"{sheet.shape[1]} x {sheet.shape[0]}"
        raise HardnetError(f"{path}: expected a {SHEET} x {SHEET} grey sheet, found {found}")
    tiles = sheet.reshape(GRID, PATCH, GRID, PATCH).swapaxes(1, 2)
    return np.asarray(tiles.reshape(PER_SHEET, PATCH, PATCH), np.uint8)
