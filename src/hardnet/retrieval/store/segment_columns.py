"""From features to the columns of a segment."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.retrieval.store.columns import write_columns
from hardnet.retrieval.store.names import HashedNames
from hardnet.storage import FileFacts

SEGMENT_IMAGES = 65_536
"""So many images at most, since a posting says its image in two bytes."""

MAX_WORDS = 1 << 24
"""An image lists its words in three bytes each."""

_MAX_FEATURES = (1 << 32) - 1


@dataclass(frozen=True)
class SegmentFacts:
    """What the manifest knows of a segment."""

    images: int
    features: int
    file: FileFacts


@dataclass(frozen=True, eq=False)
class ImageTable:
    """What a segment knows of its I images.

    Attributes:
        names: I of them, all different.
        sizes: (I, 2) uint32, width and height.
        features: (I,) int64, how many each has.
        file_bytes: (I,) uint64.
        mtime_ns: (I,) int64.
    """

    names: tuple[str, ...]
    sizes: NDArray[np.uint32]
    features: NDArray[np.int64]
    file_bytes: NDArray[np.uint64]
    mtime_ns: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Postings:
    """P features, those of one word in the order of their images.

    Attributes:
        words: (P,) int32.
        image_ids: (P,) uint16.
        signatures: (P, 2) uint64.
        geometry: (P, 3) uint16.
    """

    words: NDArray[np.int32]
    image_ids: NDArray[np.uint16]
    signatures: NDArray[np.uint64]
    geometry: NDArray[np.uint16]


def write_postings(path: Path, table: ImageTable, postings: Postings, words: int) -> SegmentFacts:
    """Sort postings by word and write them with all that a segment holds."""
    from hardnet.retrieval.store.posting_kernels import list_words, sort_postings

    images, features = len(table.names), len(postings.words)
    if images > SEGMENT_IMAGES or features > _MAX_FEATURES or words > MAX_WORDS:
        raise ValueError(
            f"a segment of {images} images, {features} features and {words} words: the limits "
            f"are {SEGMENT_IMAGES}, {_MAX_FEATURES} and {MAX_WORDS}"
        )
    offsets = np.zeros(words + 1, np.uint32)
    image_ids, signatures, geometry = sort_postings(
        postings.words, postings.image_ids, postings.signatures, postings.geometry, offsets
    )
    forward_offsets = np.concatenate([[0], np.cumsum(table.features)]).astype(np.uint32)
    forward_words, documents = list_words(offsets, image_ids, forward_offsets)
    names = HashedNames(table.names)
    lengths = np.array([len(name) for name in names.encoded], np.int64)
    by_hash = np.argsort(names.hashes, kind="stable")
    facts = write_columns(
        path,
        {
            "offsets": offsets,
            "image_ids": image_ids,
            "signatures": signatures,
            "geometry": geometry,
            # One less than the images of a word that has any: up to 65,536 in two bytes.
            "more_documents": (documents - (documents > 0)).astype(np.uint16),
            "forward_offsets": forward_offsets,
            "forward_words": forward_words,
            "image_sizes": table.sizes,
            "file_bytes": table.file_bytes,
            "mtime_ns": table.mtime_ns,
            "names": np.frombuffer(b"".join(names.encoded), np.uint8),
            "name_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32),
            "name_hashes": names.hashes[by_hash],
            "name_order": by_hash.astype(np.uint16),
        },
    )
    return SegmentFacts(images, features, facts)
