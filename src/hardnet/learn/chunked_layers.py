"""Layers of a batch that is never in one place: batch normalisation, dropout, threads.

Batch normalisation is x^ = (x - mean) / sqrt(var + eps), with mean and var over the batch. With N
values per channel and g the gradient of the loss by x^, the gradient by x is

    (g - sum(g) / N - x^ sum(g x^) / N) / sqrt(var + eps),

so that the backward pass, too, needs two sums over the whole batch before its first result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

S = TypeVar("S")
T = TypeVar("T")

_BLOCK = 8192  # values per channel summed in float32


class Norm:
    """One batch normalisation of one training step; its learned scale is left to the caller.

    ``rows`` are the patches in the whole batch, of all the processes of ``group``.
    """

    def __init__(self, module: _BatchNorm, rows: int, group: dist.ProcessGroup | None) -> None:
        self._module, self._rows, self._group = module, rows, group
        self._moments = self._gradients = torch.zeros(())

    def moments(self, x: Tensor) -> Tensor:
        """(2, C) float64 sums of the values and of their squares in a chunk (n, C, ...)."""
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
        self._moments = self._moments + moments

    def fix(self) -> None:
        """All chunks were observed: the statistics are known; update the running ones."""
        mean, square = self._total(self._moments) / self._count
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
        self._gradients = self._gradients + moments

    def fix_gradient(self) -> None:
        """All chunks were observed: the shares of mean and var in the gradient are known."""
        shares = -self._total(self._gradients) / self._count
        self._by_mean, self._by_var = (shares * self._scale).to(self._dtype)

    def backward(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Gradient by a chunk of the input, from the one by its normalised values."""
        statistics = F.batch_norm(
            x, self._mean, self._var, self._by_var, self._by_mean, eps=self._module.eps
        )
        return statistics.addcmul_(gradient, _beside(self._scale, x))

    def _total(self, sums: Tensor) -> Tensor:
        if self._group is not None:
            dist.all_reduce(sums, group=self._group)
        return sums


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


_LEVELS = 2**16  # a mask entry is decided by 16 random bits
_PER_BLOCK = 16  # 16-bit numbers in one block of Philox, which counts in blocks of 256 bits


def dropout(x: Tensor, rate: float, seed: int, layer: int, rows: NDArray[np.int64]) -> Tensor:
    """Zero a share ``rate`` of the entries of (n, ...), and scale the others to keep the mean.

    Philox is a function of a key and a counter. The key is (seed, layer) and the counter follows
    from ``rows``, the (n,) numbers of the rows in the batch of all processes, so every chunk,
    process and recomputation draws the same mask for the same row.
    """
    if not rate:
        return x
    # The last axis runs fastest in memory: channels for images, as activations are channels last.
    shape = (*x.shape[:1], *x.shape[2:], *x.shape[1:2])
    kept = _random_bits(seed, layer, rows, int(np.prod(shape[1:]))) >= round(rate * _LEVELS)
    mask = torch.from_numpy(kept).view(shape).movedim(-1, 1).to(x.device)
    return x * (mask.to(x.dtype) / (1 - rate))


def _random_bits(seed: int, layer: int, rows: NDArray[np.int64], size: int) -> NDArray[np.uint16]:
    """(n, size) numbers of 16 bits, one stretch of the stream per row."""
    blocks = -(-size // _PER_BLOCK)
    ends = np.flatnonzero(np.diff(rows) != 1) + 1
    key = (seed % 2**64) + (layer << 64)
    runs = [
        np.random.Philox(key=key, counter=int(run[0]) * blocks).random_raw(len(run) * blocks * 4)
        for run in np.split(rows, ends)
        if len(run)
    ]
    bits = np.concatenate(runs).view(np.uint16).reshape(len(rows), -1)
    return bits[:, :size]


class Threads:
    """Threads whose operations have one thread each; they take whole chunks. 1 is the caller alone.

    PyTorch splits every operation among its threads and waits for all of them, some thousand times
    in a training step. On a machine that also does other work each wait can cost a time slice.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ThreadPoolExecutor | None = None

    def map(self, function: Callable[[S], T], items: Iterable[S]) -> Iterator[T]:
        """``function`` of each item, in their order: sums of the results are reproducible."""
        if self.count == 1:
            return map(function, items)
        if self._pool is None:
            self._pool = _start(self.count)
        return self._pool.map(function, items)


def _start(count: int) -> ThreadPoolExecutor:
    together = threading.Barrier(count)

    def begin() -> None:
        torch.set_num_threads(1)  # holds for this thread, and as the default of later ones
        together.wait()

    pool = ThreadPoolExecutor(count, "chunks", begin)
    for done in [pool.submit(int) for _ in range(count)]:
        done.result()
    torch.set_num_threads(count)  # the default of later threads as it was
    return pool
