"""The benchmark's photographs, their features, and words trained on them: made once, then read.

Both are in the cache, so a run that is killed continues where it was. All descriptors describe
exactly the same frames: a photo is read and its keypoints are found once for all descriptors that
lack it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from hardnet import detectors
from hardnet.bench.development import Setup
from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError, Progress, silent
from hardnet.features import NPZ, Features, Found, describe
from hardnet.image_files import read_header, read_image_file
from hardnet.images import Pixels, named_images, read_image, to_grey
from hardnet.interop import feature_files
from hardnet.provenance import PIPELINE, Cache, descriptor_digest, files_state, versions
from hardnet.retrieval import training, vocabulary
from hardnet.retrieval.vocabulary import Vocabulary
from hardnet.threads import in_order, usable_cores


class FeatureStore:
    """The features of photographs by several descriptors, in the cache."""

    def __init__(
        self, folder: Path | None, descriptors: Mapping[str, Descriptor], setup: Setup
    ) -> None:
        self._folder, self._descriptors = folder, dict(descriptors)
        self._find = setup.finder()
        self._cache = Cache("features", folder)
        found_by = asdict(setup) | {
            "weights": detectors.weights(setup.detector),
            "versions": versions(PIPELINE),
        }
        self._about = {
            label: found_by | {"descriptor": descriptor_digest(descriptor)}
            for label, descriptor in descriptors.items()
        }

    def fill(self, photos: Sequence[BenchPhoto], progress: Progress = silent) -> dict[str, str]:
        """Describe what is missing; returns name -> why, of photos that cannot be read."""
        unreadable: dict[str, str] = {}
        todo = []
        for photo in photos:
            paths = {k: self._cache.path(self.about([photo], k), NPZ) for k in self._descriptors}
            if missing := [label for label, path in paths.items() if not path.exists()]:
                todo.append((photo, missing))
        done = len(photos) - len(todo)
        progress("describing", done, len(photos))

        def found(photo: BenchPhoto) -> Found | HardnetError:
            try:
                return self._find(photo.pixels())
            except HardnetError as error:
                return error

        with ThreadPoolExecutor(usable_cores()) as pool:
            every = in_order(pool, found, [photo for photo, _ in todo], 64)
            for (photo, labels), each in zip(todo, every, strict=True):
                if isinstance(each, HardnetError):
                    unreadable[photo.name] = str(each)
                else:
                    for label in labels:
                        self.read(photo, label, each)
                done += 1
                progress("describing", done, len(photos))
        return unreadable

    def read(self, photo: BenchPhoto, label: str, found: Found | None = None) -> Features:
        """The features of a photo by one descriptor; of ``found`` if they are not stored yet."""

        def make() -> Features:  # without ``found``: the file is damaged
            each = self._find(photo.pixels()) if found is None else found
            return replace(describe(each, self._descriptors[label]), pixels=None)

        about = self.about([photo], label)
        return self._cache.get(about, make, feature_files.write_npz, feature_files.read_npz, NPZ)

    def read_all(self, photos: Sequence[BenchPhoto], label: str) -> Iterator[tuple[str, Features]]:
        for photo in photos:
            yield photo.name, self.read(photo, label)

    def about(self, photos: Sequence[BenchPhoto], label: str) -> dict[str, Any]:
        """Everything that the features of photos depend on, as JSON values."""
        return self._about[label] | {"photos": [photo.about() for photo in photos]}

    def words(
        self,
        photos: Sequence[BenchPhoto],
        label: str,
        words: int,
        seed: int = 0,
        progress: Progress = silent,
    ) -> Vocabulary:
        """The vocabulary of one descriptor, read if it was trained before."""

        def train() -> Vocabulary:
            described = [features for _, features in self.read_all(photos, label) if len(features)]
            count = sum(map(len, described))
            if count < words:
                raise HardnetError(
                    f"{count} features cannot train {words} words: give more --vocabulary-images, "
                    "or fewer --words"
                )
            rows = np.concatenate([f.descriptors.astype(np.float32, copy=False) for f in described])
            chosen = np.random.default_rng(seed).permutation(count)[: words * PER_WORD]
            provenance = {"photos": len(photos), "features": len(chosen), "seed": seed}
            return training.train(
                rows[np.sort(chosen)],
                words,
                descriptor=described[0].descriptor,
                seed=seed,
                progress=progress,
                provenance=provenance,
            )

        def save(path: Path, trained: Vocabulary) -> None:
            vocabulary.save(trained, path)

        about = self.about(photos, label) | {"words": words, "seed": seed}
        kept = Cache("words", self._folder)
        return kept.get(about, train, save, vocabulary.load, ".safetensors")


PER_WORD = 64
"""At most this many descriptors train each word; more make little difference."""
KEYPOINTS = 1000
"""Per photo of the vocabulary, if the collection's photos have fewer: words need many examples."""


