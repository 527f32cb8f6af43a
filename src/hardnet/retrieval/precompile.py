"""Compile the kernels of a search before anybody waits for them.

numba compiles a kernel when it is first called and keeps it on disk, for this user, this CPU and
these versions. All together take longer than many searches, so the first ``hardnet index build``
on a computer has them compiled by another process while photos are described.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import cv2
import numpy as np

from hardnet import provenance
from hardnet.cache import Cache, files_state
from hardnet.retrieval.index import Index
from hardnet.retrieval.store.snapshot import Progress, silent

VARIABLE = "HARDNET_PRECOMPILE"
"""The environment variable that, if it is 0, leaves every kernel until it is needed."""

_WORDS = 300  # enough that words are searched as in a large collection


def is_done() -> bool:
    """Whether the kernels of this package were compiled by this user on this machine before."""
    return _mark().exists()


@contextmanager
def meanwhile(progress: Progress = silent) -> Iterator[None]:
    """Compile in another process while the caller works; in the end, wait until it is done.

    If the caller fails, nobody waits; the process goes on by itself.
    """
    process = start()
    yield
    if process is not None:
        progress("preparing searches, once on a computer", 0, 1)
        process.wait()


def start() -> subprocess.Popen[bytes] | None:
    """Compile in another process, which may outlive this one; None if that is not needed."""
    if os.environ.get(VARIABLE) == "0" or is_done():
        return None
    return subprocess.Popen(
        [sys.executable, "-m", "hardnet.retrieval.precompile"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is for the command, which continues when it is repeated
    )


def compile_all() -> None:
    """Build and search a small index: every kernel is called with the types it has in earnest."""
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        photos = [Path(folder) / f"{k}.png" for k in range(2)]
        for photo in photos:
            noise = random.integers(0, 256, (60, 80), np.uint8)
            cv2.imwrite(str(photo), cv2.resize(noise, None, fx=5, fy=5))
        index = Index.build(
            Path(folder) / "index", photos, words=_WORDS, descriptor="rootsift", keypoints=400
        )
        index.search(photos[0])
    note_done()


def note_done() -> None:
    """Remember that the kernels are compiled."""
    with suppress(OSError):  # a cache that cannot be written to is no reason to fail
        _mark().parent.mkdir(parents=True, exist_ok=True)
        _mark().touch()


def _mark() -> Path:
    sources = sorted(Path(__file__).parent.rglob("*.py"))  # numba drops a kernel with its source
    machine = provenance.machine()
    about = {
        "sources": files_state(sources),
        "numba": provenance.versions(["numba"]),
        "machine": [machine["cpu"], machine["system"], machine["python"]],
    }
    return Cache("kernels").path(about)


if __name__ == "__main__":
    compile_all()
