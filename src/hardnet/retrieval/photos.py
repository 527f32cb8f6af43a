"""Photos of an index: what they are called there, how they are described, what is kept of them.

The name of a photo is its path as seen from the folder of the index, with "/" between the parts
("../photos/left.jpg"). So an index and its photos can be moved together, and from the index alone
every photo can be opened.

:class:`IndexSettings` are a person's choice. What the manifest of an index says becomes settings by
:func:`stored_settings` only, which takes nothing from it that could run code.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hardnet import descriptors, detectors
from hardnet.descriptors import Descriptor
from hardnet.detectors import Detector, affine
from hardnet.errors import HardnetError, counted, printable
from hardnet.features import Features, check_settings
from hardnet.image_files import file_digest
from hardnet.images import list_images
from hardnet.pipeline import extract_many
from hardnet.retrieval.store.segment import IndexedImage, pack_frames
from hardnet.retrieval.store.snapshot import MANIFEST
from hardnet.storage import OwnedFolder, refuse_other_settings, replacing

if TYPE_CHECKING:
    from hardnet.pipeline import Result
    from hardnet.retrieval.vocabulary import Vocabulary

DESCRIPTOR = "hardnet-small@12"
"""A single window: queries often show a small part of a photo, which wider windows miss."""

KEYPOINTS = 1024
"""Half as many as for matching: half the disk space, and half the time of a query."""

MAX_SIZE = 1024
"""Pixels of the longer side: fine structure that only large photos have is seldom seen twice."""

WEIGHTS = "weights"
"""The folder inside an index with copies of the weights files, each in a folder named by digest."""

WORK = "build"
"""The folder inside an index for what is not committed yet."""

LEFT_OUT = frozenset({"@eadir", "__macosx", "thumbnails", "thumbs"})
"""Folders where other programs keep copies, in lower case."""


def is_index(folder: Path) -> bool:
    """Whether there is an index, even an empty one."""
    return (folder / MANIFEST).exists()


def check_begun(folder: Path) -> None:
    """Raise if an index has no photos yet because its vocabulary is not trained."""
    if OwnedFolder.find(folder / WORK) is not None and not is_index(folder):
        raise HardnetError(
            f"{folder} has no photos yet: `hardnet index build` is at work there, or was stopped; "
            "then run the same command again"
        )


def name_of(photo: Path | str, folder: Path) -> str:
    """The name of a photo in the index in ``folder``; neither needs to exist."""
    path = _real(photo)
    try:
        return Path(os.path.relpath(path, os.path.realpath(folder))).as_posix()
    except ValueError:  # Windows: another drive
        return Path(path).as_posix()


def path_of(name: str, folder: Path) -> str:
    """The path of the photo that is called ``name`` in the index in ``folder``."""
    return os.path.normpath(os.path.join(os.path.realpath(folder), name))


def shown(path: str) -> str:
    """A path as one would type it here, in one line: short if it lies below the current folder."""
    return printable(path.removeprefix(os.getcwd() + os.sep))


def _real(photo: Path | str) -> str:
    """The same for all ways to write a path; a photo that is a link keeps the name of the link."""
    path = os.path.abspath(photo)
    return os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))


def named_photos(
    paths: Iterable[Path],
    folder: Path,
    *,
    hidden: bool = False,
    left_out: list[Path] | None = None,
) -> dict[str, Path]:
    """Photos in files and in folders with all below them: name -> file, each once, in their order.

    Pictures in ``folder``, that of the index, are not photos of the collection. Hidden photos, and
    those in hidden folders or folders of thumbnails, are left out, and added to ``left_out``,
    unless they are named themselves or ``hidden`` is set. A folder without images is an error.
    """
    inside = os.path.realpath(folder) + os.sep
    found: dict[str, Path] = {}
    left_out = [] if left_out is None else left_out
    for path in paths:
        in_folder = path.is_dir()
        for photo in list_images(path) if in_folder else [path]:
            if _real(photo).startswith(inside):
                continue
            parts = photo.relative_to(path).parts if in_folder and not hidden else ()
            if any(part.startswith(".") or part.lower() in LEFT_OUT for part in parts):
                left_out.append(photo)
            else:
                found.setdefault(name_of(photo, folder), photo)
    if left_out and not found:
        raise HardnetError(
            "every photo is hidden or a thumbnail "
            f"({counted(len(left_out), 'photo')}, such as {left_out[0]}): use "
            "--hidden (hidden=True in Python) to take them"
        )
    return found


@dataclass(frozen=True)
class IndexSettings:
    """What decides the features of a photo; see :func:`hardnet.extract`.

    A descriptor ``module:function`` is imported by :meth:`load`. Weights files are named by
    absolute path here, and in JSON by the last part of it: an index has copies of them.
    """

    detector: str = "dog"
    descriptor: str = DESCRIPTOR
    keypoints: int = KEYPOINTS
    max_size: int | None = MAX_SIZE
    upright: bool = False
    spread: bool = True

    def __post_init__(self) -> None:
        check_settings(self.keypoints, self.max_size)
        if self.descriptor not in descriptors.names():
            object.__setattr__(self, "descriptor", _absolute(self.descriptor))
        object.__setattr__(self, "detector", _each_file(self.detector, _absolute))

    def to_json(self) -> dict[str, Any]:
        """As JSON values; :func:`stored_settings` reads them again."""
        return asdict(self) | {
            "detector": _each_file(self.detector, os.path.basename),
            "descriptor": os.path.basename(self.descriptor),
        }

    def load(self) -> tuple[Detector, Descriptor]:
        detector = detectors.load(self.detector, self.spread)
        return detector, descriptors.load(self.descriptor)


def _absolute(name: str) -> str:
    return os.path.abspath(name) if os.path.isfile(name) else name


def _each_file(detector: str, change: Callable[[str], str]) -> str:
    """The name of a detector, ``kind:file,file``, with its files changed."""
    kind, _, files = detector.partition(":")
    return f"{kind}:{','.join(map(change, files.split(',')))}" if files else kind


def weights_of(settings: IndexSettings, descriptor: Descriptor) -> dict[str, Any]:
    """Digests of the weights behind the names, which must not change while the index exists."""
    return {
        "weights": getattr(descriptor, "weights", None),
        "detector_weights": detectors.weights(settings.detector),
    }


def compare(was: Mapping[str, Any], given: Mapping[str, Any], where: Path | str) -> None:
    """Raise if ``given`` settings are not those that ``where`` was made with."""
    known = {key: value for key, value in given.items() if key in was or isinstance(value, bool)}
    refuse_other_settings(was, known, where, "use the same settings, or build another index")


def stored_settings(
    kept: Mapping[str, Any], folder: Path, descriptor: str | None = None
) -> IndexSettings:
    """The settings of an existing index, whoever made it.

    ``kept`` are settings and weights, as the manifest has them: registered names, or weights files,
    whose copies in the folder of the index must have the digests of the manifest. A person may name
    the descriptor in place of the one in the manifest.
    """
    source = folder / MANIFEST
    kept = {"spread": False} | dict(kept)  # older versions did not know it
    if missing := sorted({field.name for field in fields(IndexSettings)} - kept.keys()):
        raise HardnetError(f"{source} is damaged: its settings have no {', '.join(missing)}")
    again = "name it yourself with --descriptor (descriptor= in Python)"
    if descriptor is None:
        name, digest = kept["descriptor"], str(kept.get("weights") or "").rpartition(" ")[2]
        if Path(str(name)).suffix.lower() in descriptors.WEIGHTS_SUFFIXES:
            descriptor = _kept_file(str(name), digest, folder, again)
        else:
            descriptor = descriptors.registered(name, source, again)
    kind, _, files = str(kept["detector"]).partition(":")
    rebuild = "build the index again"
    if f"{kind}:" == affine.AFFNET:
        digests = map(str, kept.get("detector_weights") or [])
        pairs = zip_longest(files.split(","), digests, fillvalue="")
        detector = affine.AFFNET + ",".join(_kept_file(*pair, folder, rebuild) for pair in pairs)
    else:
        detector = detectors.registered(kept["detector"], source, rebuild)
    plain = ("keypoints", "max_size", "upright", "spread")
    return IndexSettings(detector, descriptor, **{name: kept[name] for name in plain})


def keep_weights(settings: IndexSettings, folder: Path) -> IndexSettings:
    """Copy the weights files of the settings into an index; returns settings that name the copies.

    So an index needs no other file, and can be given away.
    """

    def copied(name: str) -> str:
        if not os.path.isfile(name):
            return name
        copy = _copy_path(name, file_digest(name), folder)
        if not copy.exists():
            OwnedFolder.mark(folder)  # or a build that fails would leave a folder of nobody's
            copy.parent.mkdir(parents=True, exist_ok=True)
            with replacing(copy) as part:
                shutil.copyfile(name, part)
        return str(copy)

    detector = _each_file(settings.detector, copied)
    return replace(settings, detector=detector, descriptor=copied(settings.descriptor))


def _kept_file(name: str, digest: str, folder: Path, again: str) -> str:
    copy = _copy_path(name, digest, folder)
    if not re.fullmatch(r"[0-9a-f]{64}", digest) or not copy.is_file():
        raise HardnetError(
            f"{folder / MANIFEST} names the weights {name!r}, but {folder / WEIGHTS} has no copy "
            f"of them; {again}"
        )
    if file_digest(copy) != digest:
        raise HardnetError(f"{copy} is not the file that {folder} was made with; {again}")
    return str(copy)


def _copy_path(name: str, digest: str, folder: Path) -> Path:
    return Path(os.path.abspath(folder)) / WEIGHTS / digest / os.path.basename(name)


PHOTOS = 16
"""Photos that are quantised at once: enough for all cores, little memory."""


@dataclass
class Describing:
    """Describes photos on threads of this process.

    Others may do the same elsewhere; the result does not depend on who does it.
    """

    settings: IndexSettings
    workers: int | None = None
    loaded: tuple[Detector, Descriptor] | None = None  # what the settings name, if it is at hand

    def features(self, images: Sequence[Path]) -> Generator[Result, None, None]:
        """Features of image files, in order; see :func:`hardnet.pipeline.extract_many`."""
        detector, descriptor = self.loaded or self.settings.load()
        how = asdict(self.settings) | {"detector": detector, "descriptor": descriptor}
        # The detector spreads keypoints itself.
        return extract_many(images, **how | {"spread": False}, workers=self.workers)

    def indexed(
        self, images: Sequence[Path], vocabulary: Vocabulary
    ) -> Generator[tuple[Path, IndexedImage | HardnetError], None, None]:
        """What an index keeps of image files, in order, or why there is nothing."""
        with closing(self.features(images)) as results:
            while some := list(islice(results, PHOTOS)):
                good = ((str(path), one) for path, one in some if isinstance(one, Features))
                quantised = quantise_many(good, vocabulary)
                for path, one in some:
                    yield path, next(quantised) if isinstance(one, Features) else one


def quantise_many(
    photos: Iterable[tuple[str, Features]], vocabulary: Vocabulary
) -> Iterator[IndexedImage]:
    """What an index keeps of named photos: a word and a signature per feature, compact frames."""
    rest = iter(photos)
    while some := list(islice(rest, PHOTOS)):
        vectors = np.concatenate([features.descriptors for _, features in some])
        words, signatures = np.zeros(0, np.int32), np.zeros((0, 2), np.uint64)
        if len(vectors):
            refuse_bits(vectors, some[0][1].descriptor)
            prepared = vocabulary.prepare(vectors)
            nearest = vocabulary.assign(prepared, 1)
            words, signatures = nearest[:, 0], vocabulary.signatures(prepared, nearest)[:, 0]
        start = 0
        for name, features in some:
            part = slice(start, start + len(features))
            start = part.stop
            geometry = pack_frames(features.frames, features.image_size)
            yield IndexedImage(name, features.image_size, words[part], signatures[part], geometry)


def refuse_bits(vectors: NDArray[Any], descriptor: str) -> None:
    """Raise if descriptors (N, D) are bits, which have no mean."""
    if vectors.dtype == np.uint8:
        raise HardnetError(
            f"the descriptor {descriptor} makes bits, which have no visual words: "
            "choose another, e.g. hardnet or rootsift"
        )
