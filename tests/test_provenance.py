"""Provenance blocks name no path; digests follow the data; the cache is complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

import hardnet.provenance
from hardnet.errors import HardnetError
from hardnet.patchsets.patchset import decoded, decoded_patches, set_cache
from hardnet.provenance import (
    Cache,
    collect,
    data_digest,
    files_state,
    user_cache,
    without_folders,
)

OLD = 10**18


def test_block_is_json_and_names_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    block = collect("hardnet bench", {"k": 3}, [tmp_path])
    text = json.dumps(block)
    assert str(tmp_path) not in text
    assert block["command"] == "hardnet bench"
    assert block["settings"] == {"k": 3}
    assert block["data"]["files"] == 1
    assert block["versions"]["numpy"]
    assert block["machine"]["cores"] >= 1
    assert collect("x", {})["data"] is None


@pytest.mark.parametrize(
    ("word", "clean"),
    [
        ("/data/me/set", "set"),
        ("--output=/data/me/set/", "--output=set"),
        ("data=[/data/me/a,/b/c,sets/d]", "data=[a,c,sets/d]"),
        ("sift,/data/me/x.onnx", "sift,x.onnx"),
        ("sets/a/b", "sets/a/b"),
        ("../../data/set", "set"),
        ("A=../x/a.pth,B=y/../b.pth", "A=a.pth,B=y/../b.pth"),
        ("data=[/sets/hpatches:a]", "data=[hpatches:a]"),
    ],
)
def test_folders_of_the_machine_are_left_out(word: str, clean: str) -> None:
    assert without_folders(word) == clean


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "user"))
    for name, text in {"b/ref.png": "one", "a.txt": "two", "b/cache/x": "counts"}.items():
        write(tmp_path / "set" / name, text)
    return tmp_path / "set"


def write(path: Path, text: str, time: int = OLD) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, ns=(time, time))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_it_is_the_digest_of_names_and_digests_in_order(folder: Path) -> None:
    rows = [("a.txt", "two"), ("b/cache/x", "counts"), ("b/ref.png", "one")]
    text = "".join(f"{name}\0{digest(content)}\0" for name, content in rows)
    assert data_digest(folder).sha256 == digest(text)
    assert data_digest(folder).files == 3


def test_a_copy_elsewhere_is_the_same_and_a_change_is_not(folder: Path, tmp_path: Path) -> None:
    before = data_digest(folder).sha256
    shutil.copytree(folder, tmp_path / "copy")
    assert data_digest(tmp_path / "copy").sha256 == before
    write(tmp_path / "copy" / "a.txt", "owt", OLD + 1)
    assert data_digest(tmp_path / "copy").sha256 != before
    write(tmp_path / "copy" / "a.txt", "two", OLD + 2)
    assert data_digest(tmp_path / "copy").sha256 == before
    os.rename(tmp_path / "copy" / "a.txt", tmp_path / "copy" / "c.txt")
    assert data_digest(tmp_path / "copy").sha256 != before


def test_the_cache_and_unfinished_files_do_not_count(folder: Path) -> None:
    before = data_digest(folder).sha256
    write(folder / "cache" / "patches.npy", "derived")
    write(folder / "b" / "x.part", "half")
    write(folder / "c.part" / "y", "half")
    assert data_digest(folder).sha256 == before


def test_linked_folders_count(folder: Path, tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "ref.png", "three")
    before = data_digest(folder).sha256
    (folder / "linked").symlink_to(tmp_path / "elsewhere")
    assert data_digest(folder).sha256 != before
    assert data_digest(folder).files == 4


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files count as settled at once, and what was read of them is remembered."""
    monkeypatch.setattr("hardnet.provenance.SETTLED", -1)


@pytest.mark.usefixtures("settled")
def test_the_second_call_reads_no_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = data_digest(folder).sha256

    def refuse(*_: object) -> None:
        raise AssertionError("hashed again")

    monkeypatch.setattr(hashlib, "file_digest", refuse)
    assert data_digest(folder).sha256 == before
    write(folder / "a.txt", "owt", OLD + 1)
    with pytest.raises(AssertionError, match="hashed again"):
        data_digest(folder)


def test_a_file_changed_within_one_tick_is_seen(folder: Path) -> None:
    file = folder / "a.txt"
    file.write_text("two")
    tick = file.stat().st_mtime_ns
    before = data_digest(folder).sha256
    write(file, "owt", tick)
    assert data_digest(folder).sha256 != before


@pytest.mark.usefixtures("settled")
def test_one_file_is_remembered_in_the_users_cache(folder: Path, tmp_path: Path) -> None:
    found = data_digest(folder / "a.txt")
    assert found.files == 1
    assert found.sha256 == digest(f"a.txt\0{digest('two')}\0")
    assert len(list((tmp_path / "user" / "digests").glob("a.txt-*.json"))) == 1


@pytest.mark.usefixtures("settled")
def test_a_damaged_memo_is_written_again(folder: Path, tmp_path: Path) -> None:
    before = data_digest(folder).sha256
    [memo] = (tmp_path / "user" / "digests").iterdir()
    memo.write_text("{")
    assert data_digest(folder).sha256 == before


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(HardnetError, match="does not exist"):
        data_digest(tmp_path / "absent")


@pytest.mark.usefixtures("settled")
def test_a_change_that_keeps_size_and_date_is_noticed(folder: Path) -> None:
    """As when a repaired file is copied over a broken one with its date kept."""
    before = data_digest(folder).sha256
    assert data_digest(folder).sha256 == before
    write(folder / "a.txt", "owt")
    assert data_digest(folder).sha256 != before


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
