"""Start one process per device, watch them, and end all of them when one ends badly."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hardnet.errors import HardnetError

LOST = 3
"""Exit code of a process that ended because another one did: not the one to blame."""

_GRACE = 10.0  # seconds between asking a process to stop and killing it


def rank() -> int:
    """The number of this process, before any process group exists; 0 where it is alone."""
    for name in ("RANK", "SLURM_PROCID", "LOCAL_RANK"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


def processes_exist() -> bool:
    """Whether torchrun, SLURM, MPI or :func:`run_processes` started this process with others."""
    from lightning_fabric.plugins import environments as known

    managers = ("TorchElastic", "SLURM", "LSF", "MPI")
    return "LOCAL_RANK" in os.environ or any(
        getattr(known, f"{manager}Environment").detect() for manager in managers
    )


def run_processes(command: Sequence[str], devices: int, nodes: int) -> int:
    """Run ``command`` once per device of this machine, and wait for the end.

    A signal to stop is passed on to all processes. When one ends badly the others are stopped.

    Args:
        command: the words of a command whose processes meet through Fabric.
        devices: processes on this machine.
        nodes: machines; each runs this function, with MASTER_ADDR, MASTER_PORT and NODE_RANK in
            its environment.

    Returns:
        The exit code of the first process that failed by itself, negative for a signal; 0.
    """
    environment = _meeting_point(nodes) | {"WORLD_SIZE": str(devices * nodes)}
    first = int(environment["NODE_RANK"]) * devices
    processes = [
        subprocess.Popen(
            command,
            env=os.environ | environment | {"LOCAL_RANK": str(i), "RANK": str(first + i)},
            start_new_session=True,  # ctrl-C reaches them once, through us
        )
        for i in range(devices)
    ]
    try:
        with _passing_on_signals(processes):
            return _watch(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()


def describe_end(code: int) -> str:
    """What happened to a process with this exit code, in words."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed ({name}{hint})"


def end_with_parent() -> None:
    """End this process soon after the one that started it, even if that one was killed.

    Otherwise a process without a launcher would go on to write into a folder that is being resumed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()


def _meeting_point(nodes: int) -> dict[str, str]:
    names = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")
    if nodes > 1:
        missing = [name for name in names if name not in os.environ]
        if missing:
            raise HardnetError(
                f"nodes={nodes} needs {', '.join(missing)} in the environment of each machine; "
                "or start it with torchrun"
            )
        return {name: os.environ[name] for name in names}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "NODE_RANK": "0"}


def _watch(processes: Sequence[subprocess.Popen[bytes]]) -> int:
    while True:
        codes = [process.poll() for process in processes]
        if all(code == 0 for code in codes):
            return 0
        if any(codes):
            break
        time.sleep(0.1)
    # The others notice by themselves soon; who fails next to a lost process is not to blame.
    _wait(processes, 2.0)
    for process in processes:
        if process.poll() is None:
            process.terminate()
    _wait(processes, _GRACE)
    to_blame = [code for code in codes if code and code != LOST]
    later = [process.poll() for process in processes]
    return next(iter(to_blame or [code for code in later if code and code != LOST]), LOST)


def _wait(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(p.poll() is None for p in processes):
        time.sleep(0.05)


@contextmanager
def _passing_on_signals(processes: Sequence[subprocess.Popen[bytes]]) -> Iterator[None]:
    def pass_on(number: int, _: Any) -> None:
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {s: signal.signal(s, pass_on) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
