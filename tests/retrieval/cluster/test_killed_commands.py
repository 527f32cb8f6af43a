"""Commands that have started a Ray of their own: workers die, or the command itself does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hardnet.retrieval.store.snapshot import open_snapshot

from .conftest import SmallIndex

pytestmark = pytest.mark.slow

PHOTOS = 24
_HARDNET = "from hardnet.cli.app import main; main()"
_BUILD = ["--cluster", "local", "--words", "64", "--keypoints", "300"]


def descendants(pid: int) -> dict[int, str]:
    """Processes that come of ``pid``, and their command lines."""
    parents, names = {}, {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rsplit(")", 1)[1].split()[1]
            )
            names[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:  # it has ended
            pass
    found = {pid}
    while more := {one for one, parent in parents.items() if parent in found} - found:
        found |= more
    return {one: names.get(one, "") for one in found - {pid}}


def until(true: Callable[[], Any], seconds: float = 90) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


def worker_of(command: subprocess.Popen[str]) -> int | None:
    """A worker of the command that has begun to describe photos."""
    assert command.poll() is None, "it ended before it could be disturbed"
    family = descendants(command.pid)
    busy = [one for one, name in family.items() if "ray::describe" in name]
    return busy[0] if busy else None


@pytest.fixture
def command(small: SmallIndex, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``hardnet index build`` of some photos into the folder ``index``."""
    pytest.importorskip("ray")
    (tmp_path / "photos").mkdir()
    for number in range(PHOTOS):
        name = ("coffee.png", "camera.png", "brick.png")[number % 3]
        shutil.copy(small.photos[name], tmp_path / "photos" / f"{number:02} {name}")
    words = ["index", "build", str(tmp_path / "index"), str(tmp_path / "photos"), *_BUILD, "--json"]
    with subprocess.Popen(
        [sys.executable, "-c", _HARDNET, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        yield process
        process.kill()


def test_only_json_is_on_stdout_though_workers_die(
    command: subprocess.Popen[str], tmp_path: Path
) -> None:
    os.kill(until(lambda: worker_of(command)), signal.SIGKILL)
    out, err = command.communicate(timeout=200)
    assert command.returncode == 0, err[-2000:]
    assert json.loads(out)["indexed"] == PHOTOS
    assert "A worker died" in err


def test_nothing_is_left_of_a_killed_command(
    command: subprocess.Popen[str], tmp_path: Path
) -> None:
    until(lambda: worker_of(command))
    family = descendants(command.pid)
    assert any("raylet" in name for name in family.values())
    command.kill()
    command.wait()
    # Ray's processes wait a minute for their head, which died with the command, and end.
    until(lambda: not any(Path(f"/proc/{one}").exists() for one in family), 180)
    # The index can be gone on with: nobody holds its lock.
    words = ["index", "build", str(tmp_path / "index"), str(tmp_path / "photos"), *_BUILD[2:]]
    subprocess.run([sys.executable, "-c", _HARDNET, *words], check=True, timeout=200)
    assert open_snapshot(tmp_path / "index").images == PHOTOS
