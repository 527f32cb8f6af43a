"""Processes are started, watched, stopped and blamed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hardnet.errors import HardnetError
from hardnet.learn.distributed import LOST, describe_end, rank, run_processes


def program(body: str) -> list[str]:
    start = "import os, pathlib, signal, sys, time; rank = int(os.environ['LOCAL_RANK'])\n"
    return [sys.executable, "-c", start + body]


def test_each_process_knows_its_place(tmp_path: Path) -> None:
    body = (
        "names = ('RANK', 'WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR')\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text("
        "' '.join(os.environ[n] for n in names))"
    )
    assert run_processes(program(body), devices=3, nodes=1) == 0
    assert [(tmp_path / str(r)).read_text() for r in range(3)] == [
        f"{r} 3 0 127.0.0.1" for r in range(3)
    ]


@pytest.mark.slow
def test_a_killed_process_ends_the_others(tmp_path: Path) -> None:
    body = (
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(str(os.getpid()))\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    assert run_processes(program(body), devices=2, nodes=1) == -signal.SIGKILL
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "0").read_text()), 0)


@pytest.mark.slow
def test_who_ended_because_of_another_is_not_blamed() -> None:
    body = f"sys.exit({LOST} if rank == 0 else 7)"
    assert run_processes(program(body), devices=2, nodes=1) == 7


@pytest.mark.slow
def test_signals_are_passed_on(tmp_path: Path) -> None:
    worker = program(
        "def stop(*_): sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).touch()\n"
        "time.sleep(60)"
    )
    parent = f"from hardnet.learn.distributed import run_processes as r; exit(r({worker!r}, 2, 1))"
    process = subprocess.Popen([sys.executable, "-c", parent])
    wait_for(lambda: len(list(tmp_path.iterdir())) == 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(120) == 130


@pytest.mark.slow
def test_processes_do_not_outlive_their_parent(tmp_path: Path) -> None:
    worker = program(
        "from hardnet.learn.distributed import end_with_parent; end_with_parent()\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    parent = f"from hardnet.learn.distributed import run_processes as r; exit(r({worker!r}, 2, 1))"
    process = subprocess.Popen([sys.executable, "-c", parent])
    wait_for(lambda: len([f for f in tmp_path.iterdir() if f.read_text()]) == 2)
    pids = [int(f.read_text()) for f in tmp_path.iterdir()]
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


def test_several_machines_need_a_meeting_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    monkeypatch.setenv("MASTER_PORT", "1")
    monkeypatch.delenv("NODE_RANK", raising=False)
    with pytest.raises(HardnetError, match=r"needs MASTER_ADDR, NODE_RANK in .* torchrun"):
        run_processes(["true"], devices=2, nodes=2)


def test_ends_in_words() -> None:
    assert describe_end(-9).startswith("was killed (SIGKILL, as the system does when memory")
    assert describe_end(-11) == "was killed (SIGSEGV)"
    assert describe_end(5) == "ended with exit code 5"


def test_rank_before_any_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert rank() == 0
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert rank() == 1
    monkeypatch.setenv("RANK", "9")
    assert rank() == 9


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for(condition, seconds: float = 120) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)
