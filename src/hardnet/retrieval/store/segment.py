"""A segment: some images of an index in one file that never changes, sorted by word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.retrieval.store.columns import REPAIR, map_columns
from hardnet.retrieval.store.names import HashedNames, decode_name
from hardnet.retrieval.store.segment_columns import (
    ImageTable,
    Postings,
    SegmentFacts,
    write_postings,
)

Number = TypeVar("Number", np.int32, np.int64)


@dataclass(frozen=True, eq=False)
class IndexedImage:
    """One image as an index stores it; N features.

    Attributes:
        name: what it is found by; any text, and any file name that Python can decode.
        size: width and height in pixels.
        words: (N,) int32, the word of each feature.
        signatures: (N, 2) uint64.
        geometry: (N, 3) uint16, see :mod:`~hardnet.retrieval.store.compact_frames`.
        file_bytes: size of the file it was read from.
        mtime_ns: when that file was last changed.
    """

    name: str
    size: tuple[int, int]
    words: NDArray[np.int32]
    signatures: NDArray[np.uint64]
    geometry: NDArray[np.uint16]
    file_bytes: int = 0
    mtime_ns: int = 0

    def __len__(self) -> int:
        return len(self.words)


def write_segment(path: Path, images: Sequence[IndexedImage], words: int) -> SegmentFacts:
    """Write images as a segment.

    Args:
        path: of the file.
        images: at most ``SEGMENT_IMAGES``; image i becomes number i.
        words: size of the vocabulary, K.

    Returns:
        What the manifest must know of it.
    """
    for image in images:
        _check(image)
    table = ImageTable(
        names=tuple(image.name for image in images),
        sizes=np.array([image.size for image in images], np.uint32).reshape(-1, 2),
        features=np.array([len(image) for image in images], np.int64),
        file_bytes=np.array([image.file_bytes for image in images], np.uint64),
        mtime_ns=np.array([image.mtime_ns for image in images], np.int64),
    )
    ids = np.repeat(np.arange(len(images), dtype=np.uint32), table.features)
    postings = Postings(
        words=np.concatenate([image.words for image in images] or [np.zeros(0, np.int32)]),
        image_ids=ids.astype(np.uint16),
        signatures=np.concatenate(
            [image.signatures for image in images] or [np.zeros((0, 2), np.uint64)]
        ),
        geometry=np.concatenate(
            [image.geometry for image in images] or [np.zeros((0, 3), np.uint16)]
        ),
    )
    wrong = np.flatnonzero((postings.words < 0) | (postings.words >= words))
    if len(wrong):
        name = images[int(ids[wrong[0]])].name
        raise ValueError(f"words of {name!r} are not below {words}")
    return write_postings(path, table, postings, words)


def _check(image: IndexedImage) -> None:
    """The arrays of an image fit each other."""
    for what, kind, rest in _COLUMNS:
        array: NDArray[Any] = getattr(image, what)
        if array.dtype != kind or array.shape != (len(image.words), *rest):
            raise ValueError(
                f"{what} of {image.name!r} are {array.dtype} {array.shape} instead of "
                f"{kind} {(len(image.words), *rest)}"
            )


_COLUMNS: tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...] = (
    ("words", np.dtype(np.int32), ()),
    ("signatures", np.dtype(np.uint64), (2,)),
    ("geometry", np.dtype(np.uint16), (3,)),
)


class Segment:
    """The columns of a segment, mapped into memory and read-only.

    Attributes:
        path: of the file.
        images: how many images it holds, removed ones too.
        features: how many postings.
        offsets: (K + 1,) uint32; the postings of word w are ``offsets[w]:offsets[w + 1]``.
        image_ids: (P,) uint16, ascending within a word.
        signatures: (P, 2) uint64.
        geometry: (P, 3) uint16.
        image_sizes: (I, 2) uint32, width and height.
        forward_offsets: (I + 1,) uint32; where the words of each image begin.
        forward_words: (P, 3) uint8, little endian, ascending within an image.
        file_bytes: (I,) uint64.
        mtime_ns: (I,) int64.
    """

    def __init__(self, path: Path, expected: int | None = None) -> None:
        self.path = path
        columns = map_columns(path, expected)
        try:
            self.offsets: NDArray[np.uint32] = columns["offsets"]
            self.image_ids: NDArray[np.uint16] = columns["image_ids"]
            self.signatures: NDArray[np.uint64] = columns["signatures"]
            self.geometry: NDArray[np.uint16] = columns["geometry"]
            self.image_sizes: NDArray[np.uint32] = columns["image_sizes"]
            self.forward_offsets: NDArray[np.uint32] = columns["forward_offsets"]
            self.forward_words: NDArray[np.uint8] = columns["forward_words"]
            self.file_bytes: NDArray[np.uint64] = columns["file_bytes"]
            self.mtime_ns: NDArray[np.int64] = columns["mtime_ns"]
            self._more_documents: NDArray[np.uint16] = columns["more_documents"]
            self._names: NDArray[np.uint8] = columns["names"]
            self._name_offsets: NDArray[np.uint32] = columns["name_offsets"]
            self._name_hashes: NDArray[np.uint64] = columns["name_hashes"]
            self._name_order: NDArray[np.uint16] = columns["name_order"]
        except KeyError as error:
            raise HardnetError(f"{path} is no segment: it has no {error}; {REPAIR}") from error
        self.images = len(self.image_sizes)
        self.features = len(self.image_ids)
        # Kernels do not look where they read: what they count by must fit.
        all_starts = self.offsets, self.forward_offsets, self._name_offsets
        columns_fit = (
            len(self.offsets) - 1 == len(self._more_documents)
            and self.offsets[-1] == self.forward_offsets[-1] == self.features
            and len(self.signatures) == len(self.geometry) == self.features
            and len(self.forward_words) == self.features
            and len(self.forward_offsets) - 1 == len(self.mtime_ns) == self.images
            and len(self._name_offsets) - 1 == len(self._name_order) == self.images
            and all((starts[1:] >= starts[:-1]).all() for starts in all_starts)
        )
        if not columns_fit:
            raise HardnetError(f"{path} is damaged: its columns do not fit; {REPAIR}")

    def __len__(self) -> int:
        return self.images

    @property
    def words(self) -> int:
        """Size of the vocabulary, K."""
        return len(self.offsets) - 1

    @cached_property
    def document_counts(self) -> NDArray[np.uint32]:
        """(K,) in how many images each word occurs, removed ones too."""
        seen = self.offsets[1:] > self.offsets[:-1]
        return self._more_documents.astype(np.uint32) + seen

    @property
    def feature_counts(self) -> NDArray[np.int64]:
        """(I,) how many features each image has."""
        offsets = self.forward_offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def words_of(self, image: int) -> NDArray[np.int32]:
        """(n,) the words of an image, ascending, with repeats."""
        rows = self.forward_words[self.forward_offsets[image] : self.forward_offsets[image + 1]]
        wide = np.zeros((len(rows), 4), np.uint8)
        wide[:, :3] = rows
        words: NDArray[np.int32] = wide.view("<i4")[:, 0].astype(np.int32, copy=False)
        return self._below(words, self.words)

    def postings_of(self, image: int) -> NDArray[np.int64]:
        """(n,) where the postings of an image lie, in the order of :meth:`words_of`."""
        from hardnet.retrieval.store.posting_kernels import find_postings

        found = find_postings(int(image), self.words_of(image), self.offsets, self.image_ids)
        return self._below(found, self.features)

    def _below(self, numbers: NDArray[Number], end: int) -> NDArray[Number]:
        """The numbers, if they are places in something that has ``end`` of them."""
        if len(numbers) and numbers.max() >= end:
            raise HardnetError(f"{self.path} is damaged: it points outside itself; {REPAIR}")
        return numbers

    def size(self, image: int) -> tuple[int, int]:
        """Width and height of an image."""
        width, height = self.image_sizes[image].tolist()
        return width, height

    def name(self, image: int) -> str:
        """The name of an image."""
        return decode_name(self._name_bytes(image))

    def names(self) -> list[str]:
        """The names of all images."""
        stored, edges = self._names.tobytes(), self._name_offsets.tolist()
        return [decode_name(stored[start:end]) for start, end in pairwise(edges)]

    def find(self, name: str) -> int | None:
        """The image of that name, removed or not."""
        _, images = self.find_many(HashedNames([name]))
        return int(images[0]) if len(images) else None

    def find_many(self, names: HashedNames) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) which of the names are here, and (n,) the images of those, removed or not."""
        first = self._name_hashes.searchsorted(names.hashes)
        last = self._name_hashes.searchsorted(names.hashes, "right")
        found = [
            (row, image)
            for row in np.flatnonzero(last > first).tolist()
            for image in self._name_order[first[row] : last[row]].tolist()
            if self._name_bytes(image) == names.encoded[row]
        ]
        rows, images = np.array(found, np.int64).reshape(-1, 2).T
        return rows, images

    def _name_bytes(self, image: int) -> bytes:
        start, end = self._name_offsets[image : image + 2].tolist()
        return self._names[start:end].tobytes()

    def table(self, chosen: NDArray[np.int64]) -> ImageTable:
        """What is known of some images, to write them again."""
        return ImageTable(
            names=tuple(map(self.names().__getitem__, chosen.tolist())),
            sizes=self.image_sizes[chosen],
            features=self.feature_counts[chosen],
            file_bytes=self.file_bytes[chosen],
            mtime_ns=self.mtime_ns[chosen],
        )
