"""Where decoded sets are kept, and that an old one is never used for a changed set."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.patchsets.cache import cache_folder, cached, state, user_cache, write_npy
from hardnet.storage import MARKER, replacing


def test_user_cache_follows_the_environment(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("HARDNET_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_cache() == tmp_path / "home" / ".cache" / "hardnet"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert user_cache() == tmp_path / "xdg" / "hardnet"
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "mine"))
    assert user_cache() == tmp_path / "mine"
    assert not user_cache().exists()


def test_a_writable_set_keeps_its_own_cache(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "mine"))
    (tmp_path / "set").mkdir()
    assert cache_folder(tmp_path / "set") == tmp_path / "set" / "cache"
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("how", ["mkdir fails", "no permission", "mode"])
def test_a_read_only_set_has_its_cache_with_the_user(tmp_path: Path, monkeypatch, how: str) -> None:
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "mine"))
    for name in ("one/set", "two/set"):
        (tmp_path / name).mkdir(parents=True)
        if how == "mkdir fails":
            (tmp_path / name / "cache").write_text("a file is in the way")
    if how == "no permission":
        real = os.access
        monkeypatch.setattr(
            os, "access", lambda path, mode: "mine" in str(path) and real(path, mode)
        )
    if how == "mode":  # holds for root as well, who could write
        (tmp_path / "one/set").chmod(0o555)
        (tmp_path / "two/set").chmod(0o555)
    one, two = cache_folder(tmp_path / "one/set"), cache_folder(tmp_path / "two/set")
    assert one.parent == two.parent == tmp_path / "mine" / "sets"
    assert one != two  # of the same name, but not the same set
    assert one.is_dir()
    (tmp_path / "link").symlink_to(tmp_path / "one/set")
    assert cache_folder(tmp_path / "link") == one


def test_nowhere_to_write_names_the_variable(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARDNET_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(HardnetError, match="HARDNET_CACHE"):
        cache_folder(tmp_path / "file")


def test_a_changed_state_is_written_again_and_the_old_one_goes(tmp_path: Path) -> None:
    calls = []

    def write(path: Path) -> None:
        calls.append(path)
        write_npy(path, (2, 2), [np.array([[len(calls), 2]]), np.array([[3, 4]])])

    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "patches-320.one.npy").write_bytes(b"other size")
    (tmp_path / "cache" / "patches-32.mine.npy").write_bytes(b"of somebody else")
    for key, first in (("one", 1), ("one", 1), ("two", 2)):
        array = cached(tmp_path, "patches-32", key, write)
        assert isinstance(array, np.memmap)
        assert array.tolist() == [[first, 2], [3, 4]]
    assert sorted(p.name for p in (tmp_path / "cache").iterdir()) == [
        MARKER,
        "patches-32.mine.npy",
        "patches-32.two.npy",
        "patches-320.one.npy",
    ]


def test_state_sees_name_size_and_time(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("one")
    os.utime(file, ns=(0, 5))
    first = state([file])
    assert state([file]) == first
    file.write_text("two")
    os.utime(file, ns=(0, 5))
    assert state([file]) != first, "the date was set back, but the file was written"
    os.utime(file, ns=(0, 6))
    assert state([file]) != first
    file.write_text("three")
    os.utime(file, ns=(0, 5))
    assert state([file]) != first
    assert state([]) != first


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")
    with pytest.raises(RuntimeError), replacing(target) as part:  # noqa: PT012
        part.write_text("half")
        raise RuntimeError
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert target.read_text() == "old"
