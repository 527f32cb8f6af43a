"""The teacher's descriptors of a training set, computed once and cached.

A student learns from the descriptors of a large network, its teacher. They do not change during
training, so they are computed once per patch set and mapped into memory: a training step only runs
the student. With augmentation a patch is seen under four symmetries, and the teacher describes each
of them, because the descriptor of a mirrored patch is a different one.

A descriptor is stored as 128 integers of 8 bits. Its largest entry becomes 127; its scale need not
be stored, because the vector has unit length.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors import WEIGHTS_SUFFIXES, Descriptor, load, shipped_names
from hardnet.errors import HardnetError, Steps, silent
from hardnet.learn.batches import SYMMETRIES, Flips
from hardnet.patchsets.patchset import Ints, JoinedRows, Patches, PatchSet
from hardnet.provenance import Cache, load_array
from hardnet.storage import FolderLock

BLOCK = 2048  # patches per block; a stopped computation continues after the last whole block

_DIGEST_BLOCK = 1 << 15  # patches read at a time for the digest of a set
_PATIENCE = 3600.0  # seconds per attempt to take the lock: its holder is computing


class TeacherOutputs:
    """The teacher's descriptors of all patches of a union of sets.

    ``parts`` are (N_k, 1 or 4, D) int8; the second axis is :attr:`.Flips.numbers`.
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
    vectors = rows.astype(np.float32)
    vectors /= np.maximum(np.sqrt((vectors * vectors).sum(axis=1, keepdims=True)), 1e-12)
    return vectors


def load_teacher(teacher: str) -> Descriptor:
    """The descriptor of a recipe's ``teacher``: a weights file or the name of shipped weights."""
    if teacher not in shipped_names() and Path(teacher).suffix.lower() not in WEIGHTS_SUFFIXES:
        raise HardnetError(
            f"teacher: {teacher} is neither a weights file ({', '.join(WEIGHTS_SUFFIXES)}) "
            f"nor one of {', '.join(shipped_names())}"
        )
    return load(teacher)


def weights_of(teacher: Descriptor) -> str:
    return str(getattr(teacher, "weights", teacher.name))


def teacher_outputs(
    teacher: str, train_set: PatchSet, augment: bool, progress: Steps = silent
) -> TeacherOutputs:
    """A training set described by its teacher: read from the cache, or computed.

    There is one file for each set of a union. A stopped computation continues where it was; of
    several processes one computes and the others wait. ``augment`` asks for all four symmetries.
    """
    describe, cache = load_teacher(teacher), Cache("teachers")
    symmetries = SYMMETRIES if augment else 1
    borders = np.zeros(0, np.int64)
    if train_set.sets is not None:
        borders = np.flatnonzero(np.diff(train_set.sets)) + 1
    parts = []
    for first, end in pairwise([0, *borders.tolist(), len(train_set)]):
        rows = range(first, end)
        digest = _digest(train_set.patches, rows)
        about = {"teacher": weights_of(describe), "patches": digest, "symmetries": symmetries}
        path = cache.path(about, ".npy", describe.name)
        if not _is_there(path):
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                lock = FolderLock(path.parent, f"{path.name}.lock")
                while not lock.take(_PATIENCE):
                    pass
                try:
                    if not _is_there(path):  # another process may have been faster
                        _compute(describe, train_set.patches, rows, symmetries, path, progress)
                finally:
                    lock.remove()
                    lock.release()
            except OSError as error:
                raise cache.unwritable(error) from error
        parts.append(load_array(path))
    return TeacherOutputs(parts)


def _is_there(path: Path) -> bool:
    with suppress(OSError, ValueError):  # ValueError: it is damaged
        return len(load_array(path)) > 0
    return False


def _compute(
    describe: Descriptor,
    patches: Patches,
    rows: range,
    symmetries: int,
    path: Path,
    progress: Steps,
) -> None:
    """Write the file block by block under another name; the last block found is computed again."""
    growing = path.with_suffix(".growing")
    shape = (len(rows), symmetries, describe.dim)
    with growing.open("ab") as file:
        if not file.tell():
            header = {"descr": "|i1", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
    with growing.open("r+b") as file:
        np.lib.format.read_magic(file)
        np.lib.format.read_array_header_1_0(file)
        start, size = file.tell(), symmetries * describe.dim
        written = (os.fstat(file.fileno()).st_size - start) // size
        done = max(0, written // BLOCK - 1) * BLOCK
        file.seek(start + done * size)
        file.truncate()
        while done < len(rows):
            progress(rows.start + done, len(patches))
            first = rows.start + done
            block = np.asarray(patches[first : min(first + BLOCK, rows.stop)])
            views = [Flips.alike(len(block), number)(block) for number in range(symmetries)]
            vectors = np.stack([describe(view) for view in views], axis=1)
            if not np.isfinite(vectors).all():
                raise HardnetError(f"teacher: {describe.name} gives numbers that are not finite")
            file.write(to_bytes(vectors.reshape(-1, describe.dim)).tobytes())
            file.flush()
            os.fsync(file.fileno())
            done += len(block)
        progress(rows.stop, len(patches))
    growing.replace(path)


def _digest(patches: Patches, rows: range) -> str:
    """SHA-256 of the patches themselves: a set may be renamed, or be made by a program."""
    digest = hashlib.sha256(f"{len(rows)} {patches.shape[1:]}".encode())
    for start in range(rows.start, rows.stop, _DIGEST_BLOCK):
        block = patches[start : min(start + _DIGEST_BLOCK, rows.stop)]
        digest.update(np.ascontiguousarray(block, np.uint8).data)
    return digest.hexdigest()
