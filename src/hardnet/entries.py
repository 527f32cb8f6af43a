"""What a file holds of the features of one image: arrays and facts, checked when they are read."""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError, counted
from hardnet.frames import check_frames, from_similarity
from hardnet.image_files import require_regular_file
from hardnet.storage import OwnedFolder, replacing

SIGMA = 1.0
"""Pixels: the scale of keypoints from files that hold positions only, such as those of hloc."""

ARRAYS = ("keypoints", "descriptors", "scores", "image_size", "frames")
FACTS = ("descriptor", "weights", "scale", "orientation", "path", "bytes", "mtime_ns")
NPZ = ".npz"
Fact = str | int | float

NO_FEATURES = (
    *(ValueError, LookupError, TypeError, AttributeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What reading a file raises if it does not hold features."""

MAX_FILE_BYTES = 4 << 30
"""Limit for the arrays of one image: a header of a few bytes can claim any size."""


@dataclass(frozen=True, eq=False)
class Entry:
    """What a file holds of one image."""

    arrays: Mapping[str, NDArray[Any]]
    facts: Mapping[str, Fact] = field(default_factory=dict)


def write_entry(path: Path, entry: Entry, owned: OwnedFolder | None = None) -> None:
    """Write an npz file; raises OSError if the disk does not take it.

    ``owned`` is the folder that the file is in; see :func:`hardnet.storage.replacing`.
    """
    content: dict[str, Any] = {name: np.array(value) for name, value in entry.facts.items()}
    with replacing(path, owned) as part, part.open("wb") as stream:
        np.savez(stream, **content | dict(entry.arrays))


def read_entry(path: Path, names: tuple[str, ...] = ARRAYS + FACTS) -> Entry:
    """Read an npz file, or only what is called ``names``."""
    try:
        require_regular_file(path)
        if not zipfile.is_zipfile(path):  # numpy would advise loading it as a pickle: unsafe
            raise ValueError("it is not an npz file")
        with np.load(path, allow_pickle=False) as file:
            refuse_large(path, sum(entry.file_size for entry in file.zip.infolist()))
            found: dict[str, NDArray[Any]] = {n: file[n] for n in names if n in file}
        facts: dict[str, Fact] = {name: found.pop(name).item() for name in FACTS if name in found}
    except FileNotFoundError as error:
        raise HardnetError(f"{path} does not exist: check the path") from error
    except (OSError, MemoryError, EOFError, NotImplementedError, *NO_FEATURES) as error:
        raise HardnetError(
            f"{path} is damaged or holds no features of one image: {first_line(error)}"
        ) from error
    return Entry(found, facts)


def state_of(image: Path) -> dict[str, int]:
    """Size and time of an image file: they change when it does."""
    facts = image.stat()
    return {"bytes": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def refuse_large(path: str | os.PathLike[str], size: int) -> None:
    """Raise if the arrays of one image in a file would take more memory than any image needs."""
    if size > MAX_FILE_BYTES:
        raise HardnetError(f"{path} claims {size / 10**9:.0f} GB of features of one image")


def check_entry(entry: Entry, where: str) -> dict[str, Any]:
    """Fields of ``Features`` by their names; errors call the entry ``where``."""
    arrays = entry.arrays
    for name in ("keypoints", "descriptors", "image_size"):
        if name not in arrays:
            raise HardnetError(f"{where} has no {name}: it does not hold local features")
    try:
        for name, array in arrays.items():
            if name in ARRAYS and array.dtype.kind not in "fiu":
                raise ValueError(f"its {name} are no numbers, but {array.dtype}")
        if arrays["descriptors"].ndim != 2:
            raise ValueError(f"its descriptors have the shape {arrays['descriptors'].shape}")
        xy = arrays["keypoints"].astype(np.float32).reshape(-1, 2)
        vectors = np.ascontiguousarray(arrays["descriptors"].T)
        if vectors.dtype != np.uint8:
            vectors = vectors.astype(np.float32, copy=False)
        scores = arrays.get("scores", np.zeros(len(xy))).astype(np.float32, copy=False)
        given = arrays.get("frames")
        frames = from_similarity(xy, SIGMA) if given is None else check_frames(given)
        if scores.ndim != 1 or not np.isfinite(xy).all():
            raise ValueError("its keypoints have no place or no score")
        if vectors.dtype != np.uint8 and not np.isfinite(vectors).all():
            raise ValueError("its descriptors contain NaN or infinity")
        if not len(xy) == len(frames) == len(vectors) == len(scores):
            counts = (len(xy), "keypoint"), (len(frames), "frame"), (len(vectors), "descriptor")
            words = (counted(*one) for one in (*counts, (len(scores), "score")))
            raise ValueError(", ".join(words))
        width, height = (int(side) for side in arrays["image_size"])
        scale = float(entry.facts.get("scale", 1.0))
        if min(width, height) < 1 or not 0 < scale < float("inf"):
            raise ValueError(f"an image of {width}x{height} pixels at scale {scale}")
    except NO_FEATURES as error:
        raise HardnetError(f"{where} is damaged: {first_line(error)}") from error
    return {
        "frames": frames,
        "scores": scores,
        "descriptors": vectors,
        "image_size": (width, height),
        "scale": scale,
    }


def first_line(error: BaseException) -> str:
    """An error in one line."""
    return (str(error) or type(error).__name__).partition("\n")[0]
