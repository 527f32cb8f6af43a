"""The features of one image as named arrays and facts: what feature files hold of it.

The arrays are those of hloc, which is why descriptors lie on their side:

=============  ==========================================================================
keypoints      (N, 2) float32, x and y; the centre of the top-left pixel is (0, 0)
descriptors    (D, N) float32 or float16; or (B, N) uint8, packed bits
scores         (N,) float32
image_size     (2,) int64, width and height
frames         (N, 2, 3) float32, ours: without it only positions would be left
=============  ==========================================================================

The facts are single values: ``descriptor`` (its name), ``scale``, ``path`` (of the image, seen from
the folder of the file), and ``bytes`` and ``mtime_ns`` of the image when it was read.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.features import Features
from hardnet.frames import check_frames, from_similarity

SIGMA = 1.0
"""Pixels: the scale of keypoints from files that know positions only, as those of hloc."""

ARRAYS = ("keypoints", "descriptors", "scores", "image_size", "frames")
FACTS = ("descriptor", "scale", "path", "bytes", "mtime_ns")

Fact = str | int | float


@dataclass(frozen=True, eq=False)
class Entry:
    """What a file holds of one image."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Fact] = field(default_factory=dict)


def to_entry(
    features: Features,
    folder: Path,
    half: bool = False,
    state: Mapping[str, int] | None = None,
) -> Entry:
    """The entry of ``features`` in a file.

    Args:
        features: of one image.
        folder: of the file; the path of the image is kept relative to it, so that a project can
            be moved as a whole.
        half: descriptors as float16. They then agree with the original to three digits.
        state: of the image file, by :func:`state_of`, to notice later that it was changed.
    """
    descriptors = np.ascontiguousarray(features.descriptors.T)
    if half and descriptors.dtype != np.uint8:
        descriptors = descriptors.astype(np.float16)
    arrays: dict[str, NDArray[Any]] = {
        "keypoints": features.xy,
        "descriptors": descriptors,
        "scores": features.scores,
        "image_size": np.array(features.image_size, np.int64),
        "frames": features.frames,
    }
    facts: dict[str, Fact] = {"descriptor": features.descriptor, "scale": features.scale}
    if features.path is not None:
        facts["path"] = _relative(features.path, folder)
    return Entry(arrays, facts | dict(state or {}))


def from_entry(entry: Entry, folder: Path, where: str, descriptor: str) -> Features:
    """The features of an entry; the inverse of :func:`to_entry`.

    Args:
        entry: as read from a file.
        folder: of the file.
        where: what to call the entry in errors.
        descriptor: name of the descriptor if the entry does not say it.
    """
    arrays = entry.arrays
    for name in ("keypoints", "descriptors", "image_size"):
        if name not in arrays:
            raise HardnetError(f"{where} has no {name}: it does not hold local features")
    xy = arrays["keypoints"].astype(np.float32).reshape(-1, 2)
    vectors = np.ascontiguousarray(arrays["descriptors"].T)
    if vectors.dtype != np.uint8:
        vectors = vectors.astype(np.float32, copy=False)
    scores = arrays.get("scores", np.zeros(len(xy))).astype(np.float32, copy=False)
    try:
        frames = (
            check_frames(arrays["frames"]) if "frames" in arrays else from_similarity(xy, SIGMA)
        )
    except ValueError as error:
        raise HardnetError(f"{where} is damaged: {error}") from error
    if not len(xy) == len(frames) == len(vectors) == len(scores):
        counts = f"{len(xy)} keypoints, {len(frames)} frames, {len(vectors)} descriptors"
        raise HardnetError(f"{where} is damaged: {counts}, {len(scores)} scores")
    width, height = (int(side) for side in arrays["image_size"])
    return Features(
        frames=frames,
        scores=scores,
        descriptors=vectors,
        image_size=(width, height),
        descriptor=str(entry.facts.get("descriptor", descriptor)),
        scale=float(entry.facts.get("scale", 1.0)),
        path=_found(entry.facts.get("path"), folder),
    )


def state_of(image: Path) -> dict[str, int]:
    """Size and time of an image file: they change when it does."""
    facts = image.stat()
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def _relative(path: str, folder: Path) -> str:
    here = os.path.realpath(folder)
    try:
        return Path(os.path.relpath(os.path.abspath(path), here)).as_posix()
    except ValueError:  # Windows: another drive
        return Path(os.path.abspath(path)).as_posix()


def _found(path: Fact | None, folder: Path) -> str | None:
    """The image as seen from here; None if it is no longer there."""
    if path is None:
        return None
    here = os.path.normpath(os.path.join(os.path.realpath(folder), str(path)))
    return here if os.path.isfile(here) else None
