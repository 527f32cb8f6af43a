"""Visual words: which words descriptors are nearest to, and signatures that tell more.

A signature tells the descriptors of one word apart in 128 bits. It is two uint64: bit b is bit
``b % 64`` of number ``b // 64``, the least significant first.

Nearest words are found by products of 8-bit integers; exact distances are computed only for the
best few. The words of a large vocabulary are divided into cells, and only the cells near a
descriptor are searched. ``benchmarks/assign_words.py`` compares speed and recall with faiss.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from hardnet.errors import HardnetError
from hardnet.image_files import as_path
from hardnet.matching.integers import IntegerProduct
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.store.segment import tensor_file
from hardnet.threads import map_threads

Rows = NDArray[np.float32]
Signatures = NDArray[np.uint64]
Pairs = tuple[NDArray[np.intp], NDArray[np.intp]]

BITS = 128
"""Bits of a signature, as in the HQE paper; two uint64."""

FORMAT = "hardnet-vocabulary-1"
_LEVELS = 65_536  # words whose thresholds are kept in single precision: 32 MB
_ROWS = 256  # a thread makes the signatures of this many at once
_LARGEST = 1e3  # descriptors have unit length, so larger numbers are damaged
_ARRAYS = ("words", "mean", "projection", "thresholds")
_CELL_ARRAYS = ("centres", "starts")


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of K words; the words of a cell are next to each other."""

    centres: Rows  # (C, D) float32
    starts: NDArray[np.int64]  # (C + 1,) int64, where the words of each cell begin


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Words and what signatures need."""

    words: Rows  # (K, D) float32, in the space of ``prepare``
    mean: Rows  # (D,) float32, of the training descriptors
    projection: Rows  # (128, D) float32, orthogonal rows
    # (K, 128) float16, per word the medians of the projected training descriptors
    thresholds: NDArray[np.float16]
    descriptor: str  # whose descriptors these are words of
    provenance: dict[str, Any] = field(default_factory=dict)  # its origin, as JSON values
    cells: Cells | None = None  # of a large vocabulary

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
        """See :func:`prepare`."""
        return prepare(descriptors, self.mean)

    def assign(self, prepared: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)) of prepared descriptors (N, D), nearest first."""
        return self._assigner(prepared, count)

    def signatures(self, prepared: Rows, words: NDArray[np.int32]) -> Signatures:
        """Signatures (N, M, 2) of prepared descriptors (N, D), each in M words (N, M)."""
        out = np.empty((*words.shape, 2), np.uint64)
        # Compiled code has no half precision.
        compare = faster(sign) if self._levels.dtype == np.float32 else sign

        def make(start: int) -> None:
            part = slice(start, start + _ROWS)
            rows = np.ascontiguousarray(prepared[part], np.float32)
            out[part] = compare(faster(project)(rows, self._axes), self._levels, words[part])

        map_threads(make, range(0, len(prepared), _ROWS))
        return out

    @cached_property
    def _assigner(self) -> Assigner:
        return Assigner(self.words) if self.cells is None else CellAssigner(self.words, self.cells)

    @cached_property
    def _levels(self) -> NDArray[Any]:
        """The thresholds in single precision, which is quicker, unless they take much memory."""
        return self.thresholds.astype(np.float32) if len(self) <= _LEVELS else self.thresholds

    @cached_property
    def _axes(self) -> Rows:
        return self.projection.T.astype(np.float32, order="C")


def prepare(descriptors: NDArray[Any], mean: Rows) -> Rows:
    """Descriptors (N, D) minus the mean, of unit length; float32.

    The published method for SIFT takes the square root first, which signed values do not have. A
    descriptor that equals the mean, or has a NaN, becomes zero.
    """
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


def pack_bits(bits: NDArray[np.bool_]) -> Signatures:
    """Signatures (..., 2) of bits (..., 128)."""
    packed = np.packbits(bits, axis=-1, bitorder="little")
    return np.ascontiguousarray(packed).view("<u8").astype(np.uint64, copy=False)


def unpack_bits(signatures: Signatures) -> NDArray[np.bool_]:
    """Bits (..., 128) of signatures (..., 2)."""
    stored = np.ascontiguousarray(signatures, "<u8").view(np.uint8)
    return np.unpackbits(stored, axis=-1, bitorder="little").view(np.bool_)


