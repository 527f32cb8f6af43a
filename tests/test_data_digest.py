"""One digest per set: sensitive to content, instant the second time."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.provenance import data_digest

OLD = 10**18


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
