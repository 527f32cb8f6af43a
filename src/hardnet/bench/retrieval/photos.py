"""The photographs of a benchmark as the detector sees them: cut, brought to one size, grey."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hardnet.cache import files_state
from hardnet.errors import HardnetError
from hardnet.image_files import read_header, read_image_file
from hardnet.images import Pixels, named_images, read_image, to_grey

GRID = 2
"""A distractor photograph gives its middle, and the middles of GRID x GRID equal parts of it."""

CROP_RULE = (
    "each distractor photo gives the largest window in its middle of the shape of the collection's "
    "photos, and the same of each of its four quarters, unless that window is smaller than those "
    "photos; every window is shrunk to their size (area averages); the crops are in the order of "
    "the SHA-256 of NAME#PART, NAME the path of the photo in its folder, PART 0 for the whole and "
    "1 to 4 for the quarters by rows, so that the first n are a sample of all"
)
SPLIT_RULE = (
    "a file that both the vocabulary and the distractors could use trains the vocabulary if the "
    "last digit of the SHA-256 of its name is even, and is a distractor if not"
)

Window = tuple[int, int, int, int]
"""x, y, width, height in whole pixels."""


@dataclass(frozen=True)
class Photo:
    """One picture of a benchmark.

    Attributes:
        name: unique in the benchmark.
        path: its file.
        window: the part of it that is used; None for all.
        shrunk: (width, height) to which the window is brought first; None for as it is.
        longer_side: in pixels, after that, larger or smaller; None for as it is.
    """

    name: str
    path: Path
    window: Window | None = None
    shrunk: tuple[int, int] | None = None
    longer_side: int | None = None

    def pixels(self) -> Pixels:
        """(H, W) grey."""
        grey = to_grey(read_image(self.path))
        if self.window is not None:
            x, y, width, height = self.window
            grey = np.ascontiguousarray(grey[y : y + height, x : x + width])
        if self.shrunk is not None:
            grey = np.asarray(cv2.resize(grey, self.shrunk, interpolation=cv2.INTER_AREA))
        return resized(grey, self.longer_side)

    def about(self) -> list[Any]:
        """Changes with the file and with what is done to it, not with the name."""
        path = self.path.resolve()
        return [str(path), files_state([path]), self.window, self.shrunk, self.longer_side]


def resized(pixels: Pixels, longer_side: int | None) -> Pixels:
    """A picture with a longer side of that many pixels: area averages down, cubic splines up."""
    height, width = pixels.shape[:2]
    if longer_side is None or max(height, width) == longer_side:
        return pixels
    factor = longer_side / max(height, width)
    size = max(round(width * factor), 1), max(round(height * factor), 1)
    how = cv2.INTER_AREA if factor < 1 else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, size, interpolation=how), np.uint8)


def windows(width: int, height: int, size: tuple[int, int]) -> list[Window | None]:
    """The windows that :data:`CROP_RULE` cuts: five places, None where one is too small.

    Args:
        width: of the photo.
        height: of the photo.
        size: (width, height) of the photos that they shall resemble.
    """
    parts = [(0, 0, width, height)]
    for row in range(GRID):
        for column in range(GRID):
            part = width // GRID, height // GRID
            parts.append((column * part[0], row * part[1], *part))
    return [_middle(part, size) for part in parts]


def crops(
    photos: Sequence[tuple[str, Path]], size: tuple[int, int], longer_side: int | None
) -> list[Photo]:
    """The distractors that photographs give, in the order of :data:`CROP_RULE`.

    Args:
        photos: names and files.
        size: (width, height) of the collection's photos.
        longer_side: to which all photos of the benchmark are brought.
    """
    found = []
    for name, path in photos:
        try:
            height, width = read_image(path).shape[:2]
        except HardnetError:  # a distractor less
            continue
        for number, window in enumerate(windows(width, height, size)):
            if window is not None:
                found.append(Photo(f"{name}#{number}", path, window, size, longer_side))
    return sorted(found, key=lambda photo: hashlib.sha256(photo.name.encode()).digest())


def split(
    vocabulary: Sequence[tuple[str, Path]], distractors: Sequence[tuple[str, Path]]
) -> tuple[list[tuple[str, Path]], list[tuple[str, Path]]]:
    """Both lists without what they share, which :data:`SPLIT_RULE` gives to one of them."""
    shared = {path.resolve() for _, path in vocabulary}
    shared &= {path.resolve() for _, path in distractors}
    return (
        [(n, p) for n, p in vocabulary if p.resolve() not in shared or _trains(p)],
        [(n, p) for n, p in distractors if p.resolve() not in shared or not _trains(p)],
    )


def _trains(path: Path) -> bool:
    return hashlib.sha256(path.name.encode()).digest()[-1] % 2 == 0


def _middle(part: Window, size: tuple[int, int]) -> Window | None:
    """The largest window of the shape of ``size`` in the middle of a part."""
    x, y, width, height = part
    factor = min(width / size[0], height / size[1])
    if factor < 1:
        return None
    wide, high = int(size[0] * factor), int(size[1] * factor)
    return x + (width - wide) // 2, y + (height - high) // 2, wide, high


def images_of(folders: Iterable[Path]) -> list[tuple[str, Path]]:
    """Names and files of all images in folders; a name begins with that of its folder."""
    return [
        (f"{folder.resolve().name}/{name}", path)
        for folder in folders
        for name, path in named_images([folder]).items()
    ]


def usual_size(files: Iterable[Path]) -> tuple[int, int]:
    """(width, height) of most of these photos."""
    sizes: Counter[tuple[int, int]] = Counter()
    for path in files:
        header = read_header(read_image_file(path))
        assert header is not None  # or it would not have been read
        sizes[header.width, header.height] += 1
    return sizes.most_common(1)[0][0]


def check_names(photos: Iterable[Photo]) -> None:
    """Raise if two photos have one name: an index has one place for each."""
    seen: dict[str, Path] = {}
    for photo in photos:
        if photo.name in seen:
            other = seen[photo.name]
            raise HardnetError(f"{other} and {photo.path} are both called {photo.name}: rename one")
        seen[photo.name] = photo.path
