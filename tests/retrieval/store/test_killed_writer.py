"""A writer that is killed at any moment: what was committed is there, and nothing else is."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hardnet.errors import HardnetError
from hardnet.retrieval.store.snapshot import open_snapshot, verify
from hardnet.retrieval.store.writer import Writer
from hardnet.storage import MARKER, FolderLock


@pytest.fixture
def folder(tmp_path: Path, made: SimpleNamespace) -> Path:
    folder = tmp_path / "index"
    new = {"settings": {}, "vocabulary": made.make_vocabulary()}
    with Writer(folder, new) as writer:
        writer.commit()
    return folder


def kill(process: int, folder: Path) -> None:
    """kill -9; returns when the system has let go of everything it had."""
    os.kill(process, signal.SIGKILL)
    lock = FolderLock(folder)
    assert lock.take(10)
    lock.release()


def notes(log: Path) -> list[tuple[str, dict[str, int]]]:
    """What the writers have said; the last line may be half of one."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("\n")]


def survive(folder: Path, made: SimpleNamespace, nursery: SimpleNamespace, kills: int) -> None:
    choose = random.Random(0)
    before: dict[str, int] = {}
    commits = moved = swept = 0
    for seed in range(1, kills + 1):
        log = folder.parent / f"{seed}.log"
        writer = nursery.start(folder, log, seed)
        wanted = choose.randint(0, 5)
        while len(notes(log)) < wanted:
            time.sleep(0.002)
        time.sleep(choose.uniform(0.0, 0.02))
        kill(writer, folder)
        said = notes(log)
        committed = [state for note, state in said if note == "committed"]
        allowed = [committed[-1] if committed else before]
        if said and said[-1][0] == "coming":
            allowed.append(said[-1][1])
        assert verify(folder).ok
        snapshot = open_snapshot(folder)
        found = made.state_of(snapshot)
        assert found in allowed
        commits += len(committed)
        moved += found != allowed[0]
        named = {*snapshot.manifest.files(), "manifest.json", "lock", MARKER}
        swept += any(
            path.relative_to(folder).as_posix() not in named
            for path in folder.rglob("*")
            if path.is_file()
        )
        before = found
    print(f"{kills} kills, {commits} commits, {moved} unsaid, {swept} times something to sweep")
    assert commits > 0  # they did something
    assert swept > 0  # and were in the middle of it
    with Writer(folder) as last:
        last.add([made.make_image("the end")])
        last.commit()
    after = open_snapshot(folder)
    assert made.state_of(after) == {**before, "the end": 0}
    left = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert left == {*after.manifest.files(), "manifest.json", "lock", MARKER}


def test_killed_many_times(folder: Path, made: SimpleNamespace, nursery: SimpleNamespace) -> None:
    survive(folder, made, nursery, 6)


@pytest.mark.slow
def test_killed_hundreds_of_times(
    folder: Path, made: SimpleNamespace, nursery: SimpleNamespace
) -> None:
    survive(folder, made, nursery, 300)


def test_killed_while_it_creates(tmp_path: Path, made: SimpleNamespace) -> None:
    """A new index whose writer died before its first commit is no index, and in nobody's way."""
    new = {"settings": {}, "vocabulary": made.make_vocabulary()}
    process = os.fork()
    if not process:
        try:
            writer = Writer(tmp_path / "i", new, segment_features=10)
            writer.add(made.make_image(name) for name in "abcdef")
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(process, 0)
    assert any((tmp_path / "i" / "segments").iterdir())
    with pytest.raises(HardnetError, match="holds no index"):
        open_snapshot(tmp_path / "i")
    with Writer(tmp_path / "i", new) as writer:
        assert not any((tmp_path / "i" / "segments").iterdir())
        writer.add([made.make_image("a")])
        writer.commit()
    assert made.state_of(open_snapshot(tmp_path / "i")) == {"a": 0}
