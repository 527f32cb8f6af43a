"""Where decoded patch sets are kept, and when they are still good.

A set that is slow to decode is decoded once into ``.npy`` files, which later calls map into
memory. The name of such a file carries the state of the files it was made from, so a changed set
is decoded again and never mistaken for the old one.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.storage import OwnedFolder, as_path, replacing

CACHE = "cache"
"""Name of the folder inside a set; readers and fingerprints pass over it."""

Progress = Callable[[int, int], None]
"""Called with (parts done, parts in all) while a cache is written."""


def user_cache() -> Path:
    """The user's cache folder: ``HARDNET_CACHE``, else ``hardnet`` in ``XDG_CACHE_HOME``, ~/.cache.

    It is named, not made.
    """
    if named := os.environ.get("HARDNET_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hardnet"


def set_name(folder: Path) -> str:
    """The name of a set is that of its folder, also when it is given as ``.`` or ``set/``."""
    return os.path.basename(os.path.abspath(folder))


def cache_folder(set_folder: str | Path) -> Path:
    """A folder that can be written for what is derived from a set; it is made if absent.

    Args:
        set_folder: the set; a single file has its folder in the user's cache.

    Returns:
        ``<set>/cache`` where that can be written, else a folder of the user's cache that belongs
        to the resolved path of the set.
    """
    set_folder = as_path(set_folder)
    # Root may write everywhere, but a folder without any write permission is to be left as it is.
    if set_folder.is_dir() and set_folder.stat().st_mode & 0o222 and _writable(set_folder / CACHE):
        return set_folder / CACHE
    resolved = set_folder.resolve()
    key = hashlib.sha256(str(resolved).encode()).hexdigest()[:12]
    folder = user_cache() / "sets" / f"{resolved.name}-{key}"
    if not _writable(folder):
        raise HardnetError(
            f"neither {set_folder} nor {folder} can be written: "
            "set HARDNET_CACHE to a folder for decoded patches"
        )
    return folder


def state(files: Iterable[Path]) -> str:
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


def cached(set_folder: Path, stem: str, key: str, write: Callable[[Path], None]) -> NDArray[Any]:
    """Map ``stem`` of the set's cache into memory; ``write`` makes it if it is absent or old.

    Args:
        set_folder: the set.
        stem: what the array is, e.g. ``patches-32``.
        key: the state of the files it is made from; arrays of the same stem and another key go.
        write: called with the path of a new ``.npy`` file.
    """
    folder = cache_folder(set_folder)
    path = folder / f"{stem}.{key}.npy"
    if not path.exists():
        owned = OwnedFolder.mark(folder)
        with replacing(owned.claim(path.relative_to(folder).as_posix()), owned) as part:
            write(part)
        for name in owned.names(".npy"):
            old = name.removeprefix(f"{stem}.").removesuffix(".npy")
            if name == f"{stem}.{old}.npy" and old != key and "." not in old:
                owned.remove(name)
    array: NDArray[Any] = np.load(path, mmap_mode="r")
    return array


def write_npy(path: Path, shape: tuple[int, ...], blocks: Iterable[NDArray[Any]]) -> None:
    """Write ``blocks`` of uint8, one after the other, as one ``.npy`` array of ``shape``.

    Written, not mapped: a full disk is an error here, but kills a process that maps the file.
    """
    header = {"descr": "|u1", "fortran_order": False, "shape": shape}
    try:
        with path.open("wb") as stream:
            np.lib.format.write_array_header_1_0(stream, header)
            for block in blocks:
                stream.write(np.ascontiguousarray(block, np.uint8).data)
    except OSError as error:  # of a write, it names no file
        raise HardnetError(
            f"{path.parent} cannot hold the decoded patches ({error.strerror}): make room, or set "
            "HARDNET_CACHE to another folder and make the set read-only"
        ) from error


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