def for_words(setup: Setup) -> Setup:
    return replace(setup, keypoints=max(setup.keypoints, KEYPOINTS))


GRID = 2
"""A distractor photo gives its middle and the middles of GRID x GRID equal parts of it."""

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
class BenchPhoto:
    """One picture of a benchmark, by a unique name.

    ``window`` of the file (all of it by default) is brought to the size ``shrunk``, then to a
    ``longer_side``, larger or smaller.
    """

    name: str
    path: Path
    window: Window | None = None
    shrunk: tuple[int, int] | None = None
    longer_side: int | None = None

    def pixels(self) -> Pixels:
        grey = to_grey(read_image(self.path))
        if self.window is not None:
            x, y, width, height = self.window
            grey = np.ascontiguousarray(grey[y : y + height, x : x + width])
        if self.shrunk is not None:
            grey = np.asarray(cv2.resize(grey, self.shrunk, interpolation=cv2.INTER_AREA))
        return resized(grey, self.longer_side)

    def about(self) -> list[Any]:
        """Depends on the file and on what is done to it, not on the name."""
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
    """The windows that :data:`CROP_RULE` cuts: five places, None where one is too small."""
    wide, high = width // GRID, height // GRID
    parts = [(0, 0, width, height)]
    parts += [(x * wide, y * high, wide, high) for y in range(GRID) for x in range(GRID)]
    return [_middle(part, size) for part in parts]


def crops(
    photos: Sequence[tuple[str, Path]], size: tuple[int, int], longer_side: int | None
) -> list[BenchPhoto]:
    """The distractors that photographs give, in the order of :data:`CROP_RULE`."""
    found = []
    for name, path in photos:
        try:
            height, width = read_image(path).shape[:2]
        except HardnetError:  # one distractor fewer
            continue
        for number, window in enumerate(windows(width, height, size)):
            if window is not None:
                found.append(BenchPhoto(f"{name}#{number}", path, window, size, longer_side))
    return sorted(found, key=lambda photo: hashlib.sha256(photo.name.encode()).digest())


def split(
    vocabulary: Sequence[tuple[str, Path]], distractors: Sequence[tuple[str, Path]]
) -> tuple[list[tuple[str, Path]], list[tuple[str, Path]]]:
    """Both lists; a file in both stays in one of them, by :data:`SPLIT_RULE`."""
    shared = {path.resolve() for _, path in vocabulary}
    shared &= {path.resolve() for _, path in distractors}
    return (
        [(n, p) for n, p in vocabulary if p.resolve() not in shared or _trains(p)],
        [(n, p) for n, p in distractors if p.resolve() not in shared or not _trains(p)],
    )


def _trains(path: Path) -> bool:
    return hashlib.sha256(path.name.encode()).digest()[-1] % 2 == 0


def _middle(part: Window, size: tuple[int, int]) -> Window | None:
    x, y, width, height = part
    factor = min(width / size[0], height / size[1])
    if factor < 1:
        return None
    wide, high = int(size[0] * factor), int(size[1] * factor)
    return x + (width - wide) // 2, y + (height - high) // 2, wide, high


def images_of(folders: Iterable[Path]) -> list[tuple[str, Path]]:
    """Names and files of all images in folders; a name starts with that of its folder."""
    return [
        (f"{folder.resolve().name}/{name}", path)
        for folder in folders
        for name, path in named_images([folder]).items()
    ]


def usual_size(files: Iterable[Path]) -> tuple[int, int]:
    sizes: Counter[tuple[int, int]] = Counter()
    for path in files:
        header = read_header(read_image_file(path))
        assert header is not None  # or it would not have been read
        sizes[header.width, header.height] += 1
    return sizes.most_common(1)[0][0]


def check_names(photos: Iterable[BenchPhoto]) -> None:
    """Raise if two photos have the same name: an index needs distinct ones."""
    seen: dict[str, Path] = {}
    for photo in photos:
        if photo.name in seen:
            other = seen[photo.name]
            raise HardnetError(f"{other} and {photo.path} are both called {photo.name}: rename one")
        seen[photo.name] = photo.path
