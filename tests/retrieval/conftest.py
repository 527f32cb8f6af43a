"""Indexes of made-up images."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from hardnet.retrieval.store.writer import Writer

PROGRAM = Path(__file__).with_name("restless_writer.py")


@pytest.fixture(scope="session")
def made() -> SimpleNamespace:
    """Images that follow from their names, and what changes them: see restless_writer.py."""
    return SimpleNamespace(program=[sys.executable, str(PROGRAM)], **runpy.run_path(str(PROGRAM)))


@pytest.fixture(scope="session")
def nursery(made: SimpleNamespace) -> Iterator[SimpleNamespace]:
    """``start(folder, log, seed)`` starts a process that never stops changing an index."""
    with subprocess.Popen(made.program, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def start(folder: Path, log: Path, seed: int) -> int:
            print(json.dumps([str(folder), str(log), seed]), file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield SimpleNamespace(start=start)
        process.kill()


@pytest.fixture
def new_index(made: SimpleNamespace) -> dict[str, object]:
    """What an index of made images is created with."""
    return {"settings": {"detector": "dog"}, "vocabulary": made.make_vocabulary()}


@pytest.fixture
def made_index(tmp_path: Path, made: SimpleNamespace, new_index: dict[str, object]) -> Path:
    """An index of four images in two segments, one of them removed."""
    folder = tmp_path / "index"
    with Writer(folder, new_index) as writer:
        writer.add(made.make_image(name) for name in ("a", "b"))
        writer.commit()
        writer.add(made.make_image(name) for name in ("c", "d"))
        writer.remove(["b"])
        writer.commit()
    return folder
