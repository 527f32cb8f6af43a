"""Kernels that are compiled before they are needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hardnet.retrieval import precompile


def test_nothing_is_started_when_it_is_done_or_not_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path))
    monkeypatch.setenv(precompile.VARIABLE, "0")
    assert not precompile.is_done()
    assert precompile.start() is None
    monkeypatch.delenv(precompile.VARIABLE)
    precompile.note_done()
    assert precompile.is_done()
    assert precompile.start() is None


def test_a_cache_that_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "file"))
    precompile.note_done()
    assert not precompile.is_done()


def test_who_fails_does_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path))
    monkeypatch.setenv(precompile.VARIABLE, "0")
    with pytest.raises(KeyError), precompile.meanwhile(lambda what, *_: said.append(what)):
        raise KeyError
    with precompile.meanwhile(lambda what, *_: said.append(what)):
        pass
    assert not said  # nothing was started, so nobody waits


@pytest.mark.slow
def test_the_first_build_leaves_nothing_to_compile(tmp_path: Path, photos: Path) -> None:
    kernels = tmp_path / "numba"
    environment = os.environ | {
        "NUMBA_CACHE_DIR": str(kernels),
        "HARDNET_CACHE": str(tmp_path / "cache"),
        precompile.VARIABLE: "1",
    }

    def run(*words: str) -> None:
        subprocess.run([sys.executable, "-m", "hardnet", *words], env=environment, check=True)

    few = [str(photos / name) for name in ("camera.png", "coins.png", "rocket.jpg")]
    run("index", "build", str(tmp_path / "index"), *few)
    compiled = sorted(path.name for path in kernels.rglob("*.nbc"))
    assert compiled
    assert len(list((tmp_path / "cache" / "kernels").iterdir())) == 1
    run("search", str(tmp_path / "index"), few[0])
    assert sorted(path.name for path in kernels.rglob("*.nbc")) == compiled
