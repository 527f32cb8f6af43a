"""Features of the benchmark's photographs, and words trained on them: made once, then read.

Both are in the cache, so a run that is killed continues where it was. All descriptors describe
exactly the same frames: a photo is read and its keypoints are found once for all descriptors that
lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet import detectors
from hardnet.bench.retrieval.photos import Photo
from hardnet.cache import Cache
from hardnet.descriptors import Descriptor
from hardnet.descriptors.digest import descriptor_digest
from hardnet.errors import HardnetError
from hardnet.features import Features, Found, describe, find, prepare
from hardnet.interop import feature_files
from hardnet.provenance import PIPELINE, versions
from hardnet.retrieval import kmeans, vocabulary
from hardnet.retrieval.vocabulary import Vocabulary
from hardnet.threads import usable_cores

Progress = Callable[[str, int, int], None]
"""Called with (what, done, total)."""


@dataclass(frozen=True)
class Extraction:
    """How keypoints are found.

    Attributes:
        detector: name.
        keypoints: most per photo, the strongest are kept.
        upright: no frame is turned.
    """

    detector: str = "dog"
    keypoints: int = 1000
    upright: bool = False


class FeatureStore:
    """The features of photographs by several descriptors.

    Args:
        folder: of the cache; the user's by default.
        descriptors: label -> descriptor.
        extraction: how keypoints are found.
    """

    def __init__(
        self, folder: Path | None, descriptors: Mapping[str, Descriptor], extraction: Extraction
    ) -> None:
        self._descriptors = dict(descriptors)
        self._extraction = extraction
        self._cache = Cache("features", folder)
        found_by = asdict(extraction) | {
            "weights": detectors.weights(extraction.detector),
            "versions": versions(PIPELINE),
        }
        self._about = {
            label: found_by | {"descriptor": descriptor_digest(descriptor)}
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
                            self._get(photo, label, each)
                    done += 1
                    progress("describing", done, len(photos))
        return unreadable

    def read(self, photo: Photo, label: str) -> Features:
        """The features of one photo by one descriptor."""
        return self._get(photo, label, None)

    def read_all(self, photos: Sequence[Photo], label: str) -> Iterator[tuple[str, Features]]:
        """Names and features of photos."""
        for photo in photos:
            yield photo.name, self.read(photo, label)

    def about(self, photos: Sequence[Photo], label: str) -> dict[str, Any]:
        """All that the features of photos depend on, as JSON values."""
        return self._about[label] | {"photos": [photo.about() for photo in photos]}

    def _missing(self, photo: Photo) -> list[str]:
        return [
            label
            for label in self._descriptors
            if not self._cache.path(self.about([photo], label), feature_files.NPZ).exists()
        ]

    def _get(self, photo: Photo, label: str, found: Found | None) -> Features:
        def make() -> Features:
            again = found
            if again is None:  # the file is damaged
                detect = detectors.load(self._extraction.detector)
                wanted = self._extraction.keypoints, self._extraction.upright
                again = find(prepare(photo.pixels(), None), detect, *wanted)
            return replace(describe(again, self._descriptors[label]), pixels=None)

        about = self.about([photo], label)
        return self._cache.get(
            about, make, feature_files.write_npz, feature_files.read_npz, feature_files.NPZ
        )


PER_WORD = 64
"""At most this many descriptors train each word; more change little."""
KEYPOINTS = 1000
"""Per photo of the vocabulary, if the collection's photos have fewer: words need many examples."""


def for_words(extraction: Extraction) -> Extraction:
    """How keypoints are found in the photos of the vocabulary."""
    return replace(extraction, keypoints=max(extraction.keypoints, KEYPOINTS))


def trained_words(
    folder: Path | None,
    store: FeatureStore,
    photos: Sequence[Photo],
    label: str,
    words: int,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Vocabulary:
    """The vocabulary of one descriptor, read if it was trained before.

    Args:
        folder: of the cache; the user's by default.
        store: has the features of the photos.
        photos: what it is trained on.
        label: of the descriptor.
        words: how many.
        seed: of the sample and the training.
        progress: told how far it is.
    """

    def train() -> Vocabulary:
        rows, name = _sample(store, photos, label, words * PER_WORD, seed)
        if len(rows) < words:
            raise HardnetError(
                f"{len(rows)} features cannot train {words} words: give more --vocabulary-images, "
                "or fewer --words"
            )
        provenance = {"photos": len(photos), "features": len(rows), "seed": seed}
        return kmeans.train(
            rows, words, descriptor=name, seed=seed, progress=progress, provenance=provenance
        )

    def save(path: Path, trained: Vocabulary) -> None:
        vocabulary.save(trained, path)

    about = store.about(photos, label) | {"words": words, "seed": seed}
    return Cache("words", folder).get(about, train, save, vocabulary.load, ".safetensors")


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
