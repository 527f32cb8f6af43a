"""Visual words: the centres that descriptors are near to, and signatures that tell more.

A signature tells the descriptors of one word apart, in 128 bits. It is two uint64: bit b is bit
``b % 64`` of word ``b // 64``, the least significant first.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hardnet.errors import HardnetError
from hardnet.retrieval.assignment import (
    MORE_PROBES,
    PROBES,
    Assigner,
    CellAssigner,
    Cells,
    Rows,
    project,
)
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.store.segment import tensor_file
from hardnet.storage import as_path
from hardnet.threads import map_threads

BITS = 128
"""Bits of a signature, as in the HQE paper; two uint64."""

Signatures = NDArray[np.uint64]

SMALLEST_SIZE, PUBLISHED_SIZE, LARGEST_SIZE = 1 << 10, 1 << 16, 1 << 20

FORMAT = "hardnet-vocabulary-1"
_LEVELS = 65_536  # words whose thresholds are kept in single precision: 32 MB
_ROWS = 256  # of which signatures are made at once by a thread
_LARGEST = 1e3  # descriptors have unit length, so larger numbers are damaged
_ARRAYS = ("words", "mean", "projection", "thresholds")
_CELL_ARRAYS = ("centres", "starts")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words and what signatures need."""

    words: Rows  # (K, D) float32, in the space of ``prepare``
    mean: Rows  # (D,) float32, of the training descriptors
    projection: Rows  # (128, D) float32, orthogonal rows
    # (K, 128) float16, per word the medians of the projected training descriptors
    thresholds: NDArray[np.float16]
    descriptor: str  # whose descriptors these are words of
    provenance: dict[str, Any] = field(default_factory=dict)  # who made it, of what; JSON values
    cells: Cells | None = None  # of a large vocabulary, whose nearest words are then found by them

    def __len__(self) -> int:
        return len(self.words)

    @property
    def described_by(self) -> tuple[str, str]:
        """Name of the descriptor, and the digest of its weights; empty if that is not known."""
        return self.descriptor, str(self.provenance.get("weights") or "")

    @cached_property
    def digest(self) -> str:
        """16 hex digits that change with any number in it."""
        digest = hashlib.sha256(self.descriptor.encode())
        for name, values in _arrays(self).items():
            digest.update(f"{name} {values.shape} {values.dtype}".encode())
            digest.update(values.tobytes())
        return digest.hexdigest()[:16]

    def prepare(self, descriptors: NDArray[Any]) -> Rows:
        """Descriptors (N, D) minus the mean, of unit length; float32.

        The published way for SIFT takes the square root first, which signed values do not have.
        A descriptor that equals the mean, or has a NaN, becomes zero.
        """
        return prepare(descriptors, self.mean)

    def assign(self, prepared: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)) of prepared descriptors (N, D), nearest first."""
        return self._assigner(prepared, count)

    @cached_property
    def _assigner(self) -> Assigner | CellAssigner:
        if self.cells is None:
            return Assigner(self.words)
        # Vocabularies of earlier versions have four times as many cells, of fewer words each.
        finer = max(len(self.cells.centres) // round(2 * math.sqrt(len(self.words))), 1)
        return CellAssigner(self.words, self.cells, finer * PROBES, finer * MORE_PROBES)

    def signatures(self, prepared: Rows, words: NDArray[np.int32]) -> Signatures:
        """Signatures (N, M, 2) of prepared descriptors (N, D), each in M words (N, M)."""
        out = np.empty((*words.shape, 2), np.uint64)

        # Machine code has no half precision.
        compare = faster(sign) if self._levels.dtype == np.float32 else sign

        def make(start: int) -> None:
            part = slice(start, start + _ROWS)
            rows = np.ascontiguousarray(prepared[part], np.float32)
            along = faster(project)(rows, self._axes)
            out[part] = compare(along, self._levels, words[part])

        map_threads(make, range(0, len(prepared), _ROWS))
        return out

    @cached_property
    def _levels(self) -> NDArray[Any]:
        """The thresholds, as they compare quickly unless that takes too much memory."""
        return self.thresholds.astype(np.float32) if len(self) <= _LEVELS else self.thresholds

    @cached_property
    def _axes(self) -> Rows:
        return self.projection.T.astype(np.float32, order="C")


def pack_bits(bits: NDArray[np.bool_]) -> Signatures:
    """Signatures (..., 2) of bits (..., 128)."""
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


def sign(along: Rows, levels: NDArray[Any], words: NDArray[np.int32]) -> Signatures:
    """Signatures (N, M, 2) of projected rows (N, 128), each by the levels (K, 128) of M words."""
    return pack_bits(along[:, None] > levels[words])


def unpack_bits(signatures: Signatures) -> NDArray[np.bool_]:
    """Bits (..., 128) of signatures (..., 2)."""
    stored = np.ascontiguousarray(signatures, "<u8").view(np.uint8)
    return np.unpackbits(stored, axis=-1, bitorder="little").view(np.bool_)


def distances(a: Signatures, b: Signatures) -> NDArray[np.int64]:
    """How many bits differ: (...) for signatures (..., 2) that broadcast."""
    counts: NDArray[np.int64] = _bit_counts(np.bitwise_xor(a, b)).sum(axis=-1, dtype=np.int64)
    return counts


def _bit_counts_of_bytes(values: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return _OF_BYTE[np.ascontiguousarray(values).view(np.uint8)]


_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_OF_BYTE: NDArray[np.uint8] = np.unpackbits(_BYTES, axis=1).sum(axis=1, dtype=np.uint8)
_bit_counts: Any = getattr(np, "bitwise_count", _bit_counts_of_bytes)  # since numpy 2


def prepare(descriptors: NDArray[Any], mean: Rows) -> Rows:
    """See :meth:`Vocabulary.prepare`."""
    if descriptors.ndim != 2 or descriptors.shape[1] != len(mean):
        raise HardnetError(
            f"descriptors of shape {descriptors.shape} do not fit a vocabulary of {len(mean)} "
            "dimensions: describe with the descriptor it was made for"
        )
    rows: Rows = np.subtract(descriptors, mean, dtype=np.float32)
    length = np.sqrt(np.einsum("nd,nd->n", rows, rows))
    good = np.isfinite(length) & (length > 1e-6)
    rows[~good] = 0
    rows /= np.where(good, length, 1)[:, None]
    return rows


def _arrays(vocabulary: Vocabulary) -> dict[str, NDArray[Any]]:
    """All its numbers, by name."""
    arrays = {name: getattr(vocabulary, name) for name in _ARRAYS}
    if vocabulary.cells is not None:
        arrays |= {name: getattr(vocabulary.cells, name) for name in _CELL_ARRAYS}
    return {name: np.ascontiguousarray(values) for name, values in arrays.items()}


def file_content(vocabulary: Vocabulary) -> list[bytes | memoryview]:
    """The bytes of its file, in parts; always the same for the same vocabulary."""
    facts = {
        "format": FORMAT,
        "descriptor": vocabulary.descriptor,
        "provenance": json.dumps(vocabulary.provenance, sort_keys=True),
    }
    return tensor_file(_arrays(vocabulary), facts)


def save(vocabulary: Vocabulary, path: Path | str) -> None:
    """Write a vocabulary as safetensors."""
    with open(path, "wb") as file:
        file.writelines(file_content(vocabulary))


def load(path: Path | str) -> Vocabulary:
    """Read a vocabulary; HardnetError says which file, and what is wrong with it."""
    if not as_path(path).is_file():
        raise HardnetError(f"no vocabulary file {path}")
    try:
        with safe_open(str(path), framework="numpy") as stored:
            facts: dict[str, str] = stored.metadata() or {}
            if facts.get("format") != FORMAT:
                raise HardnetError(f"{path} is not a vocabulary of this version of hardnet")
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise HardnetError(f"{path} is not a readable vocabulary: {error}") from error
    if missing := [name for name in _ARRAYS if name not in arrays]:
        raise HardnetError(f"{path} has no {', '.join(missing)}; make it again")
    has_cells = all(name in arrays for name in _CELL_ARRAYS)
    try:
        descriptor, provenance = facts["descriptor"], json.loads(facts["provenance"])
    except (KeyError, ValueError) as error:
        raise HardnetError(f"{path} has damaged metadata: {error}; make it again") from error
    vocabulary = Vocabulary(
        **{name: arrays[name] for name in _ARRAYS},
        descriptor=descriptor,
        provenance=provenance,
        cells=Cells(**{name: arrays[name] for name in _CELL_ARRAYS}) if has_cells else None,
    )
    for name in _ARRAYS:  # NaN is not at most anything, either
        if not (np.abs(arrays[name].astype(np.float64)) <= _LARGEST).all():
            raise HardnetError(f"{path}: {name} has damaged numbers; make it again")
    count, dim = vocabulary.words.shape
    shapes = {"mean": (dim,), "projection": (BITS, dim), "thresholds": (count, BITS)}
    for name, shape in shapes.items():
        found = getattr(vocabulary, name).shape
        if found != shape:
            raise HardnetError(f"{path}: {name} is {found} instead of {shape}; make it again")
    return vocabulary


def size_for(features: int) -> int:
    """A sensible number of words for a collection of this many features: a power of two.

    A word needs some 16 descriptors to be learned from (8k words for the 118k features of 300 small
    photographs); the published number, 65,536, is reached with a million features and kept, for
    Hamming signatures do the rest. Past 2048 features per word the lists that a query reads become
    the cost, so a collection of more than 134 million features has more words, up to a million.
    """
    wanted = max(min(features / 16, PUBLISHED_SIZE), features / 2048, SMALLEST_SIZE)
    return 1 << min(round(math.log2(wanted)), LARGEST_SIZE.bit_length() - 1)