def distances(a: Signatures, b: Signatures) -> NDArray[np.int64]:
    """How many bits differ: (...) for signatures (..., 2) that broadcast."""
    different = np.bitwise_xor(a, b)
    bits: Any = np.bitwise_count(different) if _HAS_COUNT else unpack_bits(different)
    counts: NDArray[np.int64] = bits.sum(axis=-1, dtype=np.int64)
    return counts


_HAS_COUNT = hasattr(np, "bitwise_count")  # since numpy 2


def sign(along: Rows, levels: NDArray[Any], words: NDArray[np.int32]) -> Signatures:
    """Signatures (N, M, 2) of projected rows (N, 128), each by the levels (K, 128) of M words."""
    return pack_bits(along[:, None] > levels[words])


def project(rows: Rows, axes: Rows) -> Rows:
    """(N, d) rows (N, D) along axes (D, d).

    Each row is summed by itself, in one order, so it does not depend on the others. A product by
    BLAS would, and its threads would occupy a core that the search for words needs.
    """
    sums: Rows = np.einsum("nd,dk->nk", rows, axes)
    return sums


def _arrays(vocabulary: Vocabulary) -> dict[str, NDArray[Any]]:
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
    for name in _ARRAYS:  # NaN is not at most anything, either
        if not (np.abs(arrays[name].astype(np.float64)) <= _LARGEST).all():
            raise HardnetError(f"{path}: {name} has damaged numbers; make it again")
    count, dim = arrays["words"].shape
    shapes = {"mean": (dim,), "projection": (BITS, dim), "thresholds": (count, BITS)}
    for name, shape in shapes.items():
        if (found := arrays[name].shape) != shape:
            raise HardnetError(f"{path}: {name} is {found} instead of {shape}; make it again")
    cells = [arrays[name] for name in _CELL_ARRAYS if name in arrays]
    try:
        return Vocabulary(
            **{name: arrays[name] for name in _ARRAYS},
            descriptor=facts["descriptor"],
            provenance=json.loads(facts["provenance"]),
            cells=Cells(*cells) if len(cells) == len(_CELL_ARRAYS) else None,
        )
    except (KeyError, ValueError) as error:
        raise HardnetError(f"{path} has damaged metadata: {error}; make it again") from error


PRODUCTS = 1 << 19
"""Products a thread holds at a time: 2 MB, which stay in the cache until they are read."""

PIECE = 512
"""Rows that a thread takes at once, if there are that many."""

MORE = 3
"""Exact distances are computed for this many more words than are wanted."""

FEW = 256
"""Up to this many words, all distances are computed exactly: words that are means of many
descriptors are short, and the descriptors lie far outside the range of their integers."""

GROUP = 256
"""Words whose best score is found at once, to know which scores are worth a look."""

_HEADROOM = 1.25  # descriptors reach further out than words, which are means; beyond it: clipped


