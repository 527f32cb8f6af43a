"""Several processes train one network on one batch.

Each process (a rank) computes the descriptors of its rows of the batch. The descriptors of all
ranks are then joined on every rank, so that negatives are found in the *whole* batch, and every
rank computes the same loss. Summed over the ranks, the gradients are those of one process with all
the rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch import distributed as dist

from hardnet.errors import HardnetError

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
