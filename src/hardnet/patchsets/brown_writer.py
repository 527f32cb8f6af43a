"""Write a patch set in the Brown (UBC PhotoTour) format; see :mod:`hardnet.patchsets.brown`."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.patchsets.brown import GRID, PAIR_FILE, PATCH, PER_SHEET, SHEET
from hardnet.patchsets.part_folder import discard, publish, start_part
from hardnet.storage import as_path


class BrownWriter:
    """Write a set patch by patch; nothing is visible under its name until it is complete."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = as_path(folder)
        self._part = start_part(self.folder)
        self._sheet = np.zeros((PER_SHEET, PATCH, PATCH), np.uint8)
        self._points: list[int] = []
        self._groups: list[int] = []
        self._images: list[int] = []

    def __enter__(self) -> BrownWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if kind is not None:
            discard(self._part.path)

    def add(
        self,
        patches: NDArray[np.uint8],
        points: NDArray[np.int64],
        group: int | NDArray[np.int64],
        image: int | NDArray[np.int64] = 0,
    ) -> None:
        """Append (n, 64, 64) patches.

        Args:
            patches: what to append.
            points: (n,) their 3D points.
            group: their scene, or (n,) one for each: non-matching test pairs are of one scene.
            image: the image they were cut from, or (n,) one for each; 0 throughout the set if
                that is not known.
        """
        groups, images = (np.broadcast_to(each, len(points)) for each in (group, image))
        self._images += images.tolist()
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
        table = zip(points, self._images, strict=True)
        rows = "".join(f"{point} {image}\n" for point, image in table)
        self._part.claim("info.txt").write_text(rows)
        drawn = draw_pairs(points, groups, pairs, seed)
        lines = "".join(f"{a} {points[a]} 0 {b} {points[b]} 0\n" for a, b in drawn)
        self._part.claim(PAIR_FILE).write_text(lines)
        for name, text in extra_files.items():
            self._part.claim(name).write_text(text)
        publish(self._part.path, self.folder)
        return len(points)

    def _flush(self) -> None:
        number = (len(self._points) - 1) // PER_SHEET
        used = (len(self._points) - 1) % PER_SHEET + 1
        self._sheet[used:] = 0
        sheet = self._sheet.reshape(GRID, GRID, PATCH, PATCH).swapaxes(1, 2).reshape(SHEET, SHEET)
        path = self._part.claim(f"patches{number:04d}.bmp")
        if not cv2.imwrite(str(path), sheet):
            raise HardnetError(f"{path}: could not be written; is the disk full?")


def draw_pairs(
    points: NDArray[np.int64], groups: NDArray[np.int64], count: int, seed: int
) -> NDArray[np.int64]:
    """Draw test pairs, half matching and half not: (count, 2) patch indices, or fewer.

    No matching pair comes twice, so a small set has fewer pairs. Non-matching patches come from the
    same group (scene) where it has another point, as the Brown data page advises: telling two
    different photographs apart is too easy.

    Raises:
        HardnetError: there are no two points, or no point with two patches.
    """
    if len(np.unique(points)) < 2 or len(np.unique(points)) == len(points):
        raise HardnetError("a patch set needs two 3D points, one of them with two patches or more")
    rng = np.random.default_rng(seed)
    matching = _matching(points, count // 2, rng)
    different = _different(points, groups, len(matching) + count % 2, rng)
    pairs = np.concatenate([matching, different])
    return pairs[rng.permutation(len(pairs))].astype(np.int64)


def _matching(points: NDArray[np.int64], count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """(count, 2) different pairs of patches of one point, or all there are; points uniform."""
    order = np.argsort(points, kind="stable")
    _, first, sizes = np.unique(points[order], return_index=True, return_counts=True)
    count = min(count, int((sizes * (sizes - 1) // 2).sum()))
    rich = np.flatnonzero(sizes > 1)
    found = np.zeros((0, 2), np.int64)
    while len(found) < count:
        chosen = rng.choice(rich, 2 * count)
        a = rng.integers(0, sizes[chosen])
        b = (a + rng.integers(1, sizes[chosen])) % sizes[chosen]
        drawn = np.stack([order[first[chosen] + a], order[first[chosen] + b]], 1)
        found = np.concatenate([found, drawn])
        _, new = np.unique(np.sort(found, axis=1), axis=0, return_index=True)
        found = found[np.sort(new)]  # in the order in which they came
        # A point whose pairs are all there needs no further draws.
        left = sizes * (sizes - 1) // 2
        left = left - np.bincount(
            np.searchsorted(points[order[first]], points[found[:, 0]]), minlength=len(sizes)
        )
        rich = np.flatnonzero(left > 0)
    return found[:count]


def _different(
    points: NDArray[np.int64], groups: NDArray[np.int64], count: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """(count, 2) patches of two points, of one group where it has two."""
    members = {g: np.flatnonzero(groups == g) for g in np.unique(groups)}
    several = {g: len(np.unique(points[m])) > 1 for g, m in members.items()}
    everyone = np.arange(len(points))
    anchors = rng.integers(0, len(points), count)
    others = []
    for anchor in anchors:
        pool = members[groups[anchor]] if several[groups[anchor]] else everyone
        other = rng.choice(pool)
        while points[other] == points[anchor]:
            other = rng.choice(pool)
        others.append(other)
    return np.stack([anchors, np.array(others, np.int64)], 1)
