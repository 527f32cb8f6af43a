"""Write pairs of patch strips in the W1BS layout; see :mod:`hardnet.patchsets.w1bs`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hardnet.patchsets.hpatches_writer import write_strip
from hardnet.storage import claim


def write_pair(
    folder: Path, subset: str, name: str, first: NDArray[np.uint8], second: NDArray[np.uint8]
) -> None:
    """Write ``SUBSET/1/NAME.bmp`` and ``SUBSET/2/NAME.bmp``: row i of both shows the same spot.

    Args:
        folder: the set.
        subset: what differs between the two photos, such as "viewpoint".
        name: of the pair.
        first: (N, S, S).
        second: (N, S, S).
    """
    if first.shape != second.shape:
        raise ValueError(f"{name}: {first.shape} and {second.shape} patches")
    for side, patches in (("1", first), ("2", second)):
        path = folder / subset / side / f"{name}.bmp"
        claim(path)  # before its folder is made
        path.parent.mkdir(parents=True, exist_ok=True)
        write_strip(path, patches)
