"""The teacher's descriptors of a training set, computed once and cached.

A student learns from the descriptors of a large network, its teacher. They do not change during
training, so they are computed once per patch set and mapped into memory: a training step only runs
the student. With augmentation a patch is seen under four symmetries, and the teacher describes each
of them, because the descriptor of a mirrored patch is a different one.

Several teachers may teach together. Their vectors are concatenated and projected to the student's
target: the projection preserves inner products best, and is rotated to be closest to the first
teacher's vectors. A student that starts from the first teacher's weights then needs small changes
only, not new axes.

A descriptor is stored as 128 integers of 8 bits. Its largest entry becomes 127; its scale need not
be stored, because the vector has unit length.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hardnet.cache import Cache, load_array
from hardnet.descriptors import WEIGHTS_SUFFIXES, Descriptor, load, shipped_names, unit_rows
from hardnet.errors import HardnetError, Steps, silent
from hardnet.learn.batches import SYMMETRIES, Flips
from hardnet.patchsets.patchset import Ints, JoinedRows, Patches, PatchSet
from hardnet.storage import FolderLock

BLOCK = 2048
"""Patches per block; a stopped computation continues after the last whole block."""

SAMPLE = 20_480
"""Patches from which the projection of several teachers is learned."""

_DIGEST_BLOCK = 1 << 15  # patches read at a time for the digest of a set
_PATIENCE = 3600.0  # seconds per attempt to take the lock: its holder is computing


class TeacherOutputs:
    """The teacher's descriptors of all patches of a set.

    Args:
        parts: (N_k, 1 or 4, D) int8 for each set of the union, in order; the second axis is the
            symmetry, see :attr:`hardnet.learn.batches.Flips.numbers`.
    """

    def __init__(self, parts: Sequence[NDArray[np.int8]]) -> None:
        self._rows = JoinedRows(parts)
        self.dim = int(parts[0].shape[2])

    def __call__(self, patches: Ints, flips: Flips | None = None) -> NDArray[np.float32]:
        """(n,) numbers of patches, flipped or not -> (n, D) unit vectors."""
        symmetry = np.zeros(len(patches), np.int64) if flips is None else flips.numbers
        return from_bytes(self._rows[patches][np.arange(len(patches)), symmetry])


def to_bytes(vectors: NDArray[np.float32]) -> NDArray[np.int8]:
    """(n, D) unit vectors -> int8; the largest entry of each is 127 or -127."""
    largest = np.abs(vectors).max(axis=1, keepdims=True)
    rows: NDArray[np.int8] = np.round(vectors * (127 / np.maximum(largest, 1e-12))).astype(np.int8)
    return rows


def from_bytes(rows: NDArray[np.int8]) -> NDArray[np.float32]:
    """The unit vectors that :func:`to_bytes` rounded."""
    vectors = rows.astype(np.float32)
    vectors /= np.maximum(np.sqrt((vectors * vectors).sum(axis=1, keepdims=True)), 1e-12)
    return vectors


class Together:
    """Several teachers as one descriptor, as long as that of the first.

    Args:
        teachers: the first defines the axes.
        patches: (N, S, S) of the training set.
        count: the projection is learned from a sample of the first ``count`` patches.
    """

    def __init__(self, teachers: Sequence[Descriptor], patches: Patches, count: int) -> None:
        self._teachers = teachers
        self.name = "+".join(one.name for one in teachers)
        self.dim = teachers[0].dim
        sample = np.unique(np.linspace(0, count - 1, SAMPLE).astype(np.int64))
        vectors = self._side_by_side(np.asarray(patches[sample]))
        self._matrix = turned_projection(vectors, vectors[:, : self.dim])
        digest = hashlib.sha256(self._matrix.tobytes()).hexdigest()
        self.weights = "+".join([*map(weights_of, teachers), digest])

    def _side_by_side(self, patches: NDArray[np.uint8]) -> NDArray[np.float32]:
        return np.concatenate([describe(patches) for describe in self._teachers], axis=1)

    def __call__(self, patches: ArrayLike) -> NDArray[np.float32]:
        """(N, S, S) patches -> (N, D) unit vectors."""
        return unit_rows(self._side_by_side(np.asarray(patches)) @ self._matrix)


def turned_projection(
    vectors: NDArray[np.float32], first: NDArray[np.float32]
) -> NDArray[np.float32]:
    """(E, D) projection of (N, E) vectors that preserves their inner products best.

    Any rotation of the result preserves as much; the one chosen brings it closest to the vectors
    ``first`` (N, D).
    """
    wide = vectors.astype(np.float64)
    axes = np.linalg.eigh(wide.T @ wide)[1][:, ::-1][:, : first.shape[1]]
    left, _, right = np.linalg.svd((wide @ axes).T @ first.astype(np.float64))
    return np.asarray(axes @ left @ right, np.float32)


def load_teachers(teacher: str) -> list[Descriptor]:
    """The descriptors of a recipe's ``teacher``, a comma-separated list of files and names."""
    names = [name.strip() for name in teacher.split(",")]
    for name in names:
        if name not in shipped_names() and Path(name).suffix.lower() not in WEIGHTS_SUFFIXES:
            raise HardnetError(
                f"teacher: {name} is neither a weights file ({', '.join(WEIGHTS_SUFFIXES)}) "
                f"nor one of {', '.join(shipped_names())}"
            )
    return [load(name) for name in names]


