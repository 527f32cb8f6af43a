"""Turn packages of free photographs into a training folder: shrink, drop copies, split, credit.

The pictures named in `photo_sources.toml` were chosen by eye, so the rules here are few: a
minimum size, one copy of each picture, and a split into `train` and `val` that depends only on
names. A picture can therefore never change sides because another package was missing or added.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.images import read_image, to_colour
from hardnet.patchsets.photo_sources import (
    Source,
    SourceError,
    check_out,
    find_archive,
    select,
    unpack,
)
from hardnet.patchsets.video import read_frames
from hardnet.storage import OwnedFolder

Image = NDArray[np.uint8]

MIN_SIDE = 400  # longer side, in pixels; smaller pictures are icons and thumbnails
LONG_SIDE = 960  # stock photos are soft at full size: shrunk to this their pixels are sharp
SCENE_SIDE = 1200  # photos of one scene from many sides, which come from cameras directly
JPEG_QUALITY = 95
SAME_PICTURE = 8  # of 63 hash bits; sizes and encodings of one picture differ by less
VAL_PER_MILLE = 60
SPLIT_SEED = 64  # gives a val side that mixes landscapes, objects, textures and two small scenes
CREDITS = "SOURCES.md"
SIDES = ("train", "val", "scenes")
_PARTIAL = ".partial"


def shrink(image: Image, long_side: int = LONG_SIDE) -> Image:
    """Shrink to ``long_side`` pixels by area averaging; smaller pictures stay as they are.

    Example:
        >>> shrink(np.zeros((600, 1200, 3), np.uint8)).shape
        (480, 960, 3)
    """
    height, width = image.shape[:2]
    scale = long_side / max(height, width)
    if scale >= 1:
        return image
    size = (round(width * scale), round(height * scale))
    return np.asarray(cv2.resize(image, size, interpolation=cv2.INTER_AREA), np.uint8)


def perceptual_hash(image: Image) -> int:
    """Return 63 bits: the lowest DCT frequencies against their median (mean grey left out)."""
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = np.asarray(cv2.dct(small))[:8, :8].ravel()[1:]
    return int("".join("1" if bit else "0" for bit in low > np.median(low)), 2)


def is_validation(scene: str) -> bool:
    """Tell whether a scene is held out: a fixed hash of its name alone decides."""
    digest = hashlib.sha256(f"{SPLIT_SEED}:{scene}".encode()).hexdigest()
    return int(digest, 16) % 1000 < VAL_PER_MILLE


def read_pictures(source: Source, root: Path) -> Iterator[tuple[str, Image | None]]:
    """Yield (name, shrunken picture) in sorted order; None where a file cannot be decoded."""
    names = select(source, root)
    side = SCENE_SIDE if source.kind == "git" else LONG_SIDE
    if source.frames:
        for name in names:
            yield from _video_frames(source, root, name, source.frames)
        return
    with ThreadPoolExecutor(2) as pool:
        yield from zip(names, pool.map(lambda name: _read(root / name, side), names), strict=True)


def _read(path: Path, long_side: int) -> Image | None:
    try:
        image = to_colour(read_image(path))
    except HardnetError:
        return None
    return shrink(np.asarray(image[:, :, ::-1], np.uint8), long_side)


def _video_frames(
    source: Source, root: Path, name: str, frames: tuple[int, int, int]
) -> Iterator[tuple[str, Image]]:
    try:
        for number, image in read_frames(root / name, *frames):
            frame = f"{PurePosixPath(name).with_suffix('')}-{number:04d}.png"
            yield frame, shrink(image)
    except HardnetError as error:
        raise SourceError(f"{source.name}: {error}") from None


@dataclass
class PhotoFolder:
    """The growing output folder: writes every new picture once and counts per source.

    Pictures go to `train` or `val`; those of repositories, which show one scene from many sides
    each, to `scenes/SCENE`, a folder for `data build sfm`.

    Everything is written below a hidden folder and takes the place of these folders
    in `finish`, so that an interrupted run leaves the previous result whole.
    """

    folder: Path
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    _owned: OwnedFolder = field(init=False)
    _seen: list[tuple[str, int]] = field(default_factory=list)  # scene and hash of each picture

    def __post_init__(self) -> None:
        self._owned = OwnedFolder.mark(self.folder)
        if any((self.folder / s).exists() and f"{s}/" not in self._owned for s in SIDES):
            raise HardnetError(
                f"{self.folder} has a train, val or scenes folder that this command did not write; "
                "choose another output folder"
            )
        self._owned.claim(CREDITS)
        self._forget_partial()

    def _forget_partial(self) -> None:
        """Delete what is not in its place yet."""
        self._owned.remove(*(n for n in self._owned.names() if n.startswith(f"{_PARTIAL}/")))

    def add(self, source: Source, name: str, image: Image) -> str | None:
        """Write the picture; return None, or why it was left out."""
        if max(image.shape[:2]) < MIN_SIDE:
            return "too small"
        scene, bits = source.scene_of(name), perceptual_hash(image)
        for other, known in self._seen:
            if source.views and other == scene:
                continue
            if (bits ^ known).bit_count() <= SAME_PICTURE:
                return f"same picture as one of {other}"
        self._seen.append((scene, bits))
        stem, _, suffix = name.replace("/", "-").rpartition(".")
        if source.kind == "git":
            side = "scenes"
            folder = scene.strip("/").replace("/", "-")
            place = f"{_PARTIAL}/{side}/{folder}/{PurePosixPath(name).stem}"
        else:
            side = "val" if is_validation(scene) else "train"
            place = f"{_PARTIAL}/{side}/{source.name}__{stem}"
        if (self.folder / f"{place}.jpg").exists():  # of a.png beside a.jpg: a different picture
            place = f"{place}-{suffix}"
        path = self._owned.claim(f"{place}.jpg")
        if not cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]):
            raise HardnetError(f"cannot write {path}; is the disk full?")
        self.counts.setdefault(source.name, dict.fromkeys(SIDES, 0))[side] += 1
        return None

    def total(self, side: str) -> int:
        """Return the number of pictures written to ``side``."""
        return sum(count[side] for count in self.counts.values())

    def finish(self, sources: Sequence[Source], warnings: Sequence[str]) -> None:
        """Put the new pictures in place of the old ones and write the table of credits."""
        if not self.counts:
            self._forget_partial()
            raise HardnetError("no photo could be fetched: " + "; ".join(warnings or ["no source"]))
        (self.folder / CREDITS).write_text(self._credits(sources, warnings), "utf-8")
        made = self._owned.names(".jpg")
        new = [name.removeprefix(f"{_PARTIAL}/") for name in made if name.startswith(_PARTIAL)]
        self._owned.remove(*(n for n in made if n.startswith(SIDES) and n not in new))
        for side in SIDES:
            self._owned.claim(f"{side}/")
        for name in new:
            os.replace(self.folder / _PARTIAL / name, self._owned.claim(name))
        self._forget_partial()

    def _credits(self, sources: Sequence[Source], warnings: Sequence[str]) -> str:
        lines = [
            "# Sources of the photographs",
            "",
            f"{self.total('train')} photographs to train and {self.total('val')} held out, "
            f"at most {LONG_SIDE} pixels; {self.total('scenes')} of scenes seen from many "
            f"sides, at most {SCENE_SIDE}. File names start with the name of the source.",
            "",
            "| source | kind | version | licence | credit | train | val | scenes |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for source in sources:
            if count := self.counts.get(source.name):
                cells = (source.name, source.kind, source.version, source.licence, source.credit)
                numbers = (str(count[side]) for side in SIDES)
                lines.append(f"| {' | '.join((*cells, *numbers))} |")
        if warnings:
            lines += ["", "Left out:", "", *(f"- {warning}" for warning in warnings)]
        return "\n".join(lines) + "\n"


def add_source(
    source: Source,
    into: PhotoFolder,
    cache: Path,
    folders: Path | None,
    copies: Path | None = None,
) -> list[str]:
    """Fetch one source and add its pictures; return a sentence per picture that was left out.

    Args:
        source: an entry of the manifest.
        into: where the pictures go.
        cache: folder of downloaded archives.
        folders: parent of the sources of kind "folder".
        copies: folder of bare repositories, for the sources of kind "git".

    Raises:
        SourceError: the source cannot be used at all; the message names the fix.
    """
    notes = []
    with tempfile.TemporaryDirectory() as scratch:
        if source.kind == "folder":
            if folders is None:
                raise SourceError(f"{source.name}: is a local folder; give its parent folder")
            root = folders / source.root
        elif source.kind == "git":
            if copies is None:
                raise SourceError(f"{source.name}: is a repository; give the folder of copies")
            root, absent = check_out(source, copies, Path(scratch))
            if absent:
                notes.append(f"{source.name}: the copy of the repository lacks {len(absent)} files")
        else:
            root = unpack(source, find_archive(source, cache), Path(scratch))
        if not root.is_dir():
            raise SourceError(f"{source.name}: has no folder {source.root}; check `root`")
        for name, image in read_pictures(source, root):
            reason = "not a picture" if image is None else into.add(source, name, image)
            if reason:
                notes.append(f"{source.name}: {name}: {reason}")
    return notes
