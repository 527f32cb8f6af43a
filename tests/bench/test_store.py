"""Stored descriptors are the descriptors, whatever happens in between."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from hardnet.bench.store import PORTION, Predictions
from hardnet.errors import HardnetError

DATA = "0123456789abcdef" * 4


class Row:
    """Describes a patch by one of its rows, and counts the patches it has described."""

    dim = 16

    def __init__(self, row: int = 0, binary: bool = False, name: str = "row") -> None:
        self.row = row
        self.name = name
        self.kind = np.uint8 if binary else np.float32
        self.described = 0

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        self.described += len(patches)
        return np.asarray(patches)[:, self.row, :16].astype(self.kind)


@pytest.fixture(scope="module")
def some() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (PORTION + 37, 4, 16)).astype(np.uint8)


def opened(folder: Path, describe: Row, data: str = DATA) -> Predictions:
    predictions = Predictions(describe, data, folder)
    describe.described = 0  # without the probes of the digest
    return predictions


def refuse() -> np.ndarray:
    raise AssertionError("patches were asked for although their descriptors are stored")


@pytest.mark.parametrize("binary", [False, True])
def test_second_run_reads_what_the_first_computed(
    tmp_path: Path, some: np.ndarray, binary: bool
) -> None:
    describe = Row(3, binary)
    first = opened(tmp_path, describe).get("a/b", lambda: some)
    assert describe.described == len(some)
    np.testing.assert_array_equal(first, some[:, 3, :16])
    assert first.dtype == (np.uint8 if binary else np.float32)
    again = opened(tmp_path, describe).get("a/b", refuse)
    np.testing.assert_array_equal(again, first)
    assert isinstance(again, np.memmap)
    assert not again.flags.writeable
    assert describe.described == 0
    [file] = tmp_path.rglob("*.npy")
    np.testing.assert_array_equal(np.load(file), first)  # an ordinary file
    assert not list(tmp_path.rglob("*.part"))


def test_another_descriptor_or_set_never_reads_old_values(tmp_path: Path, some: np.ndarray) -> None:
    old = opened(tmp_path, Row(1)).get("x", lambda: some)
    for describe, data in ((Row(2), DATA), (Row(1), "f" * 64), (Row(1), "any text at all")):
        new = opened(tmp_path, describe, data).get("x", lambda: some[::-1])
        np.testing.assert_array_equal(new, some[::-1, describe.row, :16])
        assert not np.array_equal(new, old)
    assert len(list(tmp_path.rglob("*.npy"))) == 4


class Slow(Row):
    """Writes a line for every portion, and takes its time."""

    def __init__(self, log: Path, seconds: float) -> None:
        super().__init__()
        self.log, self.seconds = log, seconds

    def __call__(self, patches: np.ndarray) -> np.ndarray:
        if len(patches) == PORTION:
            with self.log.open("a") as log:
                log.write("portion\n")
            time.sleep(self.seconds)
        return super().__call__(patches)


def describe_two(store: Path, describe: Slow) -> None:
    patches = np.random.default_rng(0).integers(0, 256, (20 * PORTION, 1, 16)).astype(np.uint8)
    predictions = Predictions(describe, DATA, store)
    for key in ("first", "second"):  # 20 portions each
        np.testing.assert_array_equal(predictions.get(key, lambda: patches), patches[:, 0, :16])


def test_a_killed_run_loses_only_what_it_was_at(
    tmp_path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    store, log = tmp_path / "store", tmp_path / "log"
    log.touch()
    pid = fork(partial(describe_two, store, Slow(log, 0.05)))
    deadline = time.monotonic() + 60
    while log.read_text().count("portion") < 27:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert len(list(store.rglob("*.npy"))) == 1
    log.write_text("")
    describe_two(store, Slow(log, 0.0))
    assert log.read_text().count("portion") == 20


def test_more_files_can_be_kept_than_the_system_allows_by_default(
    tmp_path: Path, fork: Callable[[Callable[[], object]], int]
) -> None:
    resource = pytest.importorskip("resource")

    def keep() -> None:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
        predictions = Predictions(Row(), DATA, tmp_path)
        one = np.zeros((1, 20, 20), np.uint8)
        kept = [predictions.get(str(number), lambda: one) for number in range(300)]
        assert len(kept) == 300

    assert os.waitstatus_to_exitcode(os.waitpid(fork(keep), 0)[1]) == 0


def test_a_disk_that_really_refuses(tmp_path: Path, small_disk: Callable) -> None:
    """A limit on the size of files: writing fails in the middle."""
    patches = np.random.default_rng(0).integers(0, 256, (200, 1, 16)).astype(np.uint8)
    refused = r"^the cache .*cannot be written \(File too large\): choose another with --store"
    with small_disk(4000), pytest.raises(HardnetError, match=refused):
        opened(tmp_path, Row()).get("x", lambda: patches)
    found = opened(tmp_path, Row()).get("x", lambda: patches)
    np.testing.assert_array_equal(found, patches[:, 0, :16])


def test_descriptors_that_change_their_shape(tmp_path: Path, some: np.ndarray) -> None:
    class Odd(Row):
        def __call__(self, patches: np.ndarray) -> np.ndarray:
            return super().__call__(patches)[:, : 16 - len(patches) % 2]

    with pytest.raises(HardnetError, match="rows of different kinds"):
        opened(tmp_path, Odd()).get("x", lambda: some)

    class Fewer(Row):
        def __call__(self, patches: np.ndarray) -> np.ndarray:
            return super().__call__(patches)[1:]

    with pytest.raises(HardnetError, match=f"of {PORTION} patches, not"):
        opened(tmp_path, Fewer()).get("x", lambda: some)


def test_default_place_is_the_users_cache(
    tmp_path: Path, some: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "cache"))
    predictions = Predictions(Row(name="my module:f/x"), DATA)
    assert not (tmp_path / "cache").exists()  # until there is something to keep
    predictions.get("../a key", lambda: some)
    [file] = (tmp_path / "cache" / "predictions").iterdir()
    assert file.name.startswith("my_module_f_x.")
