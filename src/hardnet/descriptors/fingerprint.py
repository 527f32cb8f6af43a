"""Which descriptor made these values? Descriptors that differ have different fingerprints.

A fingerprint joins what the descriptor is (its ``identity``: the content of its weights or source
files, or the version of the library that computes it), the source of this package around it, and
what it does to a few fixed patches of each usual size. The last part notices what the others
cannot: a function that reads weights from another file, another version of a library below. What
none of them can see is a change outside the source that spares all the fixed patches.

Float values differ in the last digits with the number of threads and the kind of processor, and
rounding each of thousands would always find some that cross a step. So only a few sums over all of
them are rounded: a change of all values by 0.1% shows in these, a change in the last digits does
not.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.descriptors.base import Descriptor
from hardnet.descriptors.probes import SIDES, probe_patches

_SUMS = 8
_STEP = 1e-3  # of the root mean square of a value


def fingerprint(descriptor: Descriptor) -> str:
    """64 hexadecimal digits; neither the name of the descriptor nor of its file matters."""
    kind = type(descriptor)
    identity = getattr(descriptor, "identity", f"{kind.__module__}.{kind.__qualname__}")
    content = {
        "identity": identity,
        "package": _package(),
        "behaviour": [behaviour(descriptor(probe_patches(side))) for side in SIDES],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def _package() -> str:
    """Digest of the code here and of the networks: preparing patches is half of a descriptor."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for folder in (here, here.parent / "nets"):
        for source in sorted(folder.glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()


def behaviour(rows: NDArray[Any]) -> list[int | str]:
    """What (N, D) descriptors look like, the same for all roundings: shape, type, a few numbers."""
    head: list[int | str] = [*rows.shape, str(rows.dtype)]
    if rows.dtype == np.uint8:
        return [*head, hashlib.sha256(rows.tobytes()).hexdigest()]
    values = rows.astype(np.float64).ravel()
    signs = np.random.RandomState(1).randint(0, 2, (_SUMS, len(values))) * 2 - 1
    size = float(np.sqrt(np.mean(values**2))) or 1.0
    # Its logarithm in the same steps, so that scaling all vectors shows as well.
    scale = round(np.log(size) / _STEP)
    sums = (signs @ values) / (np.sqrt(len(values)) * size)
    return [*head, scale, *np.round(sums / _STEP).astype(int).tolist()]


def file_digest(path: Path | str) -> str:
    """sha256 of a file's content, which is what a weights file is."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
