"""From features to the columns of a segment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.columns import write_columns
from hardnet.retrieval.durable import FileFacts

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
    from hardnet.retrieval.posting_kernels import list_words, sort_by_word

    images, features = len(table.names), len(postings.words)
    if images > SEGMENT_IMAGES or features > _MAX_FEATURES or words > MAX_WORDS:
        raise ValueError(
            f"a segment of {images} images, {features} features and {words} words: the limits "
            f"are {SEGMENT_IMAGES}, {_MAX_FEATURES} and {MAX_WORDS}"
        )
    order, offsets = sort_by_word(postings.words, words)
    image_ids = postings.image_ids[order]
    forward_offsets = np.concatenate([[0], np.cumsum(table.features)]).astype(np.uint32)
    forward_words, documents = list_words(offsets, image_ids, forward_offsets)
    names = [encode_name(name) for name in table.names]
    lengths = np.array([len(name) for name in names], np.int64)
    hashes = hash_names(names)
    by_hash = np.argsort(hashes, kind="stable")
    facts = write_columns(
        path,
        {
            "offsets": offsets,
            "image_ids": image_ids,
            "signatures": postings.signatures[order],
            "geometry": postings.geometry[order],
            # One less than the images of a word that has any: up to 65,536 in two bytes.
            "more_documents": (documents - (documents > 0)).astype(np.uint16),
            "forward_offsets": forward_offsets,
            "forward_words": forward_words,
            "image_sizes": table.sizes,
            "file_bytes": table.file_bytes,
            "mtime_ns": table.mtime_ns,
            "names": np.frombuffer(b"".join(names), np.uint8),
            "name_offsets": np.concatenate([[0], np.cumsum(lengths)]).astype(np.uint32),
            "name_hashes": hashes[by_hash],
            "name_order": by_hash.astype(np.uint16),
        },
    )
    return SegmentFacts(images, features, facts)


def encode_name(name: str) -> bytes:
    """A name as UTF-8; the odd bytes of a file name, which Python escapes, stay what they are."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise HardnetError(
            f"the name {name!r} has half a character at position {error.start}: rename the image"
        ) from error


def hash_names(names: Sequence[bytes]) -> NDArray[np.uint64]:
    """(N,) uint64, the same on every machine."""
    digests = b"".join(blake2b(name, digest_size=8).digest() for name in names)
    return np.frombuffer(digests, "<u8").astype(np.uint64, copy=False)
