"""The Brown (UBC PhotoTour) format, read and written.

A folder of 1024 x 1024 ``.bmp`` sheets, each a 16 x 16 grid of 64 x 64 grey patches in reading
order; ``info.txt`` with one row per patch, its first column the 3D point; and a pair file
``m50_<n>_<n>_0.txt`` whose columns 0, 1, 3, 4 are patch, point, patch, point. The last sheet is
padded: the number of rows of ``info.txt`` says how many patches are real. The second column of
``info.txt`` is unused in the published sets; in ours it is the image the patch was cut from. Where
it is the same in all rows, or absent, the images are not known.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import ArrayLike

from hardnet.errors import HardnetError, Steps, silent
from hardnet.image_files import as_path, require_regular_file
from hardnet.images import Pixels
from hardnet.patchsets.patchset import (
    Ints,
    PatchSet,
    decoded,
    decoded_patches,
    picture_size,
    read_picture,
    refuse_stand_in,
)
from hardnet.storage import NewFolder, folder_name

SHEET, PATCH = 1024, 64
GRID = SHEET // PATCH
PER_SHEET = GRID * GRID
INFO, PAIR_FILE = "info.txt", "m50_100000_100000_0.txt"
COUNTS = {
    "liberty": 450092,
    "notredame": 468159,
    "yosemite": 633587,
    "liberty_harris": 379587,
    "notredame_harris": 325295,
    "yosemite_harris": 450912,
}
"""Patches of the published sets, by the name of their folder."""


@dataclass(frozen=True)
class Brown:
    """A set on disk, with the columns of a :class:`PatchSet`; nothing is decoded until needed."""

    name: str
    folder: Path
    sheets: tuple[Path, ...]
    points: Ints
    pairs: Ints
    images: Ints | None = None

    def __len__(self) -> int:
        return len(self.points)

    def patches(self, indices: ArrayLike) -> Pixels:
        """(n, 64, 64) patches; only the sheets that hold them are decoded."""
        rows = np.asarray(indices, np.int64)
        out = np.zeros((len(rows), PATCH, PATCH), np.uint8)
        for number in np.unique(rows // PER_SHEET):
            here = rows // PER_SHEET == number
            out[here] = read_sheet(self.sheets[number])[rows[here] % PER_SHEET]
        return out

    def check_sheets(self) -> None:
        """Raise for a sheet of the wrong size or a truncated one; only headers are read."""
        for sheet in self.sheets:
            _check_sheet(sheet)


def read_brown(folder: str | Path, size: int = PATCH, progress: Steps = silent) -> PatchSet:
    """Open a set for training or testing, its patches ``size`` pixels wide and mapped into memory.

    The sheets are decoded once, one by one, into the user's cache: a set may exceed memory.
    """
    brown = open_brown(folder)

    def pictures() -> Iterator[Pixels]:
        brown.check_sheets()  # all of them, before decoding for minutes
        for k, sheet in enumerate(brown.sheets):
            yield read_sheet(sheet)[: len(brown) - k * PER_SHEET]

    files = [brown.folder / INFO, *brown.sheets]
    shape = len(brown), size, size
    patches = decoded_patches(brown.folder, f"patches-{size}", files, shape, pictures, progress)
    return PatchSet(brown.name, patches, brown.points, brown.pairs, images=brown.images)


def open_brown(folder: str | Path) -> Brown:
    """Open a set without decoding it, with its pair file of 100000 pairs, else the largest."""
    folder = as_path(folder)
    info = folder / INFO
    if not info.is_file():
        raise HardnetError(f"{folder} is not a patch set in the Brown format: no info.txt there")
    points, images = decoded(folder, "info", [info], lambda: _read_info(info))
    known = COUNTS.get(re.sub("[-_ ]*harris$", "_harris", folder_name(folder).lower()))
    if known and known != len(points):
        raise HardnetError(
            f"{info} has {len(points)} rows, but {folder_name(folder)} has {known} patches: "
            "copy the set again, or rename the folder if it is another set"
        )
    sheets = sorted(folder.glob("patches*.bmp")) or sorted(folder.glob("*.bmp"))
    needed = -(-len(points) // PER_SHEET)
    if len(sheets) < needed or (len(sheets) > needed and not known):
        raise HardnetError(
            f"{folder} has {len(sheets)} sheets (*.bmp); {len(points)} rows of info.txt need "
            f"{needed}: copy the set again"
        )
    pairs: Ints = np.zeros((0, 2), np.int64)
    files = {p: [int(n) for n in re.findall(r"\d+", p.stem)] for p in folder.glob("m50_*.txt")}
    if files:
        file = max(files, key=lambda p: (p.name == PAIR_FILE, files[p], p.name))
        pairs = decoded(
            folder, f"pairs-{file.stem}", [info, file], lambda: _read_pairs(file, info, points)
        )
    # The published sets leave the column unused.
    said = not known and bool((images != images[0]).any())
    name, used = folder_name(folder), tuple(sheets[:needed])
    return Brown(name, folder, used, points, pairs, images if said else None)


def read_sheet(path: Path) -> Pixels:
    _check_sheet(path)
    tiles = read_picture(path).reshape(GRID, PATCH, GRID, PATCH).swapaxes(1, 2)
    return np.asarray(tiles.reshape(PER_SHEET, PATCH, PATCH), np.uint8)


def _check_sheet(path: Path) -> None:
    width, height = picture_size(path)
    if (width, height) != (SHEET, SHEET):
        expected = f"expected a {SHEET} x {SHEET} sheet"
        raise HardnetError(f"{path} is {width} x {height} pixels: {expected}")


def _read_info(info: Path) -> Ints:
    """(2, N) the point and image of each patch; 0 where a row names no image."""
    require_regular_file(info)
    refuse_stand_in(info, info.read_bytes())
    rows = [row.split() for row in info.read_text().splitlines()]
    expected = "each row must start with a point number"
    try:
        points = [int(row[0]) for row in rows]
        expected = "the second column must be the number of an image, or 0"
        images = [int(row[1]) if len(row) > 1 else 0 for row in rows]
    except (ValueError, IndexError) as error:
        raise HardnetError(f"{info}: {expected} ({error})") from None
    return np.array([points, images], np.int64)


def _read_pairs(file: Path, info: Path, points: Ints) -> Ints:
    require_regular_file(file)
    refuse_stand_in(file, file.read_bytes())
    try:
        table = np.loadtxt(file, np.int64, usecols=(0, 1, 3, 4), ndmin=2)
    except ValueError as error:
        raise HardnetError(f"{file}: cannot be read as a pair file ({error})") from None
    pairs = np.ascontiguousarray(table[:, [0, 2]])
    wrong = np.argwhere((pairs < 0) | (pairs >= len(points)))
    if len(wrong):
        row, side = wrong[0]
        raise HardnetError(
            f"{file} row {row + 1} names patch {pairs[row, side]}, but {info} has "
            f"{len(points)} rows (patches 0 to {len(points) - 1})"
        )
    wrong = np.argwhere(points[pairs] != table[:, [1, 3]])
    if len(wrong):
        row, side = wrong[0]
        patch, said = table[row, 2 * side : 2 * side + 2]
        raise HardnetError(
            f"{file} row {row + 1} says that patch {patch} shows point {said}, but {info} says "
            f"{points[patch]}: the two files disagree"
        )
    return pairs


class BrownWriter:
    """Write a set patch by patch; nothing is visible under its name until it is complete."""

    def __init__(self, folder: str | Path) -> None:
        self._new = NewFolder(folder)
        self._sheet = np.zeros((PER_SHEET, PATCH, PATCH), np.uint8)
        self._rows: list[tuple[int, int, int]] = []  # point, scene and image of each patch

    def __enter__(self) -> BrownWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._new.discard()

    def add(self, patches: Pixels, points: Ints, group: int | Ints, image: int | Ints = 0) -> None:
        """Append (n, 64, 64) patches of (n,) 3D points.

        Non-matching test pairs share a ``group`` (scene). ``image`` is the image they were cut
        from; 0 throughout the set if that is not known.
        """
        columns = [np.broadcast_to(each, len(points)).tolist() for each in (points, group, image)]
        for patch, *row in zip(patches, *columns, strict=True):
            self._sheet[len(self._rows) % PER_SHEET] = patch
            self._rows.append((row[0], row[1], row[2]))
            if len(self._rows) % PER_SHEET == 0:
                self._flush()

    def finish(self, pairs: int, seed: int, extra_files: dict[str, str]) -> int:
        """Write info.txt, the pair file and ``extra_files``; publish the set; count its patches."""
        if not self._rows:
            raise HardnetError(f"{self._new.folder}: no patch was produced, so no set is written")
        if used := len(self._rows) % PER_SHEET:
            self._sheet[used:] = 0
            self._flush()
        points, groups, _ = np.array(self._rows).T
        info = "".join(f"{point} {image}\n" for point, _, image in self._rows)
        drawn = draw_pairs(points, groups, pairs, seed)
        lines = "".join(f"{a} {points[a]} 0 {b} {points[b]} 0\n" for a, b in drawn)
        for name, text in {INFO: info, PAIR_FILE: lines, **extra_files}.items():
            self._new.claim(name).write_text(text)
        self._new.publish()
        return len(points)

    def _flush(self) -> None:
        sheet = self._sheet.reshape(GRID, GRID, PATCH, PATCH).swapaxes(1, 2).reshape(SHEET, SHEET)
        path = self._new.claim(f"patches{(len(self._rows) - 1) // PER_SHEET:04d}.bmp")
        if not cv2.imwrite(str(path), sheet):
            raise HardnetError(f"{path}: could not be written; is the disk full?")


def draw_pairs(points: Ints, groups: Ints, count: int, seed: int) -> Ints:
    """Draw test pairs, half matching and half not: (count, 2) patch indices, or fewer.

    No matching pair is repeated. Non-matching patches come from the same group (scene) if it has
    another point: telling patches of two different photographs apart is too easy.
    """
    if len(np.unique(points)) < 2 or len(np.unique(points)) == len(points):
        raise HardnetError("a patch set needs two 3D points, one of them with two patches or more")
    rng = np.random.default_rng(seed)
    matching = _matching(points, count // 2, rng)
    different = _different(points, groups, len(matching) + count % 2, rng)
    pairs = np.concatenate([matching, different])
    return pairs[rng.permutation(len(pairs))].astype(np.int64)


def _matching(points: Ints, count: int, rng: np.random.Generator) -> Ints:
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
        found = found[np.sort(new)]  # in the order drawn
        # A point whose pairs are all there needs no further draws.
        left = sizes * (sizes - 1) // 2
        left = left - np.bincount(
            np.searchsorted(points[order[first]], points[found[:, 0]]), minlength=len(sizes)
        )
        rich = np.flatnonzero(left > 0)
    return found[:count]


def _different(points: Ints, groups: Ints, count: int, rng: np.random.Generator) -> Ints:
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
