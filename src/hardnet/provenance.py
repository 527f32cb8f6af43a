"""Where a number comes from: the machine, library versions, the revision, data and descriptors.

Every ``results/*.json`` carries this block, so that a number can be judged and repeated.
"""

from __future__ import annotations

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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardnet.cache import user_cache
from hardnet.errors import HardnetError
from hardnet.storage import MARKER, as_path, file_digest, replacing
from hardnet.threads import usable_cores

PACKAGES = (
    *("hardnet", "numpy", "opencv-python-headless", "opencv-contrib-python-headless"),
    *("onnxruntime", "torch", "lightning-fabric", "faiss-cpu", "numba", "ray", "asmk", "kornia"),
    *("pycolmap", "scikit-image"),
)
"""The distributions whose versions can change a number."""

PIPELINE = ("numpy", "opencv-python-headless", "opencv-contrib-python-headless", "pydegensac")
"""Those whose versions can change what is found and matched in an image."""


def collect(
    command: str, settings: Mapping[str, Any], data: Iterable[Path | str] = ()
) -> dict[str, Any]:
    """The facts that belong next to a result, as JSON values.

    ``command`` repeats it, ``settings`` are all that was chosen. Of the files and folders ``data``
    that were read only the digest and the count are kept, no paths.
    """
    paths = [Path(p) for p in data]
    return {
        "command": command,
        "settings": dict(settings),
        "data": digest_of(paths) if paths else None,
        "machine": machine(),
        "versions": versions(),
        "revision": revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def command_line() -> str:
    """The command that is running, without the folders of this machine."""
    return shlex.join(["hardnet", *(without_folders(word) for word in sys.argv[1:])])


def without_folders(word: str) -> str:
    """A word of a command with only the last part of each path that leads out of this folder.

    Those are absolute or climb, as in "x=[/a/b,../c/d]".
    """
    return re.sub(r"(?:^|(?<=[=\[,]))(?:/|\.\./)[^,\]]+", lambda path: Path(path[0]).name, word)


def machine() -> dict[str, Any]:
    """CPU model, its vector extensions, usable cores, memory, load, operating system."""
    return {
        "cpu": _cpu_field("model name") or platform.processor() or platform.machine(),
        "cpu_flags": [
            flag
            for flag in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8")
            if flag in _cpu_field("flags").split()
        ],
        "cores": usable_cores(),
        "memory_gb": _memory_gb(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }


def versions(packages: Iterable[str] = PACKAGES) -> dict[str, str]:
    """Installed versions of ``packages``; those that are not installed are left out."""
    found = {name: _version(name) for name in packages}
    return {name: version for name, version in found.items() if version is not None}


@cache
def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@cache
def revision() -> str | None:
    """The git revision of the checkout this package was started from; "+": with changes."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def digest_of(paths: Iterable[Path | str]) -> dict[str, Any]:
    """One SHA-256 over the names and contents of files and folders, in the order given."""
    parts = [data_digest(path) for path in paths]
    digest = hashlib.sha256("".join(part.sha256 for part in parts).encode())
    return {"sha256": digest.hexdigest(), "files": sum(part.files for part in parts)}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (ValueError, OSError, AttributeError):
        return None


def _cpu_field(name: str) -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""


SETTLED = 2_000_000_000
"""Nanoseconds: a file changed twice within the grain of the clock keeps its time, so the digest of
a younger file is not remembered."""

CACHE = "cache"
"""A folder of this name in a set does not belong to it: earlier versions kept decoded arrays
there."""


@dataclass(frozen=True)
class DataDigest:
    """SHA-256 of the names and contents of files, as hex, and how many files there are."""

    sha256: str
    files: int


def data_digest(path: str | Path) -> DataDigest:
    """SHA-256 over names and contents of all files of a folder, or of one file.

    Names are relative to the folder, so a copy elsewhere has the same digest. A folder ``cache`` of
    a set, unfinished ``*.part`` files and folders and our list of files do not count. Hashing a
    large set takes minutes, so the digest of each file is remembered in the user's cache while the
    file's size and times are the same.
    """
    path = as_path(path)
    if not path.exists():
        raise HardnetError(f"{path} does not exist: check the path")
    place = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]
    memo_file = user_cache() / "digests" / f"{path.resolve().name}-{place}.json"
    known = _read_memo(memo_file)
    memo: dict[str, list[int | str]] = {}
    total, count, now = hashlib.sha256(), 0, time.time_ns()
    for name, file in members(path):
        facts = file.stat()
        entry = known.get(name)
        # ctime too: a file copied over another with its date kept has a new one.
        seen = [facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns]
        digest = str(entry[3]) if entry and entry[:3] == seen else file_digest(file)
        if now - facts.st_ctime_ns > SETTLED:
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
    """(name, file) in the order of names; linked folders belong to a set as others do."""
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


def _read_memo(path: Path) -> dict[str, list[int | str]]:
    try:
        memo = json.loads(path.read_text())
    except (OSError, ValueError):  # absent or cut short: hash again
        return {}
    return memo if isinstance(memo, dict) else {}


SIDES = (32, 64, 65)
"""Patches as the networks read them and as the Brown and HPatches sets have them: resizing is a
part of a descriptor, too."""

_PROBES = 32
_SUMS = 8
_STEP = 1e-3  # of the root mean square of a value


def descriptor_digest(descriptor: Callable[[Any], NDArray[Any]]) -> str:
    """64 hexadecimal digits that differ for descriptors that give other vectors.

    They join what the descriptor is (its ``weights``: the content of its weights or source files,
    or the version of the library that computes it), the version of this package, and what it does
    to a few fixed patches of each usual size. The last notices what the others cannot: a function
    that reads its weights from another file, another version of a library below. Neither the name
    of the descriptor nor that of its file matters.
    """
    kind = type(descriptor)
    content = {
        "weights": getattr(descriptor, "weights", f"{kind.__module__}.{kind.__qualname__}"),
        "version": metadata.version("hardnet"),
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
    """(32, S, S) uint8: gradients, blobs, edges, checks, noise, from full contrast to none.

    They are the same bytes on every machine: whole numbers, the four operations, and numpy's frozen
    generator of random numbers.
    """
    rng = np.random.RandomState(0)
    y, x = np.mgrid[0:side, 0:side] - side // 2
    patches: list[NDArray[np.float64]] = []
    for k in range(_PROBES - 3):
        dx, dy, cx, cy, width = rng.randint((-9, -9, -20, -20, 4), (10, 10, 21, 21, 20)).tolist()
        along = x * dx + y * dy
        shape = (
            128 + along / 5.0,
            40 + 180 / (1 + ((x - cx) ** 2 + (y - cy) ** 2) / width**2),
            np.where(along > 10 * cx, 200, 60),
            np.where(((x + cx) // width + (y + cy) // width) % 2 == 0, 90, 170),
        )[k % 4]
        patches.append(shape + rng.randint(-12 * (k % 3), 12 * (k % 3) + 1, shape.shape))
    patches.append(np.where(3 * x + y > 5, 255.0, 0.0))
    patches.append(np.where((x // 8 + y // 8) % 2 == 0, 255.0, 0.0))
    patches.append(np.full((side, side), 100.0))
    return np.clip(np.round(np.stack(patches)), 0, 255).astype(np.uint8)
