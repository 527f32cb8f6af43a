"""The features of a photo as an index keeps them: words, signatures, compact frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.store.compact_frames import pack
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.vocabulary import Vocabulary

ROWS = 8192
"""Features that are quantised at once: enough for all cores, little memory."""


def quantise(
    name: str,
    features: Features,
    vocabulary: Vocabulary,
    state: Mapping[str, int] | None = None,
) -> IndexedImage:
    """What an index keeps of a photo.

    Args:
        name: what it is called there.
        features: of the photo; there may be none.
        vocabulary: of the index; one word per feature.
        state: ``bytes`` and ``mtime_ns`` of its file (``feature_files.state_of``), to notice later
            that it was changed.
    """
    words, signatures = _words(features.descriptors, features.descriptor, vocabulary)
    return _indexed(name, features, words, signatures, state or {})


def quantise_many(
    photos: Iterable[tuple[str, Features]], vocabulary: Vocabulary
) -> Iterator[IndexedImage]:
    """What an index keeps of each of many photos: the same as :func:`quantise`, in less time."""
    for some in _batches(photos):
        vectors = np.concatenate([features.descriptors for _, features in some])
        words, signatures = _words(vectors, some[0][1].descriptor, vocabulary)
        start = 0
        for name, features in some:
            part = slice(start, start + len(features))
            yield _indexed(name, features, words[part], signatures[part], {})
            start = part.stop


def _batches(photos: Iterable[tuple[str, Features]]) -> Iterator[list[tuple[str, Features]]]:
    """Photos of ROWS features together, and of one descriptor."""
    some: list[tuple[str, Features]] = []
    rows = 0
    for name, features in photos:
        if some and (rows >= ROWS or features.descriptor != some[0][1].descriptor):
            yield some
            some, rows = [], 0
        some.append((name, features))
        rows += len(features)
    if some:
        yield some


def _words(
    vectors: NDArray[Any], descriptor: str, vocabulary: Vocabulary
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Words (N,) and signatures (N, 2) of descriptors (N, D), each by itself."""
    if not len(vectors):
        return np.zeros(0, np.int32), np.zeros((0, 2), np.uint64)
    prepared = vocabulary.prepare(_check_real(vectors, descriptor))
    nearest = vocabulary.assign(prepared, 1)
    return nearest[:, 0], vocabulary.signatures(prepared, nearest)[:, 0]


def _indexed(
    name: str,
    features: Features,
    words: NDArray[np.int32],
    signatures: NDArray[np.uint64],
    state: Mapping[str, int],
) -> IndexedImage:
    return IndexedImage(
        name=name,
        size=features.image_size,
        words=words,
        signatures=signatures,
        geometry=pack(features.frames, features.image_size),
        file_bytes=state.get("bytes", 0),
        mtime_ns=state.get("mtime_ns", 0),
    )


def check_descriptor_kind(describe: Descriptor) -> None:
    """Raise if a descriptor makes bits, before any photo is described with it."""
    patch = np.zeros((1, 32, 32), np.float32)
    _check_real(describe(patch), describe.name)


def _check_real(descriptors: NDArray[Any], name: str) -> NDArray[Any]:
    """Descriptors (N, D), if they are vectors of real numbers: bits have no mean."""
    if descriptors.dtype == np.uint8:
        raise HardnetError(
            f"the descriptor {name} makes bits, which have no visual words: "
            "choose another, e.g. hardnet or rootsift"
        )
    return descriptors
