"""Where a number comes from, and the one cache of what takes long to compute.

Every ``results/*.json`` carries the machine, library versions, the revision and the digest of the
data, so that a number can be judged and repeated. Entries of the cache are named by the same facts.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar
from zipfile import BadZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from hardnet.errors import HardnetError
from hardnet.image_files import as_path, file_digest, file_state
from hardnet.storage import MARKER, replacing
from hardnet.threads import usable_cores

T = TypeVar("T")
V = TypeVar("V")

PACKAGES = (
    *("hardnet", "numpy", "opencv-python-headless", "opencv-contrib-python-headless"),
    *("onnxruntime", "torch", "lightning-fabric", "faiss-cpu", "numba", "ray", "asmk", "kornia"),
    *("pycolmap", "scikit-image"),
)
"""The distributions whose versions can change a number."""

PIPELINE = ("numpy", "opencv-python-headless", "opencv-contrib-python-headless", "pydegensac")
"""Those whose versions can change what is found and matched in an image."""

CPU_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")


def collect(
    command: str, settings: Mapping[str, Any], data: Iterable[Path | str] = ()
) -> dict[str, Any]:
    """The facts that belong next to a result, as JSON values.

    ``command`` repeats it, ``settings`` are all that was chosen. Of the files and folders ``data``
    that were read only the digest and the count are kept, no paths.
    """
    parts = [data_digest(path) for path in data]
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode()).hexdigest()
    return {
        "command": command,
        "settings": dict(settings),
        "data": {"sha256": digest, "files": sum(p.files for p in parts)} if parts else None,
        "machine": machine(),
        "versions": versions(),
        "revision": revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def command_line() -> str:
    """The command that is running, without the folders of this machine."""
    return shlex.join(["hardnet", *(without_folders(word) for word in sys.argv[1:])])


def without_folders(word: str) -> str:
    """A word of a command; of paths that lead out of this folder only the last part.

    Those are absolute or climb, as in "x=[/a/b,../c/d]".
    """
    return re.sub(r"(?:^|(?<=[=\[,]))(?:/|\.\./)[^,\]]+", lambda path: Path(path[0]).name, word)


def machine() -> dict[str, Any]:
    """CPU model, its vector extensions, usable cores, memory, load, operating system."""
    cpu: dict[str, str] = {}
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            cpu.setdefault(key.strip(), value.strip())
    memory = None
    with suppress(ValueError, OSError, AttributeError):
        memory = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cpu_flags": [flag for flag in CPU_FLAGS if flag in cpu.get("flags", "").split()],
        "cores": usable_cores(),
        "memory_gb": memory,
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Installed versions of ``packages``; those that are not installed are left out."""
    found: dict[str, str] = {}
    for name in packages:
        with suppress(metadata.PackageNotFoundError):
            found[name] = _version(name)
    return found


@cache
def _version(package: str) -> str:
    return metadata.version(package)


