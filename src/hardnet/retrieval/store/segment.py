"""A segment: some images of an index in one file that never changes, sorted by word.

The file holds arrays in the safetensors format; equal contents are equal bytes. A frame takes six
bytes, precise enough to verify a hypothesis. It is A = s S R: a half-size s, a symmetric stretch S
of area 1 and a rotation R (the polar decomposition); see :func:`pack_frames`.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.errors import HardnetError
from hardnet.frames import Frames, check_frames, rotation
from hardnet.storage import FileFacts, write_file

REPAIR = "bring the index folder back from a copy, or build the index again"
"""The fix for any damage."""

_DTYPES = dict(U8="u1", U16="<u2", U32="<u4", U64="<u8", I64="<i8", F16="<f2", F32="<f4")
_CODES = {np.dtype(kind): code for code, kind in _DTYPES.items()}

Column = NDArray[Any]
Alive = NDArray[np.bool_] | None
"""(I,) which images of a segment are in the index; None for all."""


def tensor_file(
    arrays: Mapping[str, Column], facts: Mapping[str, str] | None = None
) -> list[bytes | memoryview]:
    """The bytes of a safetensors file of arrays and facts about them, in parts, in order."""
    little = {
        name: np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
        # The widest numbers come first, so that all are aligned.
        for name, array in sorted(arrays.items(), key=lambda item: -item[1].dtype.itemsize)
    }
    header: dict[str, Any] = {"__metadata__": dict(facts)} if facts else {}
    end = 0
    for name, array in little.items():
        start, end = end, end + array.nbytes
        kind = _CODES[array.dtype]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    views = [array.reshape(-1).view(np.uint8).data for array in little.values() if array.size]
    return [struct.pack("<Q", len(text)), text, *views]


def map_columns(path: Path, expected: int | None = None) -> dict[str, Column]:
    """The arrays of a file, read-only and mapped: nothing but the header is read.

    They stay readable while anybody holds one of them, even if the file is deleted. ``expected`` is
    its size in bytes, if known. A file that is not there raises FileNotFoundError.
    """
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        fix = "check the disk and your rights to the file"
        if error.errno == errno.EMFILE:
            fix = "raise the number of files you may open (ulimit -n)"
        raise HardnetError(f"{path} cannot be read: {error.strerror}; {fix}") from error
    except ValueError as error:
        raise HardnetError(f"{path} is empty; {REPAIR}") from error
    if expected is not None and len(content) != expected:
        raise HardnetError(f"{path} has {len(content)} bytes instead of {expected}; {REPAIR}")
    columns: dict[str, Column] = {}
    try:
        (length,) = struct.unpack_from("<Q", content)
        for name, facts in json.loads(content[8 : 8 + length]).items():
            shape, start = tuple(facts["shape"]), 8 + length + facts["data_offsets"][0]
            count = int(np.prod(shape, dtype=np.int64))
            values = np.frombuffer(content, _DTYPES[facts["dtype"]], count, start)
            columns[name] = values.reshape(shape)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, struct.error) as error:
        raise HardnetError(f"{path} is damaged: {error}; {REPAIR}") from error
    return columns


SEGMENT_IMAGES = 65_536
"""At most: a posting names its image in two bytes."""

MAX_WORDS = 1 << 24
"""An image lists its words in three bytes each."""

_MAX_FEATURES = (1 << 32) - 1

_PER_FEATURE = {
    "words": ("int32", ()),
    "signatures": ("uint64", (2,)),
    "geometry": ("uint16", (3,)),
}


@dataclass(frozen=True, eq=False)
class IndexedImage:
    """One image as an index stores it; N features."""

    name: str  # any text, and any file name that Python can decode
    size: tuple[int, int]  # width and height in pixels
    words: NDArray[np.int32]  # (N,) int32, the word of each feature
    signatures: NDArray[np.uint64]  # (N, 2) uint64
    geometry: NDArray[np.uint16]  # (N, 3) uint16, see :func:`pack_frames`
    file_bytes: int = 0  # size of the file it was read from
    mtime_ns: int = 0  # when that file was last changed

    def __len__(self) -> int:
        return len(self.words)


class HashedNames:
    """Names of images: any text, stored as UTF-8 and found by (N,) hashes."""

    def __init__(self, names: Sequence[str]) -> None:
        self.encoded = [encode_name(name) for name in names]
        digests = b"".join(blake2b(name, digest_size=8).digest() for name in self.encoded)
        self.hashes: NDArray[np.uint64] = np.frombuffer(digests, "<u8").astype(np.uint64)


def encode_name(name: str) -> bytes:
    """A name as UTF-8; the odd bytes of a file name, which Python escapes, stay what they are."""
    try:
        return name.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise HardnetError(
            f"the name {name!r} has half a character at position {error.start}: rename the image"
        ) from error


def write_segment(path: Path, images: Sequence[IndexedImage], words: int) -> FileFacts:
    """Write images, at most ``SEGMENT_IMAGES``, as a segment for a vocabulary of K words."""
    columns: dict[str, Column] = {}
    for what, (kind, rest) in _PER_FEATURE.items():
        parts = [np.zeros((0, *rest), kind), *(getattr(image, what) for image in images)]
        columns[what] = np.concatenate(parts, dtype=kind, casting="no")
    counts = np.array([len(image) for image in images], np.int64)
    ids = np.repeat(np.arange(len(images), dtype=np.uint32), counts)
    wrong = np.flatnonzero((columns["words"] < 0) | (columns["words"] >= words))
    if len(wrong):
        raise ValueError(f"words of {images[int(ids[wrong[0]])].name!r} are not below {words}")
    columns |= {
        "image_ids": ids.astype(np.uint16),
        "features": counts,
        "image_sizes": np.array([image.size for image in images], np.uint32).reshape(-1, 2),
        "file_bytes": np.array([image.file_bytes for image in images], np.uint64),
        "mtime_ns": np.array([image.mtime_ns for image in images], np.int64),
    }
    return _write(path, [image.name for image in images], columns, words)


def merge_segments(path: Path, parts: Sequence[tuple[Segment, Alive]], words: int) -> FileFacts:
    """Write the living images of some segments as one segment, in their order."""
    names: list[str] = []
    contents: list[dict[str, Column]] = []
    for segment, alive in parts:
        more, columns = segment.contents(alive, len(names))
        names += more
        contents.append(columns)
    joined = {name: np.concatenate([part[name] for part in contents]) for name in contents[0]}
    return _write(path, names, joined, words)


def _write(
    path: Path, names: Sequence[str], columns: Mapping[str, Column], words: int
) -> FileFacts:
    """Sort features by word and write all that a segment holds.

    ``columns`` has one row per image or per feature; features of one word are in the order of
    images.
    """
    images, features = len(names), len(columns["words"])
    if images > SEGMENT_IMAGES or features > _MAX_FEATURES or words > MAX_WORDS:
        raise ValueError(
            f"a segment of {images} images, {features} features and {words} words: the limits "
            f"are {SEGMENT_IMAGES}, {_MAX_FEATURES} and {MAX_WORDS}"
        )
    by_word = np.argsort(columns["words"], kind="stable")
    sorted_words, image_ids = columns["words"][by_word], columns["image_ids"][by_word]
    first = np.diff(sorted_words, prepend=-1) > 0  # a word begins, or its next image
    first[1:] |= image_ids[1:] != image_ids[:-1]
    documents = np.bincount(sorted_words[first], minlength=words)
    by_image = np.argsort(image_ids, kind="stable")
    four_bytes = sorted_words[by_image].astype("<u4").view(np.uint8).reshape(-1, 4)
    hashed = HashedNames(names)
    by_hash = np.argsort(hashed.hashes, kind="stable")
    stored = {
        "offsets": _starts(np.bincount(sorted_words, minlength=words)),
        "image_ids": image_ids,
        "signatures": columns["signatures"][by_word],
        "geometry": columns["geometry"][by_word],
        # One less than the images of a word that has any: up to 65,536 in two bytes.
        "more_documents": (documents - (documents > 0)).astype(np.uint16),
        "forward_offsets": _starts(columns["features"]),
        "forward_words": four_bytes[:, :3],
        **{name: columns[name] for name in ("image_sizes", "file_bytes", "mtime_ns")},
        "names": np.frombuffer(b"".join(hashed.encoded), np.uint8),
        "name_offsets": _starts([len(name) for name in hashed.encoded]),
        "name_hashes": hashed.hashes[by_hash],
        "name_order": by_hash.astype(np.uint16),
    }
    return write_file(path, tensor_file(stored))


def _starts(counts: ArrayLike) -> NDArray[np.uint32]:
    return np.append(0, np.cumsum(counts)).astype(np.uint32)


class Segment:
    """I images, removed ones included, and P postings: read-only columns mapped into memory."""

    offsets: NDArray[np.uint32]  # (K + 1,) the postings of word w are offsets[w]:offsets[w + 1]
    image_ids: NDArray[np.uint16]  # (P,) ascending within a word
    signatures: NDArray[np.uint64]  # (P, 2)
    geometry: NDArray[np.uint16]  # (P, 3)
    more_documents: NDArray[np.uint16]  # (K,) one less than the images of each word that has any
    image_sizes: NDArray[np.uint32]  # (I, 2) width and height
    forward_offsets: NDArray[np.uint32]  # (I + 1,) where the words of each image begin
    forward_words: NDArray[np.uint8]  # (P, 3) little endian, ascending within an image
    file_bytes: NDArray[np.uint64]  # (I,)
    mtime_ns: NDArray[np.int64]  # (I,)
    # All as bytes, (I + 1,) where each begins, (I,) their hashes in order, and whose they are.
    name_bytes: NDArray[np.uint8]
    name_offsets: NDArray[np.uint32]
    name_hashes: NDArray[np.uint64]
    name_order: NDArray[np.uint16]

    def __init__(self, path: Path, expected: int | None = None) -> None:
        self.path = path
        self._opened = os.stat(path)
        columns = map_columns(path, expected)
        for attribute in type(self).__annotations__:
            name = "names" if attribute == "name_bytes" else attribute  # ``names`` is a method
            if name not in columns:
                raise HardnetError(f"{path} is no segment: it has no {name!r}; {REPAIR}")
            setattr(self, attribute, columns[name])
        self.images, self.features = len(self.image_sizes), len(self.image_ids)
        self.words = len(self.offsets) - 1  # size of the vocabulary, K
        # Kernels do not check where they read, so the columns must fit.
        all_starts = self.offsets, self.forward_offsets, self.name_offsets
        columns_fit = (
            self.words == len(self.more_documents)
            and self.offsets[-1] == self.forward_offsets[-1] == self.features
            and len(self.signatures) == len(self.geometry) == self.features
            and len(self.forward_words) == self.features
            and len(self.forward_offsets) - 1 == len(self.mtime_ns) == self.images
            and len(self.name_offsets) - 1 == len(self.name_order) == self.images
            and all((starts[1:] >= starts[:-1]).all() for starts in all_starts)
        )
        if not columns_fit:
            raise HardnetError(f"{path} is damaged: its columns do not fit; {REPAIR}")

    def __len__(self) -> int:
        return self.images

    def require_whole(self) -> None:
        """Raise if the file was cut short: reading a missing part of a mapping ends the process.

        A file that was deleted stays mapped, and one that took its name is another one.
        """
        try:
            now = os.stat(self.path)
        except OSError:
            return
        if now.st_ino == self._opened.st_ino and now.st_size < self._opened.st_size:
            raise HardnetError(
                f"{self.path} was cut short while it was open: {now.st_size} bytes instead of "
                f"{self._opened.st_size}; {REPAIR}"
            )

    @cached_property
    def document_counts(self) -> NDArray[np.uint32]:
        """(K,) in how many images each word occurs, removed ones included."""
        seen = self.offsets[1:] > self.offsets[:-1]
        return self.more_documents.astype(np.uint32) + seen

    @property
    def feature_counts(self) -> NDArray[np.int64]:
        """(I,) how many features each image has."""
        offsets = self.forward_offsets.astype(np.int64)
        return offsets[1:] - offsets[:-1]

    def words_of(self, image: int) -> NDArray[np.int32]:
        """(n,) the words of an image, ascending, with repeats."""
        rows = self.forward_words[self.forward_offsets[image] : self.forward_offsets[image + 1]]
        return self._below(read_words(rows), self.words)

    def postings_of(self, image: int) -> NDArray[np.int64]:
        """(n,) where the postings of an image lie, in the order of :meth:`words_of`."""
        found = find_postings(self, self.words_of(image), np.full(1, image))
        return self._below(found, self.features)

    def _below(self, numbers: NDArray[Any], end: int) -> NDArray[Any]:
        """The numbers, if they are places in something that has ``end`` of them."""
        if len(numbers) and numbers.max() >= end:
            raise HardnetError(f"{self.path} is damaged: it points outside itself; {REPAIR}")
        return numbers

    def size(self, image: int) -> tuple[int, int]:
        width, height = self.image_sizes[image].tolist()
        return width, height

    def name(self, image: int) -> str:
        return self._stored_name(image).decode("utf-8", "surrogateescape")

    def names(self) -> list[str]:
        stored, edges = self.name_bytes.tobytes(), self.name_offsets.tolist()
        parts = (stored[start:end] for start, end in pairwise(edges))
        return [part.decode("utf-8", "surrogateescape") for part in parts]

    def find_many(self, names: HashedNames) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(n,) which of the names are here, and (n,) the images of those, removed or not."""
        first = self.name_hashes.searchsorted(names.hashes)
        last = self.name_hashes.searchsorted(names.hashes, "right")
        found = [
            (row, image)
            for row in np.flatnonzero(last > first).tolist()
            for image in self._below(self.name_order[first[row] : last[row]], self.images).tolist()
            if self._stored_name(image) == names.encoded[row]
        ]
        rows, images = np.array(found, np.int64).reshape(-1, 2).T
        return rows, images

    def _stored_name(self, image: int) -> bytes:
        start, end = self.name_offsets[image : image + 2].tolist()
        return self.name_bytes[start:end].tobytes()

    def contents(self, alive: Alive, first: int) -> tuple[list[str], dict[str, Column]]:
        """Names and columns of the living images, numbered from ``first`` on, to write again."""
        keep = np.ones(self.images, bool) if alive is None else alive
        self._below(self.image_ids, self.images)
        chosen, postings = np.flatnonzero(keep), np.flatnonzero(keep[self.image_ids])
        numbers = np.cumsum(keep) - 1 + first
        counts = self.offsets[1:] - self.offsets[:-1]
        names = self.names()
        return [names[image] for image in chosen.tolist()], {
            "words": np.repeat(np.arange(self.words, dtype=np.int32), counts)[postings],
            "image_ids": numbers[self.image_ids[postings]].astype(np.uint16),
            "signatures": self.signatures[postings],
            "geometry": self.geometry[postings],
            "features": self.feature_counts[chosen],
            "image_sizes": self.image_sizes[chosen],
            "file_bytes": self.file_bytes[chosen],
            "mtime_ns": self.mtime_ns[chosen],
        }


