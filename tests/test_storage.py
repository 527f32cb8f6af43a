"""What is ours on the disk is proven by a list, and nothing else is ever deleted."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import numpy as np
import pytest

from hardnet.errors import HardnetError
from hardnet.frames import empty_frames, read_oxford, write_oxford
from hardnet.image_files import as_path
from hardnet.storage import MARKER, FolderLock, OwnedFolder, claim, refuse_foreign, replacing


def test_only_listed_files_go(tmp_path: Path) -> None:
    work = tmp_path / "work"
    owned = OwnedFolder.begin(work)
    owned.claim("a.npz").write_text("ours")
    owned.claim("deep/er/b.npz").write_text("ours")
    (work / "deep" / "thesis.tex").write_text("mine")
    (work / "c.npz").write_text("mine")
    (work / "x.part").write_text("mine")
    found = OwnedFolder.find(work)
    assert found is not None
    assert found.names(".npz") == ["a.npz", "deep/er/b.npz"]
    found.remove("a.npz", "c.npz")
    assert not (work / "a.npz").exists()
    found.dissolve()
    left = sorted(p.relative_to(work).as_posix() for p in work.rglob("*"))
    assert left == ["c.npz", "deep", "deep/thesis.tex", "x.part"]


def test_a_folder_of_ours_alone_goes_whole(tmp_path: Path) -> None:
    owned = OwnedFolder.begin(tmp_path / "work")
    owned.claim("deep/er/b.npz").write_text("ours")
    lock = FolderLock(tmp_path / "work")
    assert lock.take()
    owned.dissolve(lock)
    lock.release()
    assert not (tmp_path / "work").exists()


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(HardnetError, match=r"thesis\.tex"):
        OwnedFolder.begin(tmp_path)
    with pytest.raises(HardnetError, match=r"is not a folder"):
        refuse_foreign(tmp_path / "thesis.tex")
    owned = OwnedFolder.mark(tmp_path)
    with pytest.raises(HardnetError, match=r"thesis\.tex is in the way"):
        owned.claim("thesis.tex")
    assert claim(tmp_path / "new" / "x") == tmp_path / "new" / "x"
    assert "new/x" in (OwnedFolder.find(tmp_path) or ())


def test_a_name_that_was_removed_is_no_longer_ours(tmp_path: Path) -> None:
    owned = OwnedFolder.mark(tmp_path)
    owned.claim("a").write_text("ours")
    owned.remove("a")
    (tmp_path / "a").write_text("mine")
    for each in (owned, OwnedFolder.find(tmp_path)):
        assert each is not None
        each.remove("a")
        assert (tmp_path / "a").read_text() == "mine"


def test_a_list_by_others_does_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    work, mine = tmp_path / "work", tmp_path / "mine"
    OwnedFolder.mark(work).claim("features/a").write_text("ours")
    mine.write_text("mine")
    with (work / MARKER).open("a") as file:
        file.write(f'{json.dumps("../mine")}\n{json.dumps(str(mine))}\n{{"removed": 3}}\n[]\n')
    (work / "features").rename(tmp_path / "moved")
    (work / "features").symlink_to(tmp_path / "moved")
    owned = OwnedFolder.find(work)
    assert owned is not None
    owned.dissolve()
    assert mine.read_text() == "mine"
    assert (tmp_path / "moved" / "a").read_text() == "ours"
    with pytest.raises(HardnetError, match="outside"):
        OwnedFolder.mark(tmp_path / "new").claim("../mine")


def test_a_line_cut_short_by_a_kill_is_passed_over(tmp_path: Path) -> None:
    OwnedFolder.mark(tmp_path).claim("a").write_text("ours")
    with (tmp_path / MARKER).open("a") as file:
        file.write('"half a na')
    owned = OwnedFolder.mark(tmp_path)
    owned.claim("b").write_text("ours")
    assert OwnedFolder.mark(tmp_path).names() == ["a", "b"]


def test_another_file_of_the_markers_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("shopping: milk")
    with pytest.raises(HardnetError, match="no list"):
        OwnedFolder.mark(tmp_path)
    assert (tmp_path / MARKER).read_text() == "shopping: milk"


def test_parts_of_killed_processes_go_and_those_of_others_stay(tmp_path: Path) -> None:
    owned = OwnedFolder.mark(tmp_path)
    with replacing(owned.claim("sub/a"), owned) as part:
        part.write_text("half")
        killed = part.with_name(part.name.replace("a.", "b.", 1))
        killed.write_text("half")
    (tmp_path / "a.part").write_text("mine")
    (tmp_path / "sub" / "a.0123-4.part").write_text("mine")
    owned.sweep()
    assert not killed.exists()
    assert (tmp_path / "a.part").exists()
    assert (tmp_path / "sub" / "a.0123-4.part").exists()
    assert (tmp_path / "sub" / "a").read_text() == "half"


def test_a_long_list_is_shortened(tmp_path: Path) -> None:
    owned = OwnedFolder.mark(tmp_path)
    owned.claim("kept").write_text("ours")
    for k in range(600):
        owned.claim(f"{k}")
        owned.remove(f"{k}")
    owned = OwnedFolder.mark(tmp_path)
    number, size = owned.number, os.path.getsize(tmp_path / MARKER)
    owned.sweep()
    assert os.path.getsize(tmp_path / MARKER) < size / 10
    assert OwnedFolder.mark(tmp_path).names() == ["kept"]
    assert OwnedFolder.mark(tmp_path).number == number


def test_a_lock_file_of_others_stays(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("mine")
    for name, stays in (("lock", True), ("other", False)):
        lock = FolderLock(tmp_path, name)
        assert lock.take()
        lock.remove()
        lock.release()
        assert (tmp_path / name).exists() == stays
    assert (tmp_path / "lock").read_text() == "mine"


def test_an_empty_path_is_an_error() -> None:
    assert as_path(".") == Path()
    with pytest.raises(HardnetError, match="empty"):
        as_path("")


def test_a_replaced_file_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "shared.json"
    path.write_text("old")
    path.chmod(0o664)
    with replacing(path) as part:
        part.write_text("new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o664


def test_a_full_disk_leaves_the_old_ellipses(
    tmp_path: Path, small_disk: Callable[[int], AbstractContextManager[None]]
) -> None:
    path = tmp_path / "graf.txt"
    write_oxford(path, empty_frames())
    with small_disk(1000), pytest.raises(OSError, match="too large"):
        write_oxford(path, np.tile(np.eye(2, 3, dtype=np.float32), (1000, 1, 1)))
    assert len(read_oxford(path)) == 0
    assert list(tmp_path.iterdir()) == [path]


def test_a_lock_whose_file_is_deleted_is_taken_again(tmp_path: Path) -> None:
    first, second, third = (FolderLock(tmp_path) for _ in range(3))
    assert first.take()
    taken: list[bool] = []
    waiting = threading.Thread(target=lambda: taken.append(second.take(10)))
    waiting.start()
    time.sleep(0.2)
    (tmp_path / "lock").unlink()
    first.release()
    waiting.join()
    assert taken == [True]
    assert not third.take()
    second.release()
