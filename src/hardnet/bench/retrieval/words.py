"""The vocabulary of a benchmark: trained once on other photographs, kept beside the features."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.retrieval.feature_store import Extraction, FeatureStore, Progress
from hardnet.bench.retrieval.photos import Photo
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import replacing
from hardnet.retrieval import kmeans, vocabulary
from hardnet.retrieval.vocabulary import Vocabulary

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