def read_words(rows: NDArray[np.uint8]) -> NDArray[np.int32]:
    """(n,) the words of rows (n, 3) of three bytes, the lowest first."""
    wide = np.zeros((len(rows), 4), np.uint8)
    wide[:, :3] = rows
    words: NDArray[np.int32] = wide.view("<i4")[:, 0].astype(np.int32, copy=False)
    return words


def counting(starts: ArrayLike, counts: ArrayLike) -> NDArray[np.int64]:
    """``counts[0]`` numbers from ``starts[0]`` on, then those of the next start, and so on."""
    starts, counts = np.asarray(starts, np.int64), np.asarray(counts, np.int64)
    before = np.cumsum(counts) - counts
    return np.repeat(starts - before, counts) + np.arange(counts.sum())


def lower_bounds(
    image_ids: NDArray[np.uint16], begins: ArrayLike, ends: ArrayLike, images: ArrayLike
) -> NDArray[np.int64]:
    """(n,) the first of the postings ``begins`` to ``ends`` of a word whose image is not below."""
    low, high = np.array(begins, np.int64), np.array(ends, np.int64)
    images = np.broadcast_to(images, low.shape)
    left = np.flatnonzero(low < high)
    while len(left):
        middle = (low[left] + high[left]) // 2
        below = image_ids[middle] < images[left]
        low[left[below]] = middle[below] + 1
        high[left[~below]] = middle[~below]
        left = left[low[left] < high[left]]
    return low