class Assigner:
    """Finds the nearest of ``words`` (K, D) for rows (N, D) of about unit length.

    The first is almost always the nearest; of several, one in a thousand may be missing.
    """

    def __init__(self, words: Rows) -> None:
        self._words = np.ascontiguousarray(words, np.float32)
        self._integer = IntegerScores(self._words)
        self._product = self._make_product()

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)

        def assign(part: slice) -> None:
            some = np.ascontiguousarray(rows[part], np.float32)
            pairs = self._promising(some, count)
            out[part] = faster(nearest_of)(some, self._words, self._integer.half, *pairs, count)

        map_threads(assign, self._parts(len(rows)))
        return out

    def roughly(self, rows: Rows) -> NDArray[np.int32]:
        """(N,) words that are nearest by their integers: all that k-means needs until it ends."""
        out = np.empty(len(rows), np.int32)

        def assign(part: slice) -> None:
            out[part] = self._rough(rows[part])

        map_threads(assign, self._parts(len(rows)))
        return out

    def candidates(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, min(count, K)) words that are near by their integers, in no order; on this thread."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        step = self._step
        for start in range(0, len(rows), step):
            scores = self._scores(rows[start : start + step])
            out[start : start + step] = np.argpartition(scores, -count, axis=1)[:, -count:]
        return out

    def _make_product(self) -> IntegerProduct:
        return IntegerProduct(self._integer.words)

    def _scores(self, rows: Rows) -> NDArray[np.int32]:
        return self._product(self._integer.rows(rows))

    def _promising(self, rows: Rows, count: int) -> Pairs:
        """Rows and words whose exact distances decide, ascending; a row has at least ``count``."""
        if len(self._words) <= FEW:
            owner, found = np.indices((len(rows), len(self._words)))
            return owner.ravel(), found.ravel()
        return faster(promising)(self._scores(rows), count + MORE)

    def _rough(self, rows: Rows) -> Any:
        if len(self._words) <= FEW:
            return self(rows)[:, 0]
        return self._scores(rows).argmax(axis=1)

    @property
    def _step(self) -> int:
        return min(max(PRODUCTS // max(len(self._words), 1), 16), PIECE)

    def _parts(self, rows: int) -> list[slice]:
        """The rows in parts; the few of a query are shared out evenly."""
        threads = max(cv2.getNumThreads(), 1)
        pieces = threads * max(1, -(-rows // (threads * self._step)))
        return _slices(rows, max(1, -(-rows // pieces)))


ROUGH_PROBES, PROBES = 16, 24
"""Cells searched for a near word and for the nearest; for several words twice as many."""

_FEWEST_ROWS, _MOST_ROWS = 64, 32_768
_LOWEST = -np.iinfo(np.int32).max


class CellAssigner(Assigner):
    """The same for many words in the order of their ``cells``: only near cells are searched."""

    def __init__(self, words: Rows, cells: Cells, probes: int = PROBES) -> None:
        super().__init__(words)
        self._starts = np.ascontiguousarray(cells.starts, np.int64)
        self._near_cells = Assigner(cells.centres)
        self._probes = probes

    def _make_product(self) -> IntegerProduct:
        return IntegerProduct()  # each cell gives its words

    def _promising(self, rows: Rows, count: int) -> Pairs:
        probes = max(self._probes if count == 1 else 2 * self._probes, count)
        scores, found = self._best_of_cells(rows, probes, count + 2)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : count + MORE]
        found = np.sort(np.take_along_axis(found, best, 1), axis=1)
        real = found < len(self._words)
        short = np.flatnonzero(real.sum(axis=1) < count)  # near cells are all but empty
        real[short] = False
        owner, place = np.nonzero(real)
        words = found[owner, place]
        if len(short):
            others, more = Assigner(self._words)._promising(rows[short], count)
            owner, words = np.append(owner, short[others]), np.append(words, more)
            order = np.argsort(owner, kind="stable")
            owner, words = owner[order], words[order]
        return owner, words

    def _rough(self, rows: Rows) -> Any:
        scores, found = self._best_of_cells(rows, ROUGH_PROBES, 1)
        best = found[np.arange(len(found)), scores.argmax(axis=1)]
        none = best == len(self._words)  # all near cells are empty
        if none.any():
            best[none] = Assigner(self._words).roughly(rows[none])
        return best

    def _best_of_cells(
        self, rows: Rows, probes: int, most: int
    ) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """(N, P) scores and words of rows (N, D): the ``most`` best of each of the nearest cells.

        Where a cell has fewer, the word is K. Cell by cell, for all rows that search it at once.
        """
        near = self._near_cells.candidates(rows, probes)
        looks = np.argsort(near, axis=None, kind="stable")
        edges = np.searchsorted(near.ravel()[looks], np.arange(len(self._starts)))
        integers = self._integer.rows(rows)
        scores = np.full((near.size, most), _LOWEST, np.int32)
        found = np.full((near.size, most), len(self._words), np.intp)
        for cell in np.flatnonzero(np.diff(edges)).tolist():
            first, last = self._starts[cell : cell + 2].tolist()
            some = looks[edges[cell] : edges[cell + 1]]
            here = self._product(integers[some // near.shape[1]], self._integer.words[first:last])
            each = np.arange(len(some))
            for k in range(min(most, last - first)):
                best = here.argmax(axis=1)
                scores[some, k], found[some, k] = here[each, best], first + best
                here[each, best] = _LOWEST
        return scores.reshape(len(rows), -1), found.reshape(len(rows), -1)

    def _parts(self, rows: int) -> list[slice]:
        """As few parts as there are cores: the more rows at once, the more share a cell."""
        threads = max(cv2.getNumThreads(), 1)
        return _slices(rows, min(max(-(-rows // threads), _FEWEST_ROWS), _MOST_ROWS))


def _slices(rows: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, rows, step)]


class IntegerScores:
    """Words (K, D) and rows in 8 bits: their products, the scores, order words by distance.

    What does not depend on the row, half the squared length of the word included, is part of the
    product, in a few columns of the words: it is a number in the base of 127, which is what the
    rows have in these columns.
    """

    def __init__(self, words: Rows) -> None:
        self.half: Rows = half_squares(words)
        largest = float(np.abs(words).max(initial=1e-6))
        word_scale, self._row_scale = 127 / largest, np.float32(63 / (_HEADROOM * largest))
        small = np.rint(words * word_scale).astype(np.int8)
        # Rows are moved from -63..63 to 1..127, which adds 64 times the sum of the word.
        shift = 64 * small.sum(axis=1, dtype=np.int64)
        length = np.rint(self.half.astype(np.float64) * word_scale * self._row_scale)
        bias = -shift - length.astype(np.int64)
        bias -= (bias.max(initial=0) + bias.min(initial=0)) // 2
        tens = np.rint(bias / 127).astype(np.int64)
        share = max(-(-int(np.abs(tens).max(initial=0)) // 127), 1)  # columns that share the tens
        parts = [(tens + part) // share for part in range(share)]
        columns = np.stack([*parts, bias - 127 * tens], 1).astype(np.int8)
        self._constants = np.array([127] * share + [1], np.uint8)
        self.words = np.concatenate([small, columns], 1)  # (K, D + a few) int8

    def rows(self, rows: Rows) -> NDArray[np.uint8]:
        """(N, D + a few) of rows (N, D)."""
        dim = rows.shape[1]
        small = np.empty((len(rows), dim + len(self._constants)), np.uint8)
        moved = rows * self._row_scale
        moved += np.float32(64.5)
        small[:, :dim] = np.clip(moved, 1, 127, out=moved)
        small[:, dim:] = self._constants
        return small


def half_squares(words: Rows) -> Any:
    """Half the squared lengths (K,) of words (K, D): with these, products order by distance."""
    return 0.5 * np.einsum("kd,kd->k", words, words)


def promising(scores: NDArray[np.int32], count: int) -> Pairs:
    """Rows and columns of the highest of scores (N, K): ``count`` or a few more in each row.

    They reach what the best of ``count`` groups of neighbouring columns reach.
    """
    columns = scores.shape[1]
    group = max(min(GROUP, columns // (4 * count)), 1)
    tops = np.maximum.reduceat(scores, np.arange(0, columns, group), axis=1)
    last = max(tops.shape[1] - count, 0)
    least = np.partition(tops, last, axis=1)[:, last]
    return np.divmod(np.flatnonzero(scores >= least[:, None]), columns)


def nearest_of(
    rows: Rows,
    words: Rows,
    half: Rows,
    owner: NDArray[np.intp],
    found: NDArray[np.intp],
    count: int,
) -> NDArray[np.int32]:
    """(N, count) the nearest of the words that were found for each row, by exact distances.

    ``found`` (P,) are words, ``owner`` (P,) their rows, both ascending; a row has at least
    ``count``. The nearest comes first, of equal ones the lower number; ``half`` (K,) are half the
    squared lengths of the words (K, D).
    """
    # In double precision, so that the order of the sums does not matter.
    dots = np.einsum("pd,pd->p", rows[owner], words[found], dtype=np.float64)
    sizes = np.bincount(owner, minlength=len(rows))
    most = int(sizes.max(initial=count))
    far = np.full((len(rows), most), np.inf, np.float32)
    far[np.arange(most) < sizes[:, None]] = half[found] - dots.astype(np.float32)
    order = np.argsort(far, axis=1, kind="stable")[:, :count]
    nearest: NDArray[np.int32] = found[(np.cumsum(sizes) - sizes)[:, None] + order].astype(np.int32)
    return nearest
