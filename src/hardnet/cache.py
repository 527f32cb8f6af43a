"""The one cache: what takes long to compute, kept on disk."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.storage import as_path, replacing

T = TypeVar("T")
V = TypeVar("V")


def user_cache() -> Path:
    """The user's cache folder, which need not exist.

    It is ``HARDNET_CACHE``, else ``hardnet`` in ``XDG_CACHE_HOME`` or in ~/.cache.
    """
    if named := os.environ.get("HARDNET_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hardnet"


def files_state(files: Iterable[Path]) -> str:
    """Names, sizes and times of ``files`` as 12 letters: changes when one of them does.

    The time of the last change of any kind (ctime) counts too: a repaired file copied over another
    with its old date and the same size would pass for it.
    """
    digest = hashlib.sha256()
    for path in files:
        facts = path.stat()
        digest.update(f"{path.name}\0{facts.st_size}\0{facts.st_mtime_ns}\0".encode())
        digest.update(f"{facts.st_ctime_ns}\0".encode())
    return digest.hexdigest()[:12]


class Cache:
    """What takes long to compute, kept on disk; all of it may be deleted at any time.

    An entry is named by a digest of what it depends on: the version of this package, the settings,
    and the digests of data and weights, so an old value is never mistaken for a new one. It is
    complete or absent, however many processes write it at the same time.
    """

    def __init__(self, kind: str, folder: Path | str | None = None) -> None:
        self.folder = (user_cache() if folder is None else as_path(folder)) / kind

    def path(self, about: Mapping[str, Any], suffix: str = "", label: str = "") -> Path:
        """Where an entry is, or would be; a ``label`` begins its name, for people."""
        facts = json.dumps({"version": _version(), **about}, sort_keys=True)
        digest = hashlib.sha256(facts.encode()).hexdigest()[:24]
        return self.folder / f"{label}{'.' if label else ''}{digest}{suffix}"

    def get(
        self,
        about: Mapping[str, Any],
        make: Callable[[], T],
        save: Callable[[Path, T], object],
        load: Callable[[Path], V],
        suffix: str = "",
        label: str = "",
        alone: bool = False,
    ) -> V:
        """An entry, computed if it is absent or damaged.

        It depends on ``about``, JSON values. ``load`` reads what ``save`` has written, and raises
        if it is damaged; an entry that is ``alone`` takes the place of all others of its label.
        """
        path = self.path(about, suffix, label)
        with suppress(OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, HardnetError):
            return load(path)
        value = make()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(path) as part:
                save(part, value)
        except OSError as error:
            raise self.unwritable(error) from error
        if alone:
            names = re.compile(rf"{re.escape(label)}\.[0-9a-f]{{24}}{re.escape(suffix)}")
            for other in self.folder.iterdir():
                if other != path and names.fullmatch(other.name):
                    other.unlink(missing_ok=True)
        return load(path)

    def json(self, about: Mapping[str, Any], make: Callable[[], T]) -> T:
        """An entry of JSON values."""

        def load(path: Path) -> T:
            value: T = json.loads(path.read_text())
            return value

        return self.get(about, make, lambda path, v: path.write_text(json.dumps(v)), load, ".json")

    def array(
        self, about: Mapping[str, Any], make: Callable[[], NDArray[Any]], label: str = ""
    ) -> NDArray[Any]:
        """An entry that is an array, mapped from its file."""
        return self.get(about, make, save_array, load_array, ".npy", label)

    def unwritable(self, error: OSError) -> HardnetError:
        """A full or read-only disk, as something the user can help."""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            problem, advice = "is on a full disk", "make room, or choose"
        else:
            problem, advice = f"cannot be written ({error.strerror})", "choose"
        return HardnetError(
            f"the cache {self.folder} {problem}: {advice} another with --store or HARDNET_CACHE"
        )


def save_array(path: Path, array: NDArray[Any]) -> None:
    """Write an ``.npy`` file, whatever the path is called."""
    array = np.ascontiguousarray(array)
    with path.open("wb") as stream:  # np.save would not say why a disk refuses
        npy.write_array_header_1_0(stream, npy.header_data_from_array_1_0(array))
        stream.write(array.data)


def load_array(path: Path) -> NDArray[Any]:
    """An ``.npy`` file, mapped into memory, read-only."""
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    return array


@cache
def _version() -> str:
    return metadata.version("hardnet")
