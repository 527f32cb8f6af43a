"""The mean of several weights of one network: of the last steps of a run, or of several runs.

Runs that started from the same weights can be averaged too, and the mean often has most of what
each of them learnt. The statistics of batch normalisation have no useful mean: they are measured
again with the averaged weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hardnet.errors import HardnetError
from hardnet.images import Pixels
from hardnet.nets import Net, load_net, read_checkpoint

_BATCH = 1024
"""Patches at a time for the statistics, as many as a batch of training has."""


def average_files(paths: Sequence[Path], patches: Pixels) -> Net:
    """The network with the mean weights of several files, ready to describe.

    Args:
        paths: weights of one and the same network; each counts alike.
        patches: (N, S, S) with S the network's, which its batch statistics are measured on.
    """
    names = {path: read_checkpoint(path).net for path in paths}
    for path, name in names.items():
        if name != names[paths[0]]:
            raise HardnetError(
                f"{path} is of network {name}, {paths[0]} of {names[paths[0]]}: only weights of "
                "one network can be averaged"
            )
    mean, net = Average(), load_net(paths[0])
    for path in paths:
        mean.add(load_net(path))
    with torch.no_grad():
        mean.copy_to(net)
        for module in net.modules():
            module.training = isinstance(module, _BatchNorm)  # and no dropout
        with fresh_statistics(net):
            for part in torch.split(torch.from_numpy(patches[:, None].astype(np.float32)), _BATCH):
                net(part)
    return net.eval()


class Average:
    """The mean of the weights after each step that was added (stochastic weight averaging).

    Statistics of batch normalisation are not part of it.
    """

    def __init__(self) -> None:
        self._count = 0
        self._mean: dict[str, Tensor] = {}

    def add(self, net: nn.Module) -> None:
        """Count the weights as they are now."""
        self._count += 1
        for name, weight in _weights(net):
            mean = self._mean.get(name, weight).to(weight)  # a checkpoint is read into memory
            self._mean[name] = torch.lerp(mean, weight, 1 / self._count)

    def copy_to(self, net: nn.Module) -> None:
        """Replace the weights by their mean."""
        for name, weight in _weights(net):
            weight.copy_(self._mean[name])

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"count": self._count, "mean": self._mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint."""
        self._count, self._mean = int(state["count"]), dict(state["mean"])


@contextmanager
def fresh_statistics(net: nn.Module) -> Iterator[None]:
    """Batch normalisation forgets what it knew, and learns the mean of all batches it sees here."""
    norms = [module for module in net.modules() if isinstance(module, _BatchNorm)]
    before = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    try:
        yield
    finally:
        for norm, momentum in zip(norms, before, strict=True):
            norm.momentum = momentum


def _weights(net: nn.Module) -> list[tuple[str, Tensor]]:
    return [(name, parameter.detach()) for name, parameter in net.named_parameters()]