def find_postings(
    segment: Segment, words: NDArray[np.int32], images: NDArray[Any]
) -> NDArray[np.int64]:
    """(n,) where the postings of words (n,) of images (n,) or (1,) lie.

    Both ascend as in the lists of the images: a word that an image has twice comes twice.
    """
    images = np.broadcast_to(images, words.shape)
    new = np.ones(len(words), bool)
    new[1:] = (words[1:] != words[:-1]) | (images[1:] != images[:-1])
    first = np.flatnonzero(new)
    begins, ends = segment.offsets[words[first]], segment.offsets[words[first] + 1]
    found = lower_bounds(segment.image_ids, begins, ends, images[first])
    return counting(found, np.diff(first, append=len(words)))


PLACES, SIZES, ANGLES, STRETCHES, DIRECTIONS = 4096, 256, 256, 16, 16
"""How many places along a side, half-sizes, angles, ratios of axes and directions can be told."""
SMALLEST, OCTAVES = -13.0, 14.0
"""Half-sizes: log2 of the smallest relative to the longer side, and how many octaves follow."""
LONGEST = 8.0
"""The largest ratio of axes; ratios are equal steps in the logarithm."""


def pack_frames(frames: Frames, image_size: tuple[int, int]) -> NDArray[np.uint16]:
    """(N, 3) frames (N, 2, 3) as six bytes each.

        uint16   upper bits             lower bits
        0        x, 12 bits             upper half of the size code
        1        y, 12 bits             lower half of the size code
        2        angle of R, 8 bits     ratio of the axes of S, 4 bits; direction of the long one, 4

    Places and sizes are relative to the longer side of the image. Values outside their range become
    the nearest one inside. A mirrored frame (negative determinant) loses its mirroring: the y axis
    of its patch is reversed, so that it covers the same pixels and its x axis points the same way.
    """
    frames = check_frames(frames)
    longer = float(max(image_size))
    place = np.floor((frames[:, :, 2].astype(np.float64) + 0.5) * (PLACES / longer))
    place = np.clip(place, 0, PLACES - 1).astype(np.uint16)

    a, b, c, d = frames[:, :, :2].astype(np.float64).reshape(-1, 4).T
    mirrored = a * d < b * c
    b, d = np.where(mirrored, -b, b), np.where(mirrored, -d, d)
    # Half the sum and the difference of the two axes, each with its angle: A in closed form.
    total, spread = np.hypot(a + d, c - b), np.hypot(a - d, c + b)
    angle = np.arctan2(c - b, a + d)
    direction = (np.arctan2(c + b, a - d) + angle) / 2
    half = np.sqrt(np.maximum(total**2 - spread**2, 0) / 4) / longer
    octaves = np.log2(np.maximum(half, 2.0 ** (SMALLEST - 1))) - SMALLEST
    size = np.clip(np.floor(octaves * (SIZES / OCTAVES)), 0, SIZES - 1).astype(np.uint16)

    flat = (total + spread) / np.maximum(total - spread, 1e-9 * (total + spread) + 1e-30)
    steps = np.log(np.maximum(flat, 1)) * ((STRETCHES - 1) / np.log(LONGEST))
    stretch = np.clip(np.rint(steps), 0, STRETCHES - 1).astype(np.uint16)
    turn = np.rint(angle * (ANGLES / (2 * np.pi))).astype(np.int64) % ANGLES
    axis = np.rint(direction * (DIRECTIONS / np.pi)).astype(np.int64) % DIRECTIONS
    axis[stretch == 0] = 0  # a circle has no direction
    shape = turn.astype(np.uint16) << 8 | stretch << 4 | axis.astype(np.uint16)
    return np.stack([place[:, 0] << 4 | size >> 4, place[:, 1] << 4 | size & 15, shape], 1)


