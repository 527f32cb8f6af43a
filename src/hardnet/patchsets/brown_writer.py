"""Write a patch set in the Brown (UBC PhotoTour) format; see :mod:`hardnet.patchsets.brown`."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import GRID, PAIR_FILE, PATCH, PER_SHEET, SHEET
from hardnet.patchsets.part_folder import refuse_existing


class BrownWriter:
    """Write a set patch by patch; nothing is visible under its name until it is complete."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        refuse_existing(self.folder)
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

    def add(
        self,
        patches: NDArray[np.uint8],
        points: NDArray[np.int64],
        group: int | NDArray[np.int64],
    ) -> None:
        """Append (n, 64, 64) patches of (n,) points from one scene ``group``, or one for each."""
        groups = np.broadcast_to(group, len(points))
        for patch, point, scene in zip(patches, points, groups, strict=True):
            slot = len(self._points) % PER_SHEET
            self._sheet[slot] = patch
            self._points.append(int(point))
            self._groups.append(int(scene))
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
