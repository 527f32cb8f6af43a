"""Features of the benchmark's photographs on disk: described once, read ever after.

``<store>/<settings and descriptor>/<photo>.npz``. Every file is whole or not there, so a run that
is killed goes on where it was. All descriptors describe exactly the same frames: a photo is read
and its keypoints are found once for all descriptors that lack it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet import detectors
from hardnet.bench.retrieval.photos import Photo
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import Features, Found, describe, find, prepare
from hardnet.interop import npz
from hardnet.retrieval import kmeans, vocabulary
from hardnet.retrieval.vocabulary import Vocabulary
from hardnet.storage import replacing
from hardnet.threads import usable_cores

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


@dataclass(frozen=True)
class Extraction:
    """How keypoints are found.

    Attributes:
        detector: name.
        keypoints: at most so many per photo, the strongest.
        upright: no frame is turned.
    """

    detector: str = "dog"
    keypoints: int = 1000
    upright: bool = False


class FeatureStore:
    """The features of photographs by several descriptors.

    Args:
        folder: of the store; made if it is missing.
        descriptors: label -> descriptor.
        extraction: how keypoints are found.
    """

    def __init__(
        self, folder: Path, descriptors: Mapping[str, Descriptor], extraction: Extraction
    ) -> None:
        self._descriptors = dict(descriptors)
        self._extraction = extraction
        self._folders = {
            label: folder / _key(extraction, descriptor)
            for label, descriptor in descriptors.items()
        }

    def fill(
        self,
        photos: Sequence[Photo],
        progress: Progress = lambda what, done, total: None,
    ) -> dict[str, str]:
        """Describe what is missing.

        Returns:
            Name -> why, of photos that cannot be read: they have no features.
        """
        unreadable: dict[str, str] = {}
        todo = [(photo, labels) for photo in photos if (labels := self._missing(photo))]
        done = len(photos) - len(todo)
        progress("describing", done, len(photos))
        detect = detectors.load(self._extraction.detector)

        def found(photo: Photo) -> Found | HardnetError:
            try:
                grey = prepare(photo.pixels(), None)
            except HardnetError as error:
                return error
            return find(grey, detect, self._extraction.keypoints, self._extraction.upright)

        with ThreadPoolExecutor(usable_cores()) as pool:
            for start in range(0, len(todo), 64):  # so that memory stays small
                part = todo[start : start + 64]
                for (photo, labels), each in zip(
                    part, pool.map(found, [photo for photo, _ in part]), strict=True
                ):
                    if isinstance(each, HardnetError):
                        unreadable[photo.name] = str(each)
                    else:
                        for label in labels:
                            self._write(photo, label, each)
                    done += 1
                    progress("describing", done, len(photos))
        return unreadable

    def key(self, label: str) -> str:
        """Changes with the descriptor and with how keypoints are found."""
        return self._folders[label].name

    def read(self, photo: Photo, label: str) -> Features:
        """The features of one photo by one descriptor."""
        return npz.read_features(self._file(photo, label))

    def read_all(self, photos: Sequence[Photo], label: str) -> Iterator[tuple[str, Features]]:
        """Names and features of photos."""
        for photo in photos:
            yield photo.name, self.read(photo, label)

    def _file(self, photo: Photo, label: str) -> Path:
        return self._folders[label] / f"{photo.key()}{npz.SUFFIX}"

    def _missing(self, photo: Photo) -> list[str]:
        return [label for label in self._descriptors if not self._file(photo, label).exists()]

    def _write(self, photo: Photo, label: str, found: Found) -> None:
        features = replace(describe(found, self._descriptors[label]), pixels=None)
        path = self._file(photo, label)
        try:
            npz.write_features(path, features)
        except OSError as error:
            raise HardnetError(
                f"{path} cannot be written: {error.strerror}; see --store"
            ) from error


def _key(extraction: Extraction, descriptor: Descriptor) -> str:
    content = json.dumps(asdict(extraction) | {"descriptor": descriptor_digest(descriptor)})
    return hashlib.sha256(content.encode()).hexdigest()[:16]


PER_WORD = 64
"""At most so many descriptors train each word; more change little."""
KEYPOINTS = 1000
"""Per photo of the vocabulary, if the collection's photos have fewer: words need many examples."""


def for_words(extraction: Extraction) -> Extraction:
    """How keypoints are found in the photos of the vocabulary."""
    return replace(extraction, keypoints=max(extraction.keypoints, KEYPOINTS))


def trained_words(
    folder: Path,
    store: FeatureStore,
    photos: Sequence[Photo],
    label: str,
    words: int,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Vocabulary:
    """The vocabulary of one descriptor, read if it was trained before.

    Args:
        folder: where vocabularies are kept.
        store: has the features of the photos.
        photos: what it is trained on.
        label: of the descriptor.
        words: how many.
        seed: of the sample and the training.
        progress: told how far it is.
    """
    key = json.dumps([store.key(label), [photo.key() for photo in photos], words, seed, _sources()])
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.safetensors"
    if path.exists():
        return vocabulary.load(path)
    rows, name = _sample(store, photos, label, words * PER_WORD, seed)
    if len(rows) < words:
        raise HardnetError(
            f"{len(rows)} features cannot train {words} words: give more --vocabulary-images, or "
            "fewer --words"
        )
    trained = kmeans.train(
        rows,
        words,
        descriptor=name,
        seed=seed,
        progress=progress,
        provenance={"photos": len(photos), "features": len(rows), "seed": seed},
    )
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as part:
        vocabulary.save(trained, part)
    return trained


def _sample(
    store: FeatureStore, photos: Sequence[Photo], label: str, most: int, seed: int
) -> tuple[NDArray[np.float32], str]:
    """At most ``most`` descriptors (N, D) of all photos, drawn at random; the descriptor's name."""
    parts, name = [], label
    for _, features in store.read_all(photos, label):
        name = features.descriptor
        if len(features):
            parts.append(features.descriptors.astype(np.float32, copy=False))
    if not parts:
        return np.zeros((0, 1), np.float32), name
    rows = np.concatenate(parts)
    chosen = np.random.default_rng(seed).permutation(len(rows))[:most]
    return rows[np.sort(chosen)], name


def _sources() -> str:
    """Changes with the code that trains: an old vocabulary must not pass for a new one."""
    digest = hashlib.sha256()
    for module in (kmeans, vocabulary):
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]
