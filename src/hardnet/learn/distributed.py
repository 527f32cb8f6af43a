"""Several processes train one network on one batch.

Each process (a rank) computes the descriptors of its rows of the batch. The descriptors of all
ranks are then joined on every rank, so that negatives are found in the *whole* batch, and every
rank computes the same loss. Summed over the ranks, the gradients are those of one process with all
the rows.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from hardnet.errors import HardnetError
from hardnet.learn.chunked import ChunkedNet
from hardnet.nets import Net
from hardnet.nets.layers import apply, unit_length
from hardnet.patchsets.patchset import Patches

T = TypeVar("T")


class LostProcessError(HardnetError):
    """Another process of this run has ended, and this one cannot go on without it."""


def open_fabric(accelerator: str, devices: int, nodes: int) -> Fabric:
    """Join the other processes of the run, if it has others; choose the device of this one.

    Under torchrun the numbers of devices and nodes are those of its environment.
    """
    if dist.is_torchelastic_launched():
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
    strategy = "ddp" if devices * nodes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=accelerator, devices=devices, num_nodes=nodes, strategy=strategy
        )
    except (RuntimeError, ValueError) as error:  # an unknown or absent accelerator, or too few
        reason = str(error).splitlines()[0]
        raise HardnetError(
            f"accelerator={accelerator} with devices={devices} cannot be used here: {reason}"
        ) from error
    fabric.launch()
    return fabric


def world_group(fabric: Fabric) -> Any:
    """The group of all processes; None where there is only one."""
    return dist.group.WORLD if fabric.world_size > 1 else None


def rows_of(rank: int, ranks: int, batch: int) -> slice:
    """The rows of the batch that ``rank`` computes: equal shares in the order of ranks."""
    if batch % ranks:
        raise HardnetError(
            f"batch {batch} cannot be shared equally by {ranks} processes: "
            f"use a multiple of {ranks}, e.g. {max(1, batch // ranks) * ranks}"
        )
    share = batch // ranks
    return slice(rank * share, (rank + 1) * share)


class _Gather(torch.autograd.Function):
    """Forward: join the rows of all ranks. Backward: the gradient of this rank's own rows.

    Nothing is summed in the backward pass, because every rank computes the whole loss: the
    gradient that arrives here is already complete.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        ctx.first, ctx.count = dist.get_rank(group) * len(rows), len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0][ctx.first : ctx.first + ctx.count], None


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """(n, D) rows of each rank -> (ranks * n, D) rows of all, in the order of ranks.

    Every rank must go on to compute the same loss from them, and the parameter gradients must be
    summed over the ranks afterwards, see :func:`sum_gradients`. ``group`` None: one process.
    """
    if group is None:
        return rows
    joined: Tensor = _Gather.apply(rows, group)  # type: ignore[no-untyped-call]
    return joined


