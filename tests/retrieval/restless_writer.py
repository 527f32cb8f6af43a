"""A program that never stops changing an index, to be killed; and what its images must be.

Lines on standard input are "folder log seed"; for each it starts a process of its own that writes,
and prints its id. (Loading compiled code takes longer than many kills.)
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import zlib
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from hardnet.retrieval.store.segment import IndexedImage
from hardnet.retrieval.store.snapshot import Snapshot, open_snapshot
from hardnet.retrieval.store.writer import Writer
from hardnet.retrieval.vocabulary import Vocabulary

WORDS = 50
SEGMENT_FEATURES = 300
NAMES = [f"photo {k}.jpg" for k in range(12)]
State = dict[str, int]
"""Name -> version of each image."""


def make_vocabulary(words: int = WORDS) -> Vocabulary:
    rng = np.random.default_rng(0)
    return Vocabulary(
        rng.normal(size=(words, 8)).astype(np.float32),
        np.zeros(8, np.float32),
        np.zeros((128, 8), np.float32),
        np.zeros((words, 128), np.float16),
        "made",
    )


def make_image(name: str, version: int = 0, features: int | None = None) -> IndexedImage:
    """An image whose content follows from its name and its version, which is its time."""
    rng = np.random.default_rng([zlib.crc32(name.encode("utf-8", "replace")), version])
    count = int(rng.integers(0, 120)) if features is None else features
    return IndexedImage(
        name,
        (int(rng.integers(1, 5000)), int(rng.integers(1, 5000))),
        rng.integers(0, WORDS, count).astype(np.int32),
        rng.integers(0, 2**64, (count, 2), np.uint64),
        rng.integers(0, 2**16, (count, 3), np.uint16),
        file_bytes=int(rng.integers(2**40)),
        mtime_ns=version,
    )


def state_of(snapshot: Snapshot) -> State:
    """Which images a snapshot holds; everything in it must be theirs."""
    state: State = {}
    for position, (segment, alive) in enumerate(
        zip(snapshot.segments, snapshot.alive, strict=True)
    ):
        for local in range(len(segment)):
            if alive is not None and not alive[local]:
                continue
            image = snapshot.bases[position] + local
            name, (size, version) = snapshot.name(image), snapshot.file(image)
            assert name not in state
            state[name] = version
            made = make_image(name, version)
            order = np.argsort(made.words, kind="stable")
            postings = segment.postings_of(local)
            assert (snapshot.size(image), size) == (made.size, made.file_bytes)
            np.testing.assert_array_equal(segment.words_of(local), made.words[order])
            np.testing.assert_array_equal(segment.signatures[postings], made.signatures[order])
            np.testing.assert_array_equal(segment.geometry[postings], made.geometry[order])
            np.testing.assert_array_equal(segment.image_ids[postings], local)
    assert len(state) == snapshot.images == snapshot.statistics.images
    return state


def change(writer: Writer, state: State, seed: int) -> State:
    """Change an index in some way; returns what it will hold after the commit."""
    choose = random.Random(seed)
    state = dict(state)
    for _ in range(choose.randint(1, 3)):
        action = choose.choice(["add", "add", "add", "remove", "compact"])
        names = choose.sample(NAMES, choose.randint(1, 6))
        if action == "add":
            writer.add(make_image(name, seed) for name in names)
            state.update({name: seed for name in names})
        elif action == "remove":
            missing = writer.remove(names)
            assert missing == [name for name in names if name not in state]
            state = {name: version for name, version in state.items() if name not in names}
        else:
            writer.compact(choose.choice([0.0, 0.5]))
    return state


def write_forever(folder: Path, log: Path, seed: int) -> Iterator[State]:
    """Commit again and again; the log says what is coming, and then that it was committed."""
    state = state_of(open_snapshot(folder))
    with Writer(folder, segment_features=SEGMENT_FEATURES) as writer, log.open("a") as file:
        for step in range(10**9):
            state = change(writer, state, seed * 1000 + step)
            for note in ("coming", "committed"):
                print(json.dumps([note, state]), file=file, flush=True)
                os.fsync(file.fileno())
                if note == "coming":
                    writer.commit()
            yield state


def warm_up() -> None:
    """Load all compiled code, so that the processes to come begin at once."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "index"
        with Writer(folder, {"settings": {}, "vocabulary": make_vocabulary()}) as writer:
            writer.commit()
        for _ in islice(write_forever(folder, Path(place) / "log", 0), 10):
            pass


def main() -> None:
    warm_up()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the killed
    for line in sys.stdin:
        folder, log, seed = json.loads(line)
        child = os.fork()
        if not child:
            for _ in write_forever(Path(folder), Path(log), seed):
                pass
        print(child, flush=True)


if __name__ == "__main__":
    main()