def unpack_frames(packed: NDArray[np.uint16], image_size: ArrayLike) -> Frames:
    """(N, 2, 3) of packed frames (N, 3); the size of the image, or (N, 2) of each frame's image."""
    half_sizes, shapes = _tables()
    width, height = np.moveaxis(np.asarray(image_size, np.float32), -1, 0)
    longer = np.maximum(width, height)
    half = half_sizes[(packed[:, 0] & 15) << 4 | packed[:, 1] & 15] * longer
    out = np.empty((len(packed), 2, 3), np.float32)
    np.multiply(shapes.take(packed[:, 2], axis=0), half[:, None, None], out=out[:, :, :2])
    step = np.broadcast_to(longer / np.float32(PLACES), len(packed))
    out[:, :, 2] = ((packed[:, :2] >> 4) + np.float32(0.5)) * step[:, None] - np.float32(0.5)
    return out


@cache
def _tables() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(256,) the half-size of each code; (65536, 2, 2) the matrix S R of each third number."""
    half_sizes = np.exp2(SMALLEST + (np.arange(SIZES) + 0.5) * (OCTAVES / SIZES))
    turns = rotation(np.arange(ANGLES) * (2 * np.pi / ANGLES))
    axes = rotation(np.arange(DIRECTIONS) * (np.pi / DIRECTIONS))
    ratio = LONGEST ** (np.arange(STRETCHES) / (STRETCHES - 1))
    diagonal = np.zeros((STRETCHES, 1, 2, 2))
    diagonal[:, 0, 0, 0], diagonal[:, 0, 1, 1] = np.sqrt(ratio), 1 / np.sqrt(ratio)
    stretched = (axes @ diagonal @ axes.swapaxes(1, 2)).reshape(-1, 2, 2)
    shapes = (stretched[None] @ turns[:, None]).reshape(-1, 2, 2)
    return half_sizes.astype(np.float32), shapes.astype(np.float32)
