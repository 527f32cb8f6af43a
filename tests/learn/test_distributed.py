"""Two processes with half of the batch each compute what one process computes with all of it.

And processes are started, watched, stopped and blamed.
"""

from __future__ import annotations

import os
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from hardnet.errors import HardnetError
from hardnet.learn.distributed import (
    LOST,
    describe_end,
    from_rank_zero,
    gather_rows,
    open_fabric,
    rank,
    rows_of,
    run_processes,
)

PROGRAM = Path(__file__).with_name("shared_batch.py")
SHARED = runpy.run_path(str(PROGRAM))
QUICK = SHARED["QUICK"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="CUDA does not survive a fork; slow does")
def test_two_processes_equal_one(tmp_path: Path, fork: Callable[..., int]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def work(rank: str) -> None:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE="2")
        os.environ.update(RANK=rank, LOCAL_RANK=rank, GROUP_RANK="0")
        SHARED["save"](2, tmp_path / "two", QUICK)

    (tmp_path / "two").mkdir()
    ranks = [fork(partial(work, rank)) for rank in "01"]
    statuses = []

    def has_ended(pid: int) -> bool:
        ended, status = os.waitpid(pid, os.WNOHANG)
        statuses.extend([status] if ended else [])
        return bool(ended)

    for pid in ranks:
        wait_for(partial(has_ended, pid))
    assert statuses == [0, 0]
    compare(QUICK, tmp_path)


@pytest.mark.slow
def test_two_processes_equal_one_in_every_case(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    (tmp_path / "two").mkdir()
    command = [sys.executable, str(PROGRAM), "2", str(tmp_path / "two"), *SHARED["CASES"]]
    assert run_processes(command, devices=2) == 0
    compare(tuple(SHARED["CASES"]), tmp_path)


def compare(cases: Sequence[str], folder: Path) -> None:
    """What one process finds with what each of two has found."""
    two = [torch.load(folder / "two" / f"rank{r}.pt", weights_only=True) for r in (0, 1)]
    runs = [SHARED["results"](1, folder / "one", cases), *two]
    for case in cases:
        compare_case([found[case] for found in runs])


def compare_case(runs: list[dict[str, Any]]) -> None:
    one, first, second = runs
    assert first["loss"] == second["loss"]
    assert torch.allclose(one["loss"], first["loss"], rtol=1e-9, atol=0)
    for a, b, c in zip(one["gradients"], first["gradients"], second["gradients"], strict=True):
        assert torch.equal(b, c)  # the sum over both ranks, on both
        assert a.abs().max() > 1e-4
        assert torch.allclose(a, b, rtol=0, atol=1e-7 * float(a.abs().max()))
    for key, value in one["state"].items():
        assert torch.equal(first["state"][key], second["state"][key])
        assert torch.allclose(value, first["state"][key], rtol=1e-7, atol=1e-7), key


def test_shares_of_a_batch() -> None:
    assert [rows_of(r, 4, 16) for r in range(4)] == [slice(k, k + 4) for k in (0, 4, 8, 12)]
    with pytest.raises(
        HardnetError, match=r"batch 15 .* 2 processes: use a multiple of 2, e\.g\. 14"
    ):
        rows_of(0, 2, 15)


def test_one_process_needs_no_group() -> None:
    rows = torch.rand(3, 2, requires_grad=True)
    assert gather_rows(rows, None) is rows


def test_an_accelerator_that_is_not_there_is_named() -> None:
    with pytest.raises(HardnetError, match="accelerator=abacus with devices=1 cannot be used"):
        open_fabric("abacus", 1)


def test_every_process_hears_of_a_folder_that_cannot_be_written() -> None:
    """Otherwise the others would wait for the first."""
    heard: list[object] = []

    def broadcast(result: object) -> object:
        heard.append(result)
        return result

    def fail() -> None:
        raise PermissionError(13, "Permission denied", "runs")

    fabric: Any = SimpleNamespace(world_size=2, is_global_zero=True, broadcast=broadcast)
    with pytest.raises(HardnetError, match="Permission denied: 'runs'"):
        from_rank_zero(fabric, fail)
    assert len(heard) == 1


def program(body: str) -> list[str]:
    start = "import os, pathlib, signal, sys, time; rank = int(os.environ['LOCAL_RANK'])\n"
    return [sys.executable, "-c", start + body]


@pytest.mark.slow
def test_each_process_knows_its_place(tmp_path: Path) -> None:
    body = (
        "names = ('RANK', 'WORLD_SIZE', 'GROUP_RANK', 'MASTER_ADDR')\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text("
        "' '.join(os.environ[n] for n in names))"
    )
    before = signal.getsignal(signal.SIGTERM)
    assert run_processes(program(body), devices=2) == 0
    assert signal.getsignal(signal.SIGTERM) is before
    assert [(tmp_path / str(r)).read_text() for r in range(2)] == [
        f"{r} 2 0 127.0.0.1" for r in range(2)
    ]


@pytest.mark.slow
def test_a_killed_process_ends_the_others(tmp_path: Path) -> None:
    body = (
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).write_text(str(os.getpid()))\n"
        "if rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n"
        "time.sleep(60)"
    )
    started = time.monotonic()
    assert run_processes(program(body), devices=2) == -signal.SIGKILL
    assert time.monotonic() - started < 60
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "0").read_text()), 0)


@pytest.mark.slow
def test_who_ended_because_of_another_is_not_blamed() -> None:
    body = f"sys.exit({LOST} if rank == 0 else 7)"
    assert run_processes(program(body), devices=2) == 7


@pytest.mark.slow
def test_signals_are_passed_on(tmp_path: Path) -> None:
    worker = program(
        "def stop(*_): sys.exit(130)\n"
        "signal.signal(signal.SIGINT, stop)\n"
        f"pathlib.Path({str(tmp_path)!r}, str(rank)).touch()\n"
        "time.sleep(60)"
    )
    parent = f"from hardnet.learn.distributed import run_processes as r; exit(r({worker!r}, 2))"
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
    parent = f"from hardnet.learn.distributed import run_processes as r; exit(r({worker!r}, 2))"
    process = subprocess.Popen([sys.executable, "-c", parent])
    wait_for(lambda: len([f for f in tmp_path.iterdir() if f.read_text()]) == 2)
    pids = [int(f.read_text()) for f in tmp_path.iterdir()]
    process.kill()
    process.wait()
    wait_for(lambda: not any(alive(pid) for pid in pids))


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