@cache
def revision() -> str | None:
    """The git revision of the checkout this package was started from; "+": with changes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(Path(__file__).parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        head = git("rev-parse", "--short=12", "HEAD")
        return head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


SETTLED = 2_000_000_000
"""Nanoseconds. A file that changes twice within the grain of the clock keeps its time, so digests
of younger files are not remembered."""

CACHE = "cache"
"""A folder in which earlier versions kept the decoded arrays of a set; not a part of the set."""


@dataclass(frozen=True)
class DataDigest:
    """SHA-256 of the names and contents of files, as hex, and how many files there are."""

    sha256: str
    files: int


def data_digest(path: str | Path) -> DataDigest:
    """SHA-256 over names and contents of all files of a folder, or of one file.

    Names are relative to the folder, so a copy elsewhere has the same digest; see :func:`members`.
    Hashing a large set takes minutes, so the digest of each file is remembered in the user's cache
    while the file's size and times are the same.
    """
    path = as_path(path)
    if not path.exists():
        raise HardnetError(f"{path} does not exist: check the path")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    memo_file = user_cache() / "digests" / f"{path.resolve().name}-{place}.json"
    known: Any = {}
    with suppress(OSError, ValueError):  # absent or cut short: hash again
        known = json.loads(memo_file.read_text())
    known = known if isinstance(known, dict) else {}
    memo: dict[str, list[int | str]] = {}
    total, count, now = hashlib.sha256(), 0, time.time_ns()
    for name, file in members(path):
        entry, seen = known.get(name), [*file_state(file)[1:]]
        digest = str(entry[3]) if entry and entry[:3] == seen else file_digest(file)
        if now - seen[-1] > SETTLED:
            memo[name] = [*seen, digest]
        total.update(f"{name}\0{digest}\0".encode())
        count += 1
    if memo != known:
        with suppress(OSError):  # without a memory it only takes longer the next time
            memo_file.parent.mkdir(parents=True, exist_ok=True)
            with replacing(memo_file) as part:
                part.write_text(json.dumps(memo))
    return DataDigest(total.hexdigest(), count)


def members(path: Path) -> Iterator[tuple[str, Path]]:
    """(name, file) of all files of a folder, or of one file, in the order of names.

    Linked folders count; a folder ``cache`` of a set, unfinished ``*.part`` files and folders, and
    our list of files do not.
    """
    if path.is_file():
        yield path.name, path
        return
    found = []
    for folder, folders, files in os.walk(path, followlinks=True):
        here = Path(folder)
        skip = {CACHE} if here == path else set()
        folders[:] = [f for f in folders if f not in skip and not f.endswith(".part")]
        for name in files:
            if not name.endswith(".part") and name != MARKER:
                found.append(((here / name).relative_to(path).as_posix(), here / name))
    yield from sorted(found)


SIDES = (32, 64, 65)
"""Patches as the networks read them, and as the Brown and HPatches sets have them."""

_PROBES = 32
_SUMS = 8
_STEP = 1e-3  # of the root mean square of a value


def descriptor_digest(descriptor: Callable[[Any], NDArray[Any]]) -> str:
    """64 hexadecimal digits that tell descriptors apart by their vectors, not by their names.

    They join what the descriptor is (its ``weights``: the content of its weights or source files,
    or the version of the library that computes it), the version of this package, and what it does
    to fixed patches of each usual size. Only the last notices a function that reads its weights
    from another file, or another version of a library below.
    """
    kind = type(descriptor)
    content = {
        "weights": getattr(descriptor, "weights", f"{kind.__module__}.{kind.__qualname__}"),
        "version": _version("hardnet"),
        "behaviour": [behaviour(descriptor(probe_patches(side))) for side in SIDES],
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def behaviour(rows: NDArray[Any]) -> list[int | str]:
    """What (N, D) descriptors look like, the same for all roundings: shape, type, a few numbers.

    Floats differ in the last digits with threads and processors, and of thousands some would always
    cross a step. So only a few sums are rounded: a change of all values by 0.1% shows in these.
    """
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


def probe_patches(side: int = SIDES[-1]) -> NDArray[np.uint8]:
    """(32, S, S) uint8: random squares of five sizes and four contrasts, and a flat patch.

    They are the same bytes on every machine: numpy's old generator of random numbers is frozen.
    """
    rng = np.random.RandomState(0)
    patches = np.full((_PROBES, side, side), 100, np.uint8)
    for k in range(_PROBES - 1):
        width, levels = 1 << k % 5, 256 >> k % 4
        squares = rng.randint(0, levels, (side // width + 1,) * 2)
        patches[k] = squares.repeat(width, 0).repeat(width, 1)[:side, :side]
    return patches


def user_cache() -> Path:
    """The user's cache folder, which need not exist.

    It is ``HARDNET_CACHE``, else ``hardnet`` in ``XDG_CACHE_HOME`` or in ~/.cache.
    """
    if named := os.environ.get("HARDNET_CACHE"):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hardnet"


def files_state(files: Iterable[Path]) -> str:
    """Names, sizes and times of ``files`` as 12 letters: changes when one of them does."""
    states = (fact for path in files for fact in (path.name, *file_state(path)[1:]))
    return hashlib.sha256("".join(f"{fact}\0" for fact in states).encode()).hexdigest()[:12]


class Cache:
    """What takes long to compute, kept on disk; all of it may be deleted at any time.

    An entry is named by a digest of what it depends on: the version of this package, the settings,
    and the digests of data and weights. It is complete or absent, however many processes write it.
    """

    def __init__(self, kind: str, folder: Path | str | None = None) -> None:
        self.folder = (user_cache() if folder is None else as_path(folder)) / kind

    def path(self, about: Mapping[str, Any], suffix: str = "", label: str = "") -> Path:
        """Where an entry is, or would be; a ``label`` begins its name, for people."""
        facts = json.dumps({"version": _version("hardnet"), **about}, sort_keys=True)
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
        if it is damaged; an entry that is ``alone`` replaces all others of its label.
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

        def save(path: Path, value: T) -> None:
            path.write_text(json.dumps(value))

        def load(path: Path) -> T:
            value: T = json.loads(path.read_text())
            return value

        return self.get(about, make, save, load, ".json")

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
