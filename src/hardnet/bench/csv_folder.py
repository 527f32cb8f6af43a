"""Descriptors as the HPatches benchmark exchanges them: ``ROOT/SEQUENCE/STRIP.csv``.

One row per patch, numbers separated by commas (or semicolons), no header line. Most published
descriptors exist in this form, so a folder of such files can stand for a descriptor; and what is
written here can be read by the benchmark's own code.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.bench.rows_file import allow_many_maps
from hardnet.errors import HardnetError
from hardnet.patchsets.cache import cached, set_name, state
from hardnet.storage import as_path, replacing


class CsvFolder:
    """A folder of CSV files in the place of a descriptor.

    Files are parsed once (30 ms for 1300 patches of 128 numbers) and mapped from a cache later.

    Args:
        folder: with a subfolder per sequence.

    Raises:
        HardnetError: there is no such folder.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = as_path(folder)
        if not self.folder.is_dir():
            raise HardnetError(f"no folder {self.folder} of descriptors, SEQUENCE/STRIP.csv")
        self.name = set_name(self.folder)
        self._first: tuple[Path, int] | None = None
        allow_many_maps()

    def get(self, sequence: str, tag: str, count: int | None = None) -> NDArray[np.float32]:
        """Descriptors of one strip.

        Args:
            sequence: name of the subfolder.
            tag: the strip: "ref", "e1", ...
            count: patches of the strip; None if it is not known.

        Returns:
            (count, D) float32 of any length, read-only.

        Raises:
            HardnetError: a missing file, or one that is not (count, D) finite numbers.
        """
        path = self.folder / sequence / f"{tag}.csv"
        if not path.is_file():
            raise HardnetError(f"there is no {path}; it should have a row per patch of the strip")
        rows = cached(
            self.folder,
            f"{sequence}.{tag}",
            state([path]),
            lambda part: _save(part, read_csv(path)),
        )
        if count is not None and len(rows) != count:
            raise HardnetError(f"{path} has {len(rows)} rows, but the strip has {count} patches")
        first = self._first = self._first or (path, rows.shape[1])
        if rows.shape[1] != first[1]:
            raise HardnetError(
                f"{path} has {rows.shape[1]} numbers per row, but {first[0]} has {first[1]}"
            )
        return rows


def read_csv(path: Path) -> NDArray[np.float32]:
    """(N, D) numbers of one file.

    Raises:
        HardnetError: rows of different lengths, or something that is not a finite number.
    """
    try:
        with path.open(encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            if not first.strip():
                raise HardnetError(f"{path} is empty, or starts with an empty line")
            separator = ";" if ";" in first else ","
            rows = np.loadtxt(file, dtype=np.float32, comments=None, delimiter=separator, ndmin=2)
    except ValueError as error:
        reason = str(error).split(";")[0].rstrip(".")
        raise HardnetError(
            f"{path} is not rows of equally many numbers, separated by commas: {reason}"
        ) from error
    except OSError as error:
        raise HardnetError(f"{path} cannot be read: {error.strerror}") from error
    bad = ~np.isfinite(rows).all(1)
    if bad.any():
        raise HardnetError(f"{path} has NaN or infinity in row {int(np.argmax(bad)) + 1}")
    return rows


def write_csv(folder: Path | str, sequence: str, tag: str, descriptors: NDArray[Any]) -> Path:
    """Write the descriptors of one strip.

    Float vectors are written with as many digits as float32 has, so that reading gives the same
    numbers. Packed bits are written as 0 and 1: their L2 distance has the order of the Hamming
    distance.

    Args:
        folder: the root; it is made if absent.
        sequence: name of the subfolder.
        tag: the strip: "ref", "e1", ...
        descriptors: (N, D) float32, or (N, B) uint8 packed bits.

    Returns:
        The path of the file, which is complete or absent.
    """
    path = Path(folder) / sequence / f"{tag}.csv"
    if descriptors.ndim != 2:
        raise HardnetError(f"{path}: descriptors must be (N, D), got {descriptors.shape}")
    bits = descriptors.dtype == np.uint8
    rows = np.unpackbits(descriptors, axis=1) if bits else descriptors.astype(np.float32)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            np.savetxt(part, rows, "%d" if bits else "%.9g", ",")
    except OSError as error:
        raise HardnetError(f"{path} cannot be written: {error.strerror}") from error
    return path


def _save(path: Path, rows: NDArray[np.float32]) -> None:
    with path.open("wb") as file:  # np.save would add .npy to the name
        np.save(file, rows)
