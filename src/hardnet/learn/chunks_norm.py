"""Batch normalisation of a batch that is never in one place.

x^ = (x - mean) / sqrt(var + eps), with mean and var over the batch. The batch comes in chunks and
is spread over processes; only sums per channel are exchanged. With N values per channel and g the
gradient of the loss by x^, the gradient by x is

    (g - sum(g) / N - x^ sum(g x^) / N) / sqrt(var + eps),

so that the backward pass, too, needs two sums over the whole batch before its first result.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

_BLOCK = 8192  # values per channel summed in float32


class Sums:
    """Two sums per channel over chunks and processes, in float64.

    Args:
        group: the processes that share the batch; None for this one alone.
    """

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        self._group = group
        self._sums: Tensor | None = None

    def add(self, sums: Tensor) -> None:
        """Add the (2, C) sums of a chunk."""
        self._sums = sums if self._sums is None else self._sums + sums

    def total(self) -> Tensor:
        """(2, C) sums over everything."""
        assert self._sums is not None
        if self._group is not None:
            dist.all_reduce(self._sums, group=self._group)
        return self._sums


class Norm:
    """One batch normalisation of one training step; its learned scale is left to the caller.

    Args:
        module: the layer.
        rows: patches in the whole batch, of all processes.
        group: the processes that share the batch.
    """

    def __init__(self, module: _BatchNorm, rows: int, group: dist.ProcessGroup | None) -> None:
        self._module, self._rows = module, rows
        self._moments, self._gradients = Sums(group), Sums(group)

    def moments(self, x: Tensor) -> Tensor:
        """(2, C) sums of the values and of their squares in a chunk (n, C, ...)."""
        # Around a value near the mean: float32 loses nothing where the mean is large.
        near = x[:1].mean([d for d in range(x.ndim) if d != 1])
        count, shift = _count(x), near.double()
        first, second = _sums(x, x, near)
        return torch.stack(
            [first + count * shift, second + 2 * shift * first + count * shift.square()]
        )

    def observe(self, x: Tensor, moments: Tensor) -> None:
        """Count a chunk of the input."""
        self._count, self._dtype = self._rows * _count(x[:1]), x.dtype
        self._moments.add(moments)

    def fix(self) -> None:
        """All chunks were observed: the statistics are known; update the running ones."""
        mean, square = self._moments.total() / self._count
        var = (square - mean.square()).clamp_min(0)
        self._mean, self._var = mean.to(self._dtype), var.to(self._dtype)
        self._scale = (var + self._module.eps).rsqrt().to(self._dtype)
        _update_running(self._module, mean, var * self._count / max(self._count - 1, 1))

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise a chunk."""
        return F.batch_norm(x, self._mean, self._var, eps=self._module.eps)

    def gradient_moments(self, gradient: Tensor, normalised: Tensor) -> Tensor:
        """(2, C) sums of a chunk of the gradient by the normalised values, and of its product."""
        return _sums(gradient, normalised)

    def observe_gradient(self, moments: Tensor) -> None:
        """Count a chunk of the gradient."""
        self._gradients.add(moments)

    def fix_gradient(self) -> None:
        """All chunks were observed: the shares of mean and var in the gradient are known."""
        shares = -self._gradients.total() / self._count
        self._by_mean, self._by_var = (shares * self._scale).to(self._dtype)

    def backward(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Gradient by a chunk of the input, from the one by its normalised values."""
        statistics = F.batch_norm(
            x, self._mean, self._var, self._by_var, self._by_mean, eps=self._module.eps
        )
        return statistics.addcmul_(gradient, _beside(self._scale, x))


def scale_and_shift(module: _BatchNorm, x: Tensor) -> Tensor:
    """The learned part of batch normalisation, if it has one."""
    if module.affine:
        x = x * _beside(module.weight, x) + _beside(module.bias, x)
    return x


def _sums(g: Tensor, x: Tensor, near: Tensor | None = None) -> Tensor:
    """sum(g) and sum(g x) per channel; with ``near``, sum(x - near) and sum((x - near)^2).

    Block by block, so that the float32 sums of PyTorch's kernel stay short and a block stays in
    the cache of a core.
    """
    zero, one = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    total = torch.zeros(2, len(zero), dtype=torch.float64, device=x.device)
    rows = max(1, _BLOCK // _count(x[:1])) if x.device.type == "cpu" else len(x)
    for part, other in zip(torch.split(g, rows), torch.split(x, rows), strict=True):
        if near is not None:
            part = other = other - _beside(near, x)
        _, second, first = torch.ops.aten.native_batch_norm_backward(
            part, other, None, None, None, zero, one, True, 0.0, [False, True, True]
        )
        total += torch.stack([first, second])
    return total


def _count(x: Tensor) -> int:
    """Values per channel."""
    return x.numel() // x.shape[1]


def _beside(channels: Tensor, x: Tensor) -> Tensor:
    """(C,) shaped to broadcast along dimension 1 of ``x``."""
    return channels.view(-1, *[1] * (x.ndim - 2))


def _update_running(module: _BatchNorm, mean: Tensor, unbiased: Tensor) -> None:
    if module.running_mean is None or module.running_var is None:
        return
    assert module.num_batches_tracked is not None
    module.num_batches_tracked.add_(1)
    weight = module.momentum
    if weight is None:  # the mean of all batches so far
        weight = 1 / float(module.num_batches_tracked)
    module.running_mean.lerp_(mean.to(module.running_mean.dtype), weight)
    module.running_var.lerp_(unbiased.to(module.running_var.dtype), weight)
