"""What training and patch benchmarks consume: patches and the 3D point each one shows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hardnet.cache import Cache, files_state, load_array, save_array

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all) while a set is decoded."""


class Patches(Protocol):
    """(N, S, S) uint8, read by index: an array, a memory map, or several of them joined."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, S, S)."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: Any, /) -> NDArray[np.uint8]:
        """Patches by number, slice, index array or mask, as of an array."""
        ...


@dataclass(frozen=True)
class PatchSet:
    """Patches with point ids, and optionally a list of test pairs.

    Attributes:
        name: shown in logs and results.
        patches: (N, S, S) uint8, usually memory-mapped.
        points: (N,) int64, the 3D point of each patch.
        pairs: (M, 2) int64 patch indices of the test pairs; (0, 2) where the set has none.
        sets: (N,) int64, which set of a union each patch is of; None where there is one set only.
        images: (N,) int64, the image each patch was cut from; None where that is not known.
    """

    name: str
    patches: Patches
    points: NDArray[np.int64]
    pairs: NDArray[np.int64]
    sets: NDArray[np.int64] | None = None
    images: NDArray[np.int64] | None = None

    @property
    def pair_labels(self) -> NDArray[np.bool_]:
        """(M,) whether the two patches of a test pair show the same point."""
        return np.asarray(self.points[self.pairs[:, 0]] == self.points[self.pairs[:, 1]])

    def __len__(self) -> int:
        return len(self.points)


def set_cache(folder: Path) -> Cache:
    """Where the decoded arrays of a set are kept: with the user, never in the set itself."""
    resolved = folder.resolve()
    place = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    return Cache(f"sets/{resolved.name}-{place}")


def decoded(
    folder: Path, label: str, files: Sequence[Path], read: Callable[[], NDArray[Any]]
) -> NDArray[Any]:
    """An array that is slow to read from a set: read once, mapped into memory later.

    Args:
        folder: the set.
        label: what the array is, e.g. ``points``.
        files: it is read from these; if one of them changes, it is read again.
        read: gives the array.
    """
    about = {"files": files_state(files)}
    return set_cache(folder).get(about, read, save_array, load_array, ".npy", label, alone=True)


def decoded_patches(
    folder: Path,
    label: str,
    files: Sequence[Path],
    shape: tuple[int, int, int],
    blocks: Callable[[], Iterable[NDArray[np.uint8]]],
) -> NDArray[np.uint8]:
    """The same for (N, S, S) patches that are read block by block: they may exceed the memory."""

    def save(path: Path, parts: Iterable[NDArray[np.uint8]]) -> None:
        # Written, not mapped: a full disk is an error here, but kills a process that maps the file.
        header = {"descr": "|u1", "fortran_order": False, "shape": shape}
        with path.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for part in parts:
                stream.write(np.ascontiguousarray(part, np.uint8).data)

    about = {"files": files_state(files)}
    return set_cache(folder).get(about, blocks, save, load_array, ".npy", label, alone=True)
