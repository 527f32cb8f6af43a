"""Patches of several sets behind one index, left where they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.patchsets.patchset import Patches


class JoinedPatches:
    """The patches of ``parts``, one after the other, without a copy of them.

    What is asked for is copied, as indexing an array by an array does; the parts stay mapped into
    memory, so a union may be larger than memory.

    Args:
        parts: (N_k, S, S) uint8 each, all of the same side.
    """

    def __init__(self, parts: Sequence[Patches]) -> None:
        self._parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, S, S)."""
        return (len(self), *self._parts[0].shape[1:])

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: Any) -> NDArray[np.uint8]:
        """(S, S) for a number; (n, S, S) for a slice, an index array (n,) or a mask (N,)."""
        rows = np.asarray(np.arange(len(self))[index] if isinstance(index, slice) else index)
        if rows.dtype == bool:
            if rows.shape != (len(self),):
                raise IndexError(f"a mask of shape {rows.shape} for {len(self)} patches")
            rows = np.flatnonzero(rows)
        rows = self._checked(rows)
        part = np.searchsorted(self._starts, rows, side="right") - 1
        if rows.ndim == 0:
            return self._parts[int(part)][int(rows - self._starts[part])]
        out = np.empty((*rows.shape, *self.shape[1:]), np.uint8)
        for k in np.unique(part):
            here = part == k
            out[here] = self._parts[k][rows[here] - self._starts[k]]
        return out

    def _checked(self, rows: NDArray[Any]) -> NDArray[np.int64]:
        """Numbers from 0; negative ones count from the end."""
        if rows.size and not np.issubdtype(rows.dtype, np.integer):
            raise IndexError(f"patches are indexed by whole numbers, not by {rows.dtype}")
        wrong = rows[(rows < -len(self)) | (rows >= len(self))]
        if wrong.size:
            raise IndexError(f"no patch {wrong.flat[0]}: there are {len(self)}")
        return np.where(rows < 0, rows + len(self), rows).astype(np.int64)
