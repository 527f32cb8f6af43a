"""Many readers while one writer adds, removes and compacts without a pause."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from hardnet.retrieval.store.snapshot import open_snapshot, verify
from hardnet.retrieval.store.writer import Writer

READERS = 3


def read_for(folder: Path, made: SimpleNamespace, seconds: float) -> list[tuple[int, dict]]:
    """Open again and again; everything of every generation must fit, also when it is old."""
    deadline = time.monotonic() + seconds
    seen: list[tuple[int, dict]] = []
    old = open_snapshot(folder)
    old_state = made.state_of(old)
    while time.monotonic() < deadline:
        snapshot = open_snapshot(folder)
        state = made.state_of(snapshot)
        for name, version in state.items():
            image = snapshot.find(name)
            assert image is not None
            assert snapshot.file(image)[1] == version
        seen.append((snapshot.generation, state))
        assert made.state_of(old) == old_state
        if len(seen) % 5 == 0:
            old, old_state = snapshot, state
    return seen


def read_while_writing(
    folder: Path, made: SimpleNamespace, nursery: SimpleNamespace, seconds: float
) -> int:
    new = {"settings": {}, "vocabulary": made.make_vocabulary()}
    with Writer(folder, new) as writer:
        writer.commit()
    log = folder.parent / "log"
    writing = nursery.start(folder, log, 1)
    try:
        with ThreadPoolExecutor(READERS) as pool:
            readers = [pool.submit(read_for, folder, made, seconds) for _ in range(READERS)]
            checks = 0
            while not all(reader.done() for reader in readers):
                assert verify(folder).ok
                checks += 1
        seen = [reader.result() for reader in readers]
    finally:
        os.kill(writing, signal.SIGKILL)
    # Generation g is the state of the (g - 1)th commit: every reader saw one that was committed.
    said = [json.loads(line) for line in log.read_text().splitlines(True) if line.endswith("\n")]
    states = [{}, *(state for note, state in said if note == "coming")]
    generations: set[int] = set()
    for reader in seen:
        numbers = [generation for generation, _ in reader]
        assert numbers == sorted(numbers)
        generations.update(numbers)
        for _, state in reader:
            assert state in states
    assert checks > 0
    return len(generations)


def test_readers_see_whole_generations(
    tmp_path: Path, made: SimpleNamespace, nursery: SimpleNamespace
) -> None:
    assert read_while_writing(tmp_path / "index", made, nursery, 0.8) > 1


@pytest.mark.slow
def test_readers_see_whole_generations_for_long(
    tmp_path: Path, made: SimpleNamespace, nursery: SimpleNamespace
) -> None:
    assert read_while_writing(tmp_path / "index", made, nursery, 60) > 100
