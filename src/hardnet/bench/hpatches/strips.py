"""Descriptors of all strips of a split, by number, checked once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.hpatches.drawing import Rows
from hardnet.bench.hpatches.tasks import Tasks, tag
from hardnet.errors import HardnetError
from hardnet.patchsets.hpatches import TARGETS

Lookup = Callable[[str, str], NDArray[Any]]
"""(sequence, strip) -> (N, D) descriptors."""
Progress = Callable[[str, int, int], None]
"""Called with (what, steps done, steps in all)."""


KEPT = 256
"""Strips held open: each may be a mapped file, and a system allows only so many of them."""


class Strips:
    """The strips of the test sequences at one noise level; those last used are kept."""

    def __init__(self, lookup: Lookup, tasks: Tasks, noise: str) -> None:
        self._lookup, self._tasks, self._noise = lookup, tasks, noise
        self._kept: OrderedDict[tuple[int, int], NDArray[Any]] = OrderedDict()

    def get(self, sequence: int, image: int) -> NDArray[Any]:
        """(N, D) descriptors of an image (0 is the reference) of a sequence."""
        if (sequence, image) not in self._kept:
            name, strip = self._tasks.names[sequence], tag(image, self._noise)
            found = self._lookup(name, strip)
            count = self._tasks.counts[sequence]
            if found.ndim != 2 or len(found) != count:
                raise HardnetError(
                    f"{name}/{strip}: expected descriptors of {count} patches, "
                    f"got an array of shape {found.shape}"
                )
            self._kept[sequence, image] = found
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end((sequence, image))
        return self._kept[sequence, image]

    def gather(self, patches: Rows) -> NDArray[Any]:
        """Descriptors of patches anywhere in the split: (P, 3) s, t, idx -> (P, D)."""
        strip = patches[:, 0] * (TARGETS + 1) + patches[:, 1]
        order = np.argsort(strip, kind="stable")
        first = np.flatnonzero(np.diff(strip[order], prepend=-1))
        example = self.get(int(patches[0, 0]), int(patches[0, 1]))
        out = np.empty((len(patches), example.shape[1]), example.dtype)
        for members in np.split(order, first[1:]):
            sequence, image, _ = patches[members[0]].tolist()
            descriptors = self.get(sequence, image)
            if descriptors.shape[1] != out.shape[1] or descriptors.dtype != out.dtype:
                raise HardnetError(
                    f"{self._tasks.names[sequence]}/{tag(image, self._noise)} has descriptors of "
                    f"{descriptors.shape[1]} {descriptors.dtype}, others of {out.shape[1]} "
                    f"{out.dtype}: they cannot be compared"
                )
            out[members] = descriptors[patches[members, 2]]
        return out
