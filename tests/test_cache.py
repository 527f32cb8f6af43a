"""What is kept is what would be computed, whatever changes in between."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import hardnet.provenance
from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import decoded, decoded_patches, set_cache
from hardnet.provenance import Cache, files_state, user_cache


class Count:
    """Gives another value at every call, so that a kept one is recognised."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> dict[str, float]:
        self.calls += 1
        return {"score": self.calls / 3}


def test_the_place_follows_the_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("HARDNET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / ".cache" / "hardnet"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache() == tmp_path / "xdg" / "hardnet"
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "mine"))
    assert user_cache() == tmp_path / "mine"
    assert Cache("scores").folder == tmp_path / "mine" / "scores"
    assert Cache("scores", tmp_path / "other").folder == tmp_path / "other" / "scores"
    assert not user_cache().exists()


def test_the_same_question_is_answered_once(tmp_path: Path) -> None:
    make = Count()
    for about in ({"a": 1, "b": [2]}, {"b": [2], "a": 1}):  # the order does not matter
        assert Cache("x", tmp_path).json(about, make) == {"score": 1 / 3}
    assert make.calls == 1


def test_another_version_setting_or_digest_is_another_question(tmp_path: Path, monkeypatch) -> None:
    make, cache = Count(), Cache("x", tmp_path)
    questions = [{"words": 8, "data": "ab"}, {"words": 9, "data": "ab"}, {"words": 8, "data": "cd"}]
    answers = [cache.json(about, make)["score"] for about in questions]
    monkeypatch.setattr(metadata, "version", lambda _: "99.0")
    hardnet.provenance._version.cache_clear()
    try:
        answers.append(cache.json(questions[0], make)["score"])
    finally:
        hardnet.provenance._version.cache_clear()
    assert answers == [1 / 3, 2 / 3, 1, 4 / 3]


@pytest.mark.parametrize("damage", [b"", b'{"score": 0.', b"\xff\xfe"])
def test_a_damaged_entry_is_computed_again(tmp_path: Path, damage: bytes) -> None:
    make, cache = Count(), Cache("x", tmp_path)
    cache.json({}, make)
    cache.path({}, ".json").write_bytes(damage)
    assert [cache.json({}, make)["score"] for _ in range(2)] == [2 / 3, 2 / 3]


def test_a_damaged_array_is_computed_again(tmp_path: Path) -> None:
    cache, array = Cache("x", tmp_path), np.arange(100)
    assert isinstance(cache.array({}, lambda: array), np.memmap)
    path = cache.path({}, ".npy")
    path.write_bytes(path.read_bytes()[:-1])
    np.testing.assert_array_equal(cache.array({}, lambda: array), array)


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken() -> None:
        raise OSError("of the data, not of the cache")

    with pytest.raises(OSError, match="of the data"):
        Cache("x", tmp_path).json({}, broken)

    def half(path: Path, _: object) -> None:
        path.write_text("half")
        raise RuntimeError

    with pytest.raises(RuntimeError):
        Cache("x", tmp_path).get({}, Count(), half, Path.read_text)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a file in the way")
    with pytest.raises(HardnetError, match=f"{tmp_path}/x cannot be written .*HARDNET_CACHE"):
        Cache("x", tmp_path).json({}, Count())


def test_two_processes_at_once_have_one_whole_entry(tmp_path: Path) -> None:
    script = (
        "import sys; from hardnet.provenance import Cache\n"
        "values = {Cache('x', sys.argv[1]).json({'n': n % 5}, lambda: 'z' * 200_000)\n"
        "          for n in range(50)}\n"
        "assert values == {'z' * 200_000}\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert len(list((tmp_path / "x").iterdir())) == 5


def test_arrays_of_a_set_follow_its_files_and_leave_it_alone(tmp_path: Path) -> None:
    folder, file = tmp_path / "set", tmp_path / "set" / "info.txt"
    folder.mkdir()
    file.write_text("1")
    numbers = [decoded(folder, "points", [file], lambda: np.array([int(file.read_text())]))]
    decoded(folder, "points-2", [file], lambda: np.array([9]))
    file.write_text("22")
    for _ in range(2):
        numbers.append(decoded(folder, "points", [file], lambda: np.array([22])))
    assert [int(array[0]) for array in numbers] == [1, 22, 22]
    kept = {path.name.partition(".")[0] for path in set_cache(folder).folder.iterdir()}
    assert kept == {"points", "points-2"}
    assert len(list(set_cache(folder).folder.iterdir())) == 2  # the one of before is gone
    assert list(folder.iterdir()) == [file]
    (tmp_path / "link").symlink_to(folder)
    assert set_cache(tmp_path / "link").folder == set_cache(folder).folder
    (tmp_path / "other" / "set").mkdir(parents=True)
    assert set_cache(tmp_path / "other" / "set").folder != set_cache(folder).folder


def test_patches_are_joined_from_blocks(tmp_path: Path) -> None:
    blocks = [np.full((2, 3, 3), 7, np.uint8), np.full((1, 3, 3), 8, np.uint8)]
    patches = decoded_patches(tmp_path, "patches-3", [], (3, 3, 3), lambda: iter(blocks))
    assert isinstance(patches, np.memmap)
    np.testing.assert_array_equal(patches, np.concatenate(blocks))


def test_state_sees_name_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    os.utime(file, ns=(0, 5))
    first = files_state([file])
    assert files_state([file]) == first
    file.write_text("two")
    os.utime(file, ns=(0, 5))
    assert files_state([file]) != first, "the date was set back, but the file was written"
    os.utime(file, ns=(0, 6))
    assert files_state([file]) != first
    file.write_text("three")
    os.utime(file, ns=(0, 5))
    assert files_state([file]) != first
    assert files_state([]) != first
