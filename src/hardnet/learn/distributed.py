"""Several processes train one network on one batch.

Each process (a rank) computes the descriptors of its rows of the batch. Every rank then gathers the
descriptors of all ranks, so that negatives are found in the *whole* batch, and computes the same
loss. Summed over the ranks, the gradients equal those of one process with all the rows.
"""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch import distributed as dist

from hardnet.errors import HardnetError
from hardnet.images import Pixels
from hardnet.nets import Net
from hardnet.patchsets.patchset import Patches

if TYPE_CHECKING:
    from lightning_fabric import Fabric

T = TypeVar("T")


class LostProcessError(HardnetError):
    """Another process of this run has ended, and this one cannot continue without it."""


def open_fabric(accelerator: str, devices: int) -> Fabric:
    """Join the other processes of the run, if it has others; torchrun says how many."""
    from lightning_fabric import Fabric  # here: it takes as long as all of PyTorch

    nodes = 1
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
    @staticmethod
    def forward(ctx: Any, rows: Tensor, group: Any) -> Tensor:
        ctx.first, ctx.count = dist.get_rank(group) * len(rows), len(rows)
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, rows.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # Nothing is summed: every rank computes the whole loss, so its gradient is complete.
        return gradients[0][ctx.first : ctx.first + ctx.count], None


def gather_rows(rows: Tensor, group: Any) -> Tensor:
    """(n, D) rows of each rank -> (ranks * n, D) rows of all, in the order of ranks.

    Every rank must then compute the same loss, and gradients be summed by :func:`sum_gradients`.
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
    """Replace the error of an exchange with a dead process by one that says what happened."""
    try:
        yield
    except RuntimeError as error:
        words = ("gloo", "nccl", "connection", "socket", "store")
        exchange = isinstance(error, dist.DistError) or any(w in str(error).lower() for w in words)
        if fabric.world_size == 1 or not exchange:
            raise
        raise LostProcessError(
            f"another process of this run has ended, so process {fabric.global_rank} of "
            f"{fabric.world_size} stops too; {folder} keeps the last checkpoint: continue it with "
            "--resume"
        ) from error


def to_input(patches: Pixels, device: torch.device) -> Tensor:
    """(n, S, S) uint8 -> (n, 1, S, S) float32 in 0..1 on the device."""
    # A copy: patches of a set are a read-only memory map, of which PyTorch would warn.
    tensor = torch.from_numpy(np.array(patches)).to(device)
    return tensor[:, None].to(torch.float32) / 255


def describe(
    net: Net, patches: Patches, rows: range | None = None, batch: int = 512
) -> NDArray[np.float32]:
    """(n, D) unit vectors of ``rows`` of the patches by ``net``, left in evaluation mode."""
    rows = range(len(patches)) if rows is None else rows
    device = next(net.parameters()).device
    out = np.empty((len(rows), net.dim), np.float32)
    net.eval()
    with torch.no_grad():
        for i in range(0, len(rows), batch):
            part = patches[rows.start + i : min(rows.start + i + batch, rows.stop)]
            out[i : i + len(part)] = net(to_input(part, device)).cpu().numpy()
    return out


LOST = 3  # exit code of a process that ended because another one did

LOST_WAIT = 2.0
"""Seconds such a process waits before it ends, so that the culprit is reported first."""

_STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_SHUTDOWN = "60"  # seconds between asking a process to stop and killing it


def rank() -> int:
    """The number of this process, before any process group exists; 0 where it is alone."""
    names = ("RANK", "SLURM_PROCID", "LOCAL_RANK")
    return next((int(os.environ[name]) for name in names if name in os.environ), 0)


def processes_exist() -> bool:
    """Whether torchrun, SLURM, MPI or :func:`run_processes` started this process among others."""
    from lightning_fabric.plugins import environments as known

    managers = ("TorchElastic", "SLURM", "LSF", "MPI")
    return "LOCAL_RANK" in os.environ or any(
        getattr(known, f"{manager}Environment").detect() for manager in managers
    )


def run_processes(command: Sequence[str], devices: int) -> int:
    """Run ``command`` once per device of this machine with torchrun's agent; wait for the end.

    Returns the exit code of the first process that failed by itself, negative for a signal; 130 if
    this one was asked to stop.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # we say how it ended
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", _SHUTDOWN)
    handlers = {name: signal.getsignal(name) for name in _STOPPING}  # the agent replaces them
    try:
        with tempfile.TemporaryDirectory() as folder:
            config = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=devices,
                run_id=uuid.uuid4().hex,
                max_restarts=0,
                logs_specs=DefaultLogsSpecs(log_dir=folder),
                rdzv_backend="c10d",
                rdzv_endpoint="127.0.0.1:0",
                local_addr="127.0.0.1",
            )
            elastic_launch(config, command[0])(*command[1:])
    except SignalException:
        return 130
    except ChildFailedError as error:
        codes = [failure.exitcode for failure in error.failures.values()]
        return next((code for code in codes if code != LOST), LOST)
    finally:
        if threading.current_thread() is threading.main_thread():
            for name, handler in handlers.items():
                signal.signal(name, handler)
    return 0


def describe_end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed ({name}{hint})"


def end_with_parent() -> None:
    """End this process soon after the one that started it, even if that one was killed.

    Otherwise it would keep writing into a folder that is being resumed.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(LOST)

    threading.Thread(target=watch, daemon=True, name="end-with-parent").start()