def weights_of(teacher: Descriptor) -> str:
    """What identifies the weights of a teacher."""
    return str(getattr(teacher, "weights", teacher.name))


def teacher_outputs(
    teacher: str, train_set: PatchSet, augment: bool, progress: Steps = silent
) -> TeacherOutputs:
    """A training set described by one or several teachers: read from the cache, or computed.

    The user's cache keeps them under the digests of the weights and of the patches, in one file for
    each set of a union. A stopped computation continues where it was; of several processes one
    computes and the others wait. ``augment`` asks for all four symmetries of each patch.
    """
    teachers = load_teachers(teacher)
    symmetries = SYMMETRIES if augment else 1
    total, parts = len(train_set), []
    ends = [total]
    if train_set.sets is not None:
        ends = [*(np.flatnonzero(np.diff(train_set.sets)) + 1).tolist(), total]
    describe = teachers[0]
    if len(teachers) > 1:  # learned from the first set alone, so that other unions can reuse it
        describe = Together(teachers, train_set.patches, ends[0])
    first = 0
    for end in ends:

        def show(done: int, first: int = first) -> None:
            progress(first + done, total)

        parts.append(_outputs(describe, train_set.patches, range(first, end), symmetries, show))
        first = end
    return TeacherOutputs(parts)


def _outputs(
    describe: Descriptor,
    patches: Patches,
    rows: range,
    symmetries: int,
    progress: Callable[[int], None],
) -> NDArray[np.int8]:
    cache = Cache("teachers")
    about = {
        "teacher": weights_of(describe),
        "patches": _digest(patches, rows),
        "symmetries": symmetries,
    }
    path = cache.path(about, ".npy", describe.name)
    with suppress(OSError, ValueError):
        return load_array(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FolderLock(path.parent, f"{path.name}.lock")
        while not lock.take(_PATIENCE):
            pass
        try:
            with suppress(OSError, ValueError):  # another process was faster
                return load_array(path)
            _compute(describe, patches, rows, symmetries, path, progress)
        finally:
            lock.remove()
            lock.release()
    except OSError as error:
        raise cache.unwritable(error) from error
    return load_array(path)


def _compute(
    describe: Descriptor,
    patches: Patches,
    rows: range,
    symmetries: int,
    path: Path,
    progress: Callable[[int], None],
) -> None:
    """Write the file block by block under another name; the last block found is computed again."""
    growing = path.with_suffix(".growing")
    shape = (len(rows), symmetries, describe.dim)
    with growing.open("ab") as file:
        if not file.tell():
            header = {"descr": "|i1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
    with growing.open("r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        start, size = file.tell(), symmetries * describe.dim
        written = (os.fstat(file.fileno()).st_size - start) // size
        done = max(0, written // BLOCK - 1) * BLOCK
        file.seek(start + done * size)
        file.truncate()
        while done < len(rows):
            progress(done)
            first = rows.start + done
            block = np.asarray(patches[first : min(first + BLOCK, rows.stop)])
            views = [Flips.alike(len(block), number)(block) for number in range(symmetries)]
            vectors = np.stack([describe(view) for view in views], axis=1)
            if not np.isfinite(vectors).all():
                raise HardnetError(f"teacher: {describe.name} gives numbers that are not finite")
            flat = to_bytes(vectors.reshape(-1, describe.dim))
            file.write(flat.tobytes())
            file.flush()
            os.fsync(file.fileno())
            done += len(block)
        progress(done)
    growing.replace(path)


def _digest(patches: Patches, rows: range) -> str:
    """SHA-256 of the patches themselves: a set may be renamed, or be made by a program."""
    digest = hashlib.sha256(f"{len(rows)} {patches.shape[1:]}".encode())
    for start in range(rows.start, rows.stop, _DIGEST_BLOCK):
        block = patches[start : min(start + _DIGEST_BLOCK, rows.stop)]
        digest.update(np.ascontiguousarray(block, np.uint8).data)
    return digest.hexdigest()
