"""The nearest words of descriptors: products of 8-bit integers, the best few of them exactly.

Large vocabularies are searched by cells (``vocabulary``), of which the near ones are found so.
Speed and recall beside faiss, flat and graphs: ``benchmarks/assign_words.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from hardnet.retrieval.kernels import LINE, compiled, compiled_sums, prefetch
from hardnet.threads import map_threads

Rows = NDArray[np.float32]

ROWS, TILE = 64, 8192
"""Products held at once by a thread: 2 MB, which stay in the cache until they have been read."""

PIECE = 512
"""Rows that a thread takes at once, if there are that many."""

MORE = 3
"""This many words more than are wanted have their distance computed exactly."""

LEADING_WORDS, LEADING_SHARE, LEADING_MOST = 2048, 0.9, 0.625
"""Of this many words or more, several are searched for along the leading axes only, if this share
of the energy of the words lies along at most this share of the axes."""

LEADING_MORE, LEADING_ROOM = 2, 4
"""This many times as many words as are wanted, or more, then have their distance computed exactly;
there is room for this many times as many again."""

FEW = 256
"""Up to this many words, all distances are computed exactly: words that are means of many
descriptors are short, and the descriptors lie far outside the range of their integers."""

_HEADROOM = 1.25  # descriptors reach further out than words, which are means; beyond it: clipped


def half_squares(words: Rows) -> Rows:
    """Half the squared lengths (K,) of words (K, D): with these, products order by distance."""
    halves: Rows = 0.5 * np.einsum("kd,kd->k", words, words)
    return halves


class Assigner:
    """Finds the nearest of ``words`` (K, D) for rows (N, D) of about unit length."""

    def __init__(self, words: Rows) -> None:
        # Writable, or another variant of the kernels is compiled for it.
        self._words = np.require(words, np.float32, ["C", "W"])
        self._half = half_squares(self._words)
        self._near = IntegerScores(self._words, self._half)

    def __call__(self, rows: Rows, count: int = 1) -> NDArray[np.int32]:
        """The nearest words (N, min(count, K)), nearest first. Each row by itself, on all cores.

        The first is almost always the nearest; of several, one in a thousand may be missing.
        """
        count = min(count, len(self._words))
        out = np.empty((len(rows), count), np.int32)
        # The few rows of a query are shared out evenly.
        threads = max(cv2.getNumThreads(), 1)
        pieces = threads * max(1, -(-len(rows) // (threads * PIECE)))
        step = max(1, -(-len(rows) // pieces))
        leading = self._leading if count > 1 else None

        def assign(start: int) -> None:
            part = np.ascontiguousarray(rows[start : start + step], np.float32)
            if len(self._words) <= FEW:
                found = np.tile(np.arange(len(self._words), dtype=np.int32), (len(part), 1))
            elif leading is None:
                found = self.candidates(part, count + MORE)
            else:
                axes, near = leading
                found = near.promising(project(part, axes), LEADING_MORE * (count + MORE))
            refine(part, self._words, self._half, found, out[start : start + step])

        map_threads(assign, range(0, len(rows), step))
        return out

    def candidates(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, count) words that are near by their integer products, -1 for none; on this thread."""
        return self._near.best(rows, count)

    @cached_property
    def _leading(self) -> tuple[Rows, IntegerScores] | None:
        """The leading axes of the words, and the scores along these only."""
        axes = leading_axes(self._words) if len(self._words) >= LEADING_WORDS else None
        if axes is None:
            return None
        return axes, IntegerScores(project(self._words, axes), self._half)


