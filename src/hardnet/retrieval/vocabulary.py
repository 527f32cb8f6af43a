"""Visual words: the centres that descriptors are near to, and signatures that tell more.

A large vocabulary is searched only where it is near: by cells of words, which are stored with the
words, so that nothing is built when a vocabulary is loaded.
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
    MORE,
    Assigner,
    Rows,
    half_squares,
    nearest_of,
    project,
)
from hardnet.retrieval.compiled import faster
from hardnet.retrieval.signatures import BITS, Signatures, pack_bits
from hardnet.retrieval.store.files import tensor_file
from hardnet.storage import as_path
from hardnet.threads import map_threads

SMALLEST_SIZE, PUBLISHED_SIZE, LARGEST_SIZE = 1 << 10, 1 << 16, 1 << 20

FORMAT = "hardnet-vocabulary-1"
_LEVELS = 65_536  # words whose thresholds are kept in single precision: 32 MB
_ROWS = 256  # of which signatures are made at once by a thread
_ARRAYS = ("words", "mean", "projection", "thresholds")
_CELL_ARRAYS = ("centres", "starts")


@dataclass(frozen=True, eq=False)
class Cells:
    """The cells of K words; those of a cell are next to each other."""

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
        return CellAssigner(self.words, self.cells)

    def signatures(self, prepared: Rows, words: NDArray[np.int32]) -> Signatures:
        """Signatures (N, M, 2) of prepared descriptors (N, D), each in M words (N, M)."""
        out = np.empty((*words.shape, 2), np.uint64)

        def compare(start: int) -> None:
            part = slice(start, start + _ROWS)
            rows = np.ascontiguousarray(prepared[part], np.float32)
            along = faster(project)(rows, self._axes)
            out[part] = pack_bits(along[:, None] > self._levels[words[part]])

        map_threads(compare, range(0, len(prepared), _ROWS))
        return out

    @cached_property
    def _levels(self) -> NDArray[Any]:
        """The thresholds, as they compare quickly unless that takes too much memory."""
        return self.thresholds.astype(np.float32) if len(self) <= _LEVELS else self.thresholds

    @cached_property
    def _axes(self) -> Rows:
        return self.projection.T.astype(np.float32, order="C")


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
    vocabulary = Vocabulary(
        **{name: arrays[name] for name in _ARRAYS},
        descriptor=facts["descriptor"],
        provenance=json.loads(facts["provenance"]),
        cells=Cells(**{name: arrays[name] for name in _CELL_ARRAYS}) if has_cells else None,
    )
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


LARGE = 32_768
"""More words than these are searched by cells; up to here looking at all of them is quick."""

PROBES, MORE_PROBES = 32, 64
"""Cells that are searched for the nearest word, and for several: the others lie further off."""

_ROUNDS = 3
_FEWEST_ROWS, _MOST_ROWS = 64, 1024
_ROWS_OF_CELL = 32  # so few at once that BLAS does not start threads of its own


def make_cells(words: Rows) -> tuple[Rows, Cells]:
    """The words in the order of their cells, and the cells: k-means of the words themselves.

    Some 4 sqrt(K) cells: finding the near cells and looking into them then take about as long.
    """
    count = 2 ** round(math.log2(4 * math.sqrt(len(words))))
    count = min(count, len(words))
    # Words that come ordered by cells, as from the last iteration of k-means, give a good start.
    centres = words[np.linspace(0, len(words) - 1, count).astype(np.intp)]
    for _ in range(_ROUNDS):
        sums, counts = np.zeros(centres.shape), np.zeros(count, np.int64)
        add_rows(words, Assigner(centres)(words)[:, 0], sums, counts)
        used = counts > 0
        centres[used] = sums[used] / counts[used, None]
    labels = Assigner(centres)(words)[:, 0]
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(count + 1)).astype(np.int64)
    return words[order], Cells(centres, starts)


class CellAssigner:
    """Finds almost always the nearest of ``words`` (K, D), which are in the order of ``cells``."""

    def __init__(
        self, words: Rows, cells: Cells, probes: int = PROBES, more_probes: int = MORE_PROBES
    ) -> None:
        """Looks into ``probes`` cells for the nearest word, into ``more_probes`` for several."""
        self._probes, self._more_probes = probes, more_probes
        self._words = np.ascontiguousarray(words, np.float32)
        self._half = half_squares(self._words)
        self._starts = np.ascontiguousarray(cells.starts, np.int64)
        self._near_cells = Assigner(cells.centres)

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores."""
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        # The more rows at once, the more of them share a cell while it is in the cache.
        many = min(max(len(rows) // 8, _FEWEST_ROWS), _MOST_ROWS)

        def assign(start: int) -> None:
            part = np.ascontiguousarray(rows[start : start + many], np.float32)
            owner, found = self._promising(part, count)
            here = out[start : start + many]
            sizes = np.bincount(owner, minlength=len(part))
            if (sizes < count).any():  # all near cells are all but empty
                owner, found = (side.ravel() for side in np.indices((len(part), len(self._words))))
            here[:] = faster(nearest_of)(part, self._words, self._half, owner, found, count)

        map_threads(assign, range(0, len(rows), many))
        return out

    def roughly(self, rows: Rows) -> NDArray[np.int32]:
        """(N,) the nearest words; see :meth:`Assigner.roughly`."""
        return self(rows)[:, 0]

    def _promising(self, rows: Rows, count: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows and words of the smallest distances in near cells: ``count`` or more for a row.

        Cell after cell, all rows that look into it at once.
        """
        probes = max(self._probes if count == 1 else self._more_probes, count)
        near = self._near_cells.candidates(rows, probes)
        looks = np.argsort(near, axis=None, kind="stable")
        edges = np.searchsorted(near.ravel()[looks], np.arange(len(self._starts)))
        widest = int(np.diff(self._starts).max())
        far = np.full((near.size, widest), np.inf, np.float32)
        for cell in np.flatnonzero(np.diff(edges)).tolist():
            words = slice(self._starts[cell], self._starts[cell + 1])
            for first in range(edges[cell], edges[cell + 1], _ROWS_OF_CELL):
                some = looks[first : min(first + _ROWS_OF_CELL, edges[cell + 1])]
                products = rows[some // near.shape[1]] @ self._words[words].T
                far[some, : products.shape[1]] = self._half[words] - products
        # The cells that are near enough, by their nearest words, have all the nearest words.
        tops = np.sort(far.min(axis=1).reshape(near.shape), axis=1)
        most = tops[:, min(count + MORE, tops.shape[1]) - 1]
        most = np.minimum(most, np.finfo(np.float32).max)  # infinite where there is no word
        far = far.reshape(len(rows), -1)
        owner, place = np.divmod(np.flatnonzero(far <= most[:, None]), far.shape[1])
        look, place = np.divmod(place, widest)
        return owner, self._starts[near[owner, look]] + place


def recall(assign: CellAssigner, words: Rows, rows: Rows) -> float:
    """Share of rows (N, D) whose nearest word is found."""
    nearest, which = np.full(len(rows), np.inf, np.float32), np.zeros(len(rows), np.int64)
    for start in range(0, len(words), LARGE):
        part = words[start : start + LARGE]
        far = half_squares(part) - rows @ part.T
        here = far.argmin(axis=1)
        better = far[np.arange(len(rows)), here] < nearest
        which[better] = here[better] + start
        nearest[better] = far[better, here[better]]
    return float((assign(rows)[:, 0] == which).mean())


def add_rows(
    rows: Rows, labels: NDArray[np.int32], sums: NDArray[np.float64], counts: NDArray[np.int64]
) -> None:
    """Add the rows (N, D) to the sums (K, D) of their words (N,), and count them (K,)."""
    counts += np.bincount(labels, minlength=len(counts))
    for d, column in enumerate(np.ascontiguousarray(rows.T)):
        sums[:, d] += np.bincount(labels, column, len(counts))
