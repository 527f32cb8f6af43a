"""The Brown (UBC PhotoTour) on-disk format, read and written.

A folder of 1024 x 1024 ``.bmp`` sheets, each a 16 x 16 grid of 64 x 64 grey patches in reading
order; ``info.txt`` with one row per patch, its first column the 3D point; and a pair file
``m50_<n>_<n>_0.txt`` whose columns 0, 1, 3, 4 are patch, point, patch, point. The last sheet is
padded: the number of rows of ``info.txt`` says how many patches are real.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

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


class BrownWriter:
    """Write a set patch by patch; nothing is visible under its name until it is complete."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if self.folder.exists():
            raise HardnetError(f"{self.folder} exists already; choose another name or delete it")
        self._part = self.folder.with_name(f"{self.folder.name}.part")
        if self._part.exists():  # left by a killed run of ours: nobody reads it under this name
            _remove_sheets(self._part)
        self._part.mkdir(parents=True, exist_ok=True)
        self._sheet = np.zeros((PER_SHEET, PATCH, PATCH), np.uint8)
        self._points: list[int] = []
        self._groups: list[int] = []

    def __enter__(self) -> BrownWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            _remove_sheets(self._part)
            self._part.rmdir()

    def add(self, patches: NDArray[np.uint8], points: NDArray[np.int64], group: int) -> None:
        """Append (n, 64, 64) patches of (n,) points, all from scene ``group``."""
        for patch, point in zip(patches, points, strict=True):
            slot = len(self._points) % PER_SHEET
            self._sheet[slot] = patch
            self._points.append(int(point))
            self._groups.append(group)
            if slot == PER_SHEET - 1:
                self._flush()

    def finish(self, pairs: int, seed: int, extra_files: dict[str, str]) -> int:
        """Write info.txt, the pair file and ``extra_files``; publish the set; return its size."""
        if not self._points:
            raise HardnetError(f"{self.folder}: no patch was produced, so no set is written")
        if len(self._points) % PER_SHEET:
            self._flush()
        points, groups = np.array(self._points), np.array(self._groups)
        rows = "".join(f"{point} 0\n" for point in points)
        (self._part / "info.txt").write_text(rows)
        table = draw_pairs(points, groups, pairs, seed)
        lines = "".join(f"{a} {points[a]} 0 {b} {points[b]} 0\n" for a, b in table)
        (self._part / PAIR_FILE).write_text(lines)
        for name, text in extra_files.items():
            (self._part / name).write_text(text)
        os.replace(self._part, self.folder)
        return len(points)

    def _flush(self) -> None:
        number = (len(self._points) - 1) // PER_SHEET
        used = (len(self._points) - 1) % PER_SHEET + 1
        self._sheet[used:] = 0
        sheet = self._sheet.reshape(GRID, GRID, PATCH, PATCH).swapaxes(1, 2).reshape(SHEET, SHEET)
        path = self._part / f"patches{number:04d}.bmp"
        if not cv2.imwrite(str(path), sheet):
            raise HardnetError(f"{path}: could not be written; is the disk full?")


def _remove_sheets(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_file():
            path.unlink()


def draw_pairs(
    points: NDArray[np.int64], groups: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Draw test pairs, half matching and half not: (count, 2) patch indices.

    Non-matching patches come from the same group (scene) where it has another point, as the Brown
    data page advises: telling two different photographs apart is too easy.
    """
    rng = np.random.default_rng(seed)
    order = np.argsort(points, kind="stable")
    _, first, sizes = np.unique(points[order], return_index=True, return_counts=True)
    rich = np.flatnonzero(sizes > 1)
    positives = rng.choice(rich, count // 2)
    a = rng.integers(0, sizes[positives])
    b = (a + rng.integers(1, sizes[positives])) % sizes[positives]
    matching = np.stack([order[first[positives] + a], order[first[positives] + b]], 1)

    members = {g: np.flatnonzero(groups == g) for g in np.unique(groups)}
    several = {g: len(np.unique(points[m])) > 1 for g, m in members.items()}
    everyone = np.arange(len(points))
    anchors = rng.integers(0, len(points), count - count // 2)
    others = []
    for anchor in anchors:
        pool = members[groups[anchor]] if several[groups[anchor]] else everyone
        other = rng.choice(pool)
        while points[other] == points[anchor] and len(first) > 1:
            other = rng.choice(pool)
        others.append(other)
    different = np.stack([anchors, np.array(others, np.int64)], 1)
    return np.concatenate([matching, different])[rng.permutation(count)].astype(np.int64)
