"""Where a number comes from: the machine, the library versions, the revision and the data.

Every ``results/*.json`` carries this block, so that a number can be judged and repeated.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from hardnet.patchsets.fingerprint import fingerprint_files
from hardnet.threads import usable_cores

PACKAGES = (
    "hardnet",
    "numpy",
    "opencv-python-headless",
    "opencv-contrib-python-headless",
    "onnxruntime",
    "torch",
    "lightning-fabric",
    "faiss-cpu",
    "numba",
    "ray",
    "asmk",
    "kornia",
    "pycolmap",
    "scikit-image",
)
"""The distributions whose versions can change a number."""


def collect(
    command: str, settings: Mapping[str, Any], data: Iterable[Path | str] = ()
) -> dict[str, Any]:
    """The facts that belong next to a result.

    Args:
        command: the command line that repeats it, e.g. ``"python benchmarks/describe.py"``.
        settings: everything that was chosen, as JSON values.
        data: files and folders that were read; only their fingerprint and count are kept, no paths.

    Returns:
        A dict of JSON values: command, settings, data, machine, versions, revision, date.
    """
    paths = [Path(p) for p in data]
    return {
        "command": command,
        "settings": dict(settings),
        "data": fingerprint(paths) if paths else None,
        "machine": machine(),
        "versions": versions(),
        "revision": revision(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def command_line() -> str:
    """The command that is running, without the folders of this machine."""
    return shlex.join(["hardnet", *(without_folders(word) for word in sys.argv[1:])])


def without_folders(word: str) -> str:
    """A word of a command with only the last part of each absolute path, as in "x=[/a/b,/c]"."""
    return re.sub(r"(?:^|(?<=[=\[,]))/[^,\]]+", lambda path: Path(path[0]).name, word)


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
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def revision() -> str | None:
    """The git revision of the checkout this package runs from; "+" marks uncommitted changes."""
    here = Path(__file__).parent
    head = _git(here, "rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return head + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")


def fingerprint(paths: Iterable[Path | str]) -> dict[str, Any]:
    """One SHA-256 over the names and contents of files and folders, in the order given.

    A copy of the data elsewhere has the same fingerprint.
    """
    parts = [fingerprint_files(path) for path in paths]
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
    """One field of the first processor in /proc/cpuinfo; empty where there is none."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return ""