def sum_gradients(parameters: Iterable[nn.Parameter], group: Any) -> None:
    """Replace the gradient of each parameter by its sum over all ranks, in one exchange."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if group is None or not gradients:
        return
    flat = torch.cat([g.flatten() for g in gradients])
    dist.all_reduce(flat, group=group)
    totals = torch.split(flat, [g.numel() for g in gradients])
    for gradient, total in zip(gradients, totals, strict=True):
        gradient.copy_(total.view(gradient.shape))


def any_rank(flag: bool, fabric: Fabric) -> bool:
    """Whether ``flag`` is set on any rank; all ranks get the same answer."""
    if fabric.world_size == 1:
        return flag
    votes = torch.tensor([float(flag)], device=fabric.device)
    dist.all_reduce(votes)
    return bool(votes.item() > 0)


def from_rank_zero(fabric: Fabric, make: Callable[[], T]) -> T:
    """What ``make`` returns on rank 0, on every rank; a user error is raised on every rank too."""
    if fabric.world_size == 1:
        return make()
    result: T | HardnetError | None = None
    if fabric.is_global_zero:
        try:
            result = make()
        except (HardnetError, OSError) as error:
            result = HardnetError(str(error))
    shared = cast("T | HardnetError", fabric.broadcast(result))
    if isinstance(shared, HardnetError):
        raise shared
    return shared


@contextmanager
def naming_lost_processes(fabric: Fabric, folder: Path) -> Iterator[None]:
    """Turn the error of an exchange with a process that is gone into one that says so."""
    try:
        yield
    except RuntimeError as error:
        if fabric.world_size == 1 or not _of_an_exchange(error):
            raise
        raise LostProcessError(
            f"another process of this run has ended, so process {fabric.global_rank} of "
            f"{fabric.world_size} stops too; {folder} keeps the last checkpoint: continue it with "
            "--resume"
        ) from error


def _of_an_exchange(error: RuntimeError) -> bool:
    text = str(error).lower()
    names = ("gloo", "nccl", "connection", "socket", "store")
    return isinstance(error, dist.DistError) or any(name in text for name in names)


class Embedding:
    """The network in training mode, applied to a batch of which each process has some rows.

    Args:
        net: the network.
        batch: n, pairs of all processes.
        rows: those of this process.
        chunk: patches at a time; 0 for all at once by plain autograd (if there is one process).
        group: the processes; None for this one alone.
        any_length: leave out the last layer, which scales descriptors to unit length.
    """

    def __init__(
        self,
        net: Net,
        batch: int,
        rows: slice,
        chunk: int,
        group: Any,
        any_length: bool = False,
    ) -> None:
        self._net, self._batch, self._rows, self._group = net, batch, rows, group
        self._plain = not chunk and group is None
        self._layers = net.layers()
        if any_length:
            if self._layers[-1] is not unit_length:
                raise HardnetError(
                    f"regularizer lengths needs a network that ends in unit_length, and "
                    f"{type(net).__name__} does not: use another regularizer"
                )
            self._layers = self._layers[:-1]
        self._chunked = ChunkedNet(net, chunk or 3 * batch, group, self._layers)

    def __call__(self, streams: Sequence[NDArray[np.uint8]], seed: int) -> list[Tensor]:
        """Descriptors with gradient: (rows, S, S) patches of each stream -> (n, D) of all rows.

        Args:
            streams: anchors, positives, and mined negatives if there are any: the rows of this
                process.
            seed: of dropout.

        Returns:
            For each stream the descriptors of all processes. Batch normalisation looks at all
            streams together, as in the published training.
        """
        device = next(self._net.parameters()).device
        inputs = to_input(np.concatenate(streams), device)
        self._net.train()
        if self._plain:
            torch.manual_seed(seed)
            own = apply(self._layers, inputs)
        else:
            total = len(streams) * self._batch
            rows = torch.arange(total).view(len(streams), -1)[:, self._rows].flatten()
            own = self._chunked(inputs, seed, rows, total)
        return [gather_rows(part, self._group) for part in own.chunk(len(streams))]


def to_input(patches: NDArray[np.uint8], device: torch.device) -> Tensor:
    """(n, S, S) uint8 -> (n, 1, S, S) float32 in 0..1 on the device."""
    # A copy: patches of a set are a read-only memory map, of which PyTorch would warn.
    tensor = torch.from_numpy(np.array(patches)).to(device)
    return tensor[:, None].to(torch.float32) / 255


def describe(
    net: Net, patches: Patches, rows: range | None = None, batch: int = 512
) -> NDArray[np.float32]:
    """Descriptors by ``net`` as it is now; it is left in evaluation mode.

    Args:
        net: on any device.
        patches: (N, S, S).
        rows: the patches to describe; all by default.
        batch: patches at a time.

    Returns:
        (len(rows), D) unit vectors.
    """
    rows = range(len(patches)) if rows is None else rows
    device = next(net.parameters()).device
    out = np.empty((len(rows), net.dim), np.float32)
    net.eval()
    with torch.no_grad():
        for i in range(0, len(rows), batch):
            part = patches[rows.start + i : min(rows.start + i + batch, rows.stop)]
            out[i : i + len(part)] = net(to_input(part, device)).cpu().numpy()
    return out


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