def leading_axes(words: Rows) -> Rows | None:
    """(D, d) the few axes along which words (K, D) differ most, a multiple of 16; None if many."""
    squares = words.T.astype(np.float64) @ words
    energy, axes = np.linalg.eigh(squares)
    share = np.cumsum(energy[::-1]) / max(energy.sum(), 1e-12)
    count = 16 * (int(np.searchsorted(share, LEADING_SHARE)) // 16 + 1)
    if count > LEADING_MOST * len(axes):
        return None
    axes = axes[:, ::-1][:, :count]
    axes *= np.where(np.abs(axes.max(axis=0)) < np.abs(axes.min(axis=0)), -1, 1)
    # Rounded, because the last bits depend on the machine and on its number of cores.
    return np.ascontiguousarray(np.round(axes, 4), np.float32)


@compiled
def project(rows: Rows, axes: Rows) -> Rows:
    """(N, d) rows (N, D) along axes (D, d).

    Each row is summed by itself, in one order, so that it does not depend on the others; a product
    by BLAS would, and its threads would keep a core busy that the search for words needs.
    """
    dim, count = axes.shape
    out = np.zeros((len(rows), count), np.float32)
    whole = dim - dim % 4
    for n in range(len(rows)):
        row, sums = rows[n], out[n]
        for d in range(0, whole, 4):  # four axes at once: the sums are read and written less often
            for k in range(count):
                total = sums[k] + row[d] * axes[d, k] + row[d + 1] * axes[d + 1, k]
                sums[k] = total + row[d + 2] * axes[d + 2, k] + row[d + 3] * axes[d + 3, k]
        for d in range(whole, dim):
            for k in range(count):
                sums[k] += row[d] * axes[d, k]
    return out


class IntegerScores:
    """Products of rows with words in 8 bits, less half the squared lengths of the words."""

    def __init__(self, words: Rows, half: Rows) -> None:
        """Words (K, D), and half their squared lengths (K,): longer than these, of a part."""
        largest = float(np.abs(words).max(initial=1e-6))
        word_scale, self._row_scale = 127 / largest, np.float32(63 / (_HEADROOM * largest))
        whole = -len(words) % BLOCK  # words that complete the last block: zero, and never found
        small = np.pad(np.rint(words * word_scale).astype(np.int8), ((0, whole), (0, 0)))
        # Rows are moved from -63..63 to 1..127, which adds 64 times the sum of the word.
        shift = 64 * small[: len(words)].sum(axis=1, dtype=np.int64)
        length = np.rint(half.astype(np.float64) * word_scale * self._row_scale)
        bias = (-shift - length.astype(np.int64)).astype(np.int32)
        self._bias = np.pad(bias, (0, whole), constant_values=WORST)
        self._tiles = {
            start: IntegerProduct(small[start : start + TILE])
            for start in range(0, len(small), TILE)
        }

    def best(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, count) the words of the highest scores of rows (N, D), best first; -1 for none."""
        scores = np.full((len(rows), count), WORST, np.int32)
        found = np.full((len(rows), count), -1, np.int32)
        for part, products, bias, first in self._products(rows):
            collect(products, bias, first, scores[part], found[part])
        return found

    def promising(self, rows: Rows, count: int) -> NDArray[np.int32]:
        """(N, C) about ``count`` or more words of the highest scores, in no order; then -1."""
        found = np.full((len(rows), LEADING_ROOM * count * len(self._tiles)), -1, np.int32)
        sizes = np.zeros(len(rows), np.int64)
        for part, products, bias, first in self._products(rows):
            collect_promising(products, bias, first, count, sizes[part], found[part])
        return found

    def _products(
        self, rows: Rows
    ) -> Iterator[tuple[slice, NDArray[np.int32], NDArray[np.int32], int]]:
        """Some rows, their products with some words, the bias and the number of the first."""
        moved = rows * self._row_scale
        moved += np.float32(64.5)
        small = np.clip(moved, 1, 127, out=moved).astype(np.uint8)
        for first in range(0, len(rows), ROWS):
            part = slice(first, first + ROWS)
            for start, product in self._tiles.items():
                yield part, product(small[part]), self._bias[start : start + TILE], start


BLOCK = 64
"""Words whose best score is found at once; only a promising block is looked at word by word."""

STEPS = 64
"""Where many words are wanted, blocks are sorted by their best score into at most these steps."""

WORST = -(2**31)


@compiled
def collect(
    products: NDArray[np.int32], bias: NDArray[np.int32], first: int, scores: Any, found: Any
) -> None:
    """Keep the best words of each row, best first; of equal ones the earlier stays in front.

    Products (N, T) of the rows with the words from ``first`` on, T a multiple of BLOCK, and a bias
    (T,) give the score; WORST is no word at all. Scores and numbers (N, C) are changed in place.
    """
    rows, words = products.shape
    last = scores.shape[1] - 1
    tops, best = np.empty(words // BLOCK, np.int32), np.empty(last + 1, np.int32)
    for n in range(rows):
        for place in range(last + 1):
            best[place] = scores[n, place]
        for block in range(len(tops)):
            top = np.int32(WORST)
            # Whole blocks and int32 throughout, or it is not vectorised.
            for j in range(block * BLOCK, block * BLOCK + BLOCK):
                top = max(top, np.int32(products[n, j] + bias[j]))
            tops[block] = top
            if top > best[last]:
                place = last
                while place > 0 and best[place - 1] < top:
                    best[place] = best[place - 1]
                    place -= 1
                best[place] = top
        # As many words as are kept reach this: one of each of the best blocks, or one from before.
        least = best[last]
        for block in range(len(tops)):
            if tops[block] < least:
                continue
            for j in range(block * BLOCK, block * BLOCK + BLOCK):
                score = np.int32(products[n, j] + bias[j])
                if score >= least and score > scores[n, last]:
                    place = last
                    while place > 0 and scores[n, place - 1] < score:
                        scores[n, place] = scores[n, place - 1]
                        found[n, place] = found[n, place - 1]
                        place -= 1
                    scores[n, place] = score
                    found[n, place] = first + j


@compiled
def collect_promising(
    products: NDArray[np.int32],
    bias: NDArray[np.int32],
    first: int,
    count: int,
    sizes: Any,
    found: Any,
) -> None:
    """Append the words of each row that reach its ``count`` best blocks, or a little less.

    Products, bias and ``first`` as for ``collect``. ``sizes`` (N,) of the words (N, C) that were
    found are changed in place, as long as there is room.
    """
    rows, words = products.shape
    tops, steps = np.empty(words // BLOCK, np.int32), np.empty(STEPS, np.int64)
    for n in range(rows):
        row, highest, lowest = products[n], np.int64(WORST), np.int64(2**31)
        for block in range(len(tops)):
            top = np.int32(WORST)
            for j in range(block * BLOCK, block * BLOCK + BLOCK):
                top = max(top, np.int32(row[j] + bias[j]))
            tops[block] = top
            highest = max(highest, np.int64(top))
            if top > WORST:
                lowest = min(lowest, np.int64(top))
        # The blocks by how far they stay behind the best one, in equal steps: no need to sort them.
        shift = 0
        while (highest - lowest) >> shift >= STEPS:
            shift += 1
        steps[:] = 0
        for block in range(len(tops)):
            if tops[block] > WORST:
                steps[(highest - tops[block]) >> shift] += 1
        last, blocks = 0, steps[0]
        while blocks < count and last + 1 < STEPS:
            last += 1
            blocks += steps[last]
        least, size = np.int32(highest - ((last + 1) << shift) + 1), sizes[n]
        for block in range(len(tops)):
            if tops[block] < least:
                continue
            start = block * BLOCK
            here, shifts = row[start : start + BLOCK], bias[start : start + BLOCK]
            for j in range(BLOCK):
                if np.int32(here[j] + shifts[j]) >= least and size < found.shape[1]:
                    found[n, size] = first + start + j
                    size += 1
        sizes[n] = size


@compiled_sums
def refine(
    rows: Rows, words: Rows, half: Rows, found: NDArray[np.int32], out: NDArray[np.int32]
) -> None:
    """Write to ``out`` (N, M) the nearest of the words ``found`` (N, C; -1 for none) of each row.

    The nearest comes first, of equal ones the lower number; ``half`` (K,) are half the squared
    lengths of the words (K, D).
    """
    dim = rows.shape[1]
    wanted = out.shape[1]
    nearest, address, word_bytes = np.empty(wanted, np.float32), words.ctypes.data, 4 * dim
    for n in range(len(rows)):
        for word in found[n + 1 : n + 2].flat:  # of the next row, from all over the memory
            start = address + word * word_bytes
            for line in range(start, start + word_bytes, LINE):
                prefetch(line)
        nearest[:] = np.inf
        out[n] = -1
        for word in found[n]:
            if word < 0:
                break
            dot = np.float32(0)
            for d in range(dim):
                dot += rows[n, d] * words[word, d]
            far = half[word] - dot
            place = wanted
            while place > 0 and (
                far < nearest[place - 1] or (far == nearest[place - 1] and word < out[n, place - 1])
            ):
                place -= 1
            for move in range(wanted - 1, place, -1):
                nearest[move] = nearest[move - 1]
                out[n, move] = out[n, move - 1]
            if place < wanted:
                nearest[place] = far
                out[n, place] = word


_IR_VERSION, _OPSET = 8, 17  # of March 2022; read by every onnxruntime the package allows
_UINT8, _INT8, _INT32 = 2, 3, 6  # onnx.TensorProto.DataType


class IntegerProduct:
    """The products of uint8 rows (N, D) with int8 words (K, D): (N, K) int32, by onnxruntime.

    It knows the instructions of the processor for them. The network is one node, MatMulInteger,
    with the words as its constant; its few bytes of protocol buffer are written here, because the
    package that usually writes them is not part of the default install.

    Rows of at most 127 are exact on every processor; more may overflow where a pair of products is
    summed in 16 bits.
    """

    def __init__(self, words: NDArray[np.int8]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1  # the callers are as many threads as there are cores
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(
            _model(words), options, providers=["CPUExecutionProvider"]
        )

    def __call__(self, rows: NDArray[np.uint8]) -> NDArray[np.int32]:
        """Callable from several threads at once."""
        product: NDArray[np.int32] = self._session.run(None, {"rows": rows})[0]
        return product


def _model(words: NDArray[np.int8]) -> bytes:
    """An ONNX file; the numbers are those of the fields in onnx.proto."""
    count, dim = words.shape
    node = _text(1, "rows") + _text(1, "words") + _text(2, "products") + _text(4, "MatMulInteger")
    constant = _number(1, dim) + _number(1, count) + _number(2, _INT8) + _text(8, "words")
    constant += _block(9, np.ascontiguousarray(words.T).tobytes())
    graph = _block(1, node) + _text(2, "words") + _block(5, constant)
    graph += _block(11, _value("rows", _UINT8, dim)) + _block(12, _value("products", _INT32, count))
    return _number(1, _IR_VERSION) + _block(7, graph) + _block(8, _number(2, _OPSET))


def _value(name: str, kind: int, columns: int) -> bytes:
    """A matrix of any number of rows."""
    shape = _block(1, _text(2, "N")) + _block(1, _number(1, columns))
    return _text(1, name) + _block(2, _block(1, _number(1, kind) + _block(2, shape)))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _text(field: int, value: str) -> bytes:
    return _block(field, value.encode())


def _block(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; the eighth bit says that more follow."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
