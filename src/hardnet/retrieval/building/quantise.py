"""The features of a photo as an index keeps them: words, signatures, compact frames."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import Descriptor
from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.retrieval.store.compact_frames import pack
from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.words.vocabulary import Vocabulary


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
        state: ``bytes`` and ``mtime_ns`` of its file (``interop.entry.state_of``), to notice later
            that it was changed.
    """
    state = state or {}
    if not len(features):
        words, signatures = np.zeros(0, np.int32), np.zeros((0, 2), np.uint64)
    else:
        prepared = vocabulary.prepare(_check_real(features.descriptors, features.descriptor))
        nearest = vocabulary.assign(prepared, 1)
        words, signatures = nearest[:, 0], vocabulary.signatures(prepared, nearest)[:, 0]
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
