"""Train on large batches with memory for few: the exact gradient, computed in chunks.

The loss needs all descriptors of a batch at once, and batch normalisation all activations of a
layer. Between two batch normalisations, though, patches do not interact. So the network is cut
there, and each segment runs over the batch chunk by chunk. All that passes between segments are
sums per channel: batch normalisation is x^ = (x - mean) / sqrt(var + eps), and with N values per
channel and g the gradient of the loss by x^, the gradient by x is

    (g - sum(g) / N - x^ sum(g x^) / N) / sqrt(var + eps).

The inputs of every second segment are kept. The others are computed again when the backward pass
needs them, and freed afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from hardnet.nets import Net
from hardnet.nets.hardnet import Layer
from hardnet.patchsets.patchset import Ints

Totals: TypeAlias = dict[Tensor, Tensor]  # gradients by parameters

_BLOCK = 8192  # values per channel summed in float32
_LEVELS = 2**16  # an entry of a dropout mask is decided by 16 random bits
_PER_BLOCK = 16  # 16-bit numbers in one block of Philox, which counts in blocks of 256 bits
_GRADIENT = "gradient"


class ChunkedNet:
    """A network in training mode, for batches of any size.

    ``chunk`` patches are computed at a time, by all threads together; ``group`` are the processes
    that share a batch. ``layers`` are those to apply, by default all of the network's.
    """

    def __init__(
        self,
        net: Net,
        chunk: int,
        group: dist.ProcessGroup | None = None,
        layers: tuple[Layer, ...] | None = None,
    ) -> None:
        self.net, self.chunk, self.group = net, chunk, group
        self.layers = net.layers() if layers is None else layers
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.threads = torch.get_num_threads()
        self.stores: list[Store] = []  # of the last step, for the next one

    def __call__(
        self, patches: Tensor, seed: int, rows: Tensor | None = None, total: int | None = None
    ) -> Tensor:
        """Descriptors, as of ``net.train()(patches)`` on the patches of all processes together.

        ``patches`` (n, 1, S, S) are this process's, ``rows`` (n,) their numbers in the batch of all
        processes, which has ``total`` patches; the dropout masks follow from ``seed`` and ``rows``
        alone. The running statistics are updated. ``backward`` of the result adds this process's
        share of the parameters' gradients; the sum over processes is that of the whole batch.
        """
        self.net.train()
        numbers = np.arange(len(patches)) if rows is None else rows.cpu().numpy()
        segments = cut(self.layers, seed, len(patches) if total is None else total, self.group)
        out: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            _Step(self, segments, patches, numbers), *self.parameters
        )
        return out

    @cached_property
    def pool(self) -> ThreadPoolExecutor:
        """Threads that work on whole chunks, each operation in one thread.

        PyTorch splits every operation among its threads and waits for all of them, thousands of
        times in a training step. On a busy machine each wait can cost a time slice.
        """
        together = threading.Barrier(self.threads)

        def begin() -> None:
            torch.set_num_threads(1)  # holds for this thread, and as the default of later ones
            together.wait()

        pool = ThreadPoolExecutor(self.threads, "chunks", begin)
        for started in [pool.submit(int) for _ in range(self.threads)]:
            started.result()
        torch.set_num_threads(self.threads)  # the default of later threads as it was
        return pool


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, *parameters: nn.Parameter) -> Tensor:
        ctx.step = step
        ctx.save_for_backward(*parameters)
        return step.forward()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # fails if they have changed, or on a second call
        return None, *ctx.step.backward(gradients[0])


class _Step:
    """One forward and one backward pass.

    The store of a chunk has the input of segment i under the name i, and the gradient by it, once
    normalised, under ``_GRADIENT``.
    """

    def __init__(
        self, net: ChunkedNet, segments: list[Segment], patches: Tensor, rows: Ints
    ) -> None:
        # On a GPU one chunk keeps all of it busy.
        threads = net.threads if patches.device.type == "cpu" else 1
        # In order in both cases, so that sums of the results are reproducible.
        self._map = map if threads == 1 else net.pool.map
        self._net, self._segments, self._last = net, segments, len(segments) - 1
        self._chunk = max(1, net.chunk // threads)
        self._patches = torch.split(patches, self._chunk)
        self._rows = np.split(rows, range(self._chunk, len(rows), self._chunk))
        self._stores = self._take_stores(patches[:1])

    def _take_stores(self, patch: Tensor) -> list[Store]:
        """Memory for the chunks: that of the last step, if it fits and no other batch has it."""
        sizes, x = [], patch.clone()
        for segment in self._segments[:-1]:
            x = segment.forward(x, np.zeros(1, np.int64))
            sizes.append(x.numel())
        wanted = [len(rows) * kept_values(sizes) for rows in self._rows]
        stores, self._net.stores = self._net.stores, []
        if [store.size for store in stores] == wanted:
            return stores
        del stores  # before its successor is there
        return [Store(size, patch) for size in wanted]

    def forward(self) -> Tensor:
        for i in range(self._last):
            after = self._segments[i + 1]

            def run(c: int, i: int = i, after: Segment = after) -> Tensor:
                y = self._output(i, c)
                if i % 2:
                    self._stores[c].drop(i)
                self._stores[c].put(i + 1, y)
                return after.moments(y)

            moments = sum(self._map(run, range(len(self._rows))), torch.zeros(()))
            after.fix(moments, self._stores[0][i + 1])
        return torch.cat(list(self._map(partial(self._output, self._last), range(len(self._rows)))))

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        totals: Totals = {}
        for store, part in zip(self._stores, torch.split(gradient, self._chunk), strict=True):
            store.put(_GRADIENT, part)
        for i in range(self._last, -1, -1):
            sums = torch.zeros(())
            for part_sums, values in self._map(partial(self._backward, i), range(len(self._rows))):
                add_to(totals, values)
                sums = sums if part_sums is None else sums + part_sums
            if i:
                self._segments[i].fix_gradient(sums)
        for store in self._stores:
            store.clear()
        self._net.stores = self._stores
        return [totals.get(p) for p in self._net.parameters]

    def _backward(self, i: int, c: int) -> tuple[Tensor | None, Totals]:
        """Segment i of chunk c: sums of the gradient by its normalised input, and by parameters."""
        store = self._stores[c]
        gradient = store[_GRADIENT]
        if i < self._last:
            gradient = self._segments[i + 1].below(gradient, store[i + 1])
            store.drop(i + 1)
        store.drop(_GRADIENT)
        if i and i not in store:
            store.put(i, self._output(i - 1, c))
        x = self._input(i, c)
        found, values = self._segments[i].backward(x, gradient, self._rows[c])
        if found is None:
            return None, values
        store.put(_GRADIENT, found)
        return _sums(found, x.detach()), values

    def _output(self, i: int, c: int) -> Tensor:
        return self._segments[i].forward(self._input(i, c), self._rows[c])

    def _input(self, i: int, c: int) -> Tensor:
        if i:
            return self._segments[i].normalise(self._stores[c][i])
        # Channels last is the layout oneDNN and cuDNN convolve in: no reordering at each layer.
        return self._patches[c].clone(memory_format=torch.channels_last)


def cut(
    layers: Iterable[Layer], seed: int, total: int, group: dist.ProcessGroup | None
) -> list[Segment]:
    dropouts = 0
    segments = [Segment(None, seed, dropouts, total, group)]
    for layer in layers:
        if isinstance(layer, _BatchNorm):
            segments.append(Segment(layer, seed, dropouts, total, group))
        else:
            segments[-1].layers.append(layer)
            dropouts += isinstance(layer, nn.Dropout)
    return segments


@dataclass(eq=False)
class Segment:
    """A batch normalisation and the layers up to the next one, in one training step.

    The first segment has no ``norm``; ``dropouts`` is the number of dropout layers before. The
    batch of all processes of ``group`` has ``patches``. A chunk x is (n, C, ...), and ``rows`` are
    the numbers of its patches in the batch.
    """

    norm: _BatchNorm | None
    seed: int
    dropouts: int
    patches: int
    group: dist.ProcessGroup | None
    layers: list[Layer] = field(default_factory=list)

    def moments(self, x: Tensor) -> Tensor:
        """(2, C) float64 sums of the values and of their squares in a chunk."""
        # Around a value near the mean: float32 stays exact when the mean is large.
        near = x[:1].mean([d for d in range(x.ndim) if d != 1])
        count, shift = _values_per_channel(x), near.double()
        first, second = _sums(x, x, near)
        return torch.stack(
            [first + count * shift, second + 2 * shift * first + count * shift.square()]
        )

    def fix(self, moments: Tensor, x: Tensor) -> None:
        """Set mean and variance from the moments of all chunks; update the running statistics."""
        norm = self.norm
        assert norm is not None
        self._eps = norm.eps
        self._count, self._dtype = self.patches * _values_per_channel(x[:1]), x.dtype
        mean, square = self._total(moments) / self._count
        var = (square - mean.square()).clamp_min(0)
        self._mean, self._var = mean.to(self._dtype), var.to(self._dtype)
        self._scale = (var + self._eps).rsqrt().to(self._dtype)
        if norm.running_mean is None or norm.running_var is None:
            return
        assert norm.num_batches_tracked is not None
        norm.num_batches_tracked.add_(1)
        weight = norm.momentum
        if weight is None:  # the mean of all batches so far
            weight = 1 / float(norm.num_batches_tracked)
        unbiased = var * self._count / max(self._count - 1, 1)
        norm.running_mean.lerp_(mean.to(norm.running_mean.dtype), weight)
        norm.running_var.lerp_(unbiased.to(norm.running_var.dtype), weight)

    def normalise(self, x: Tensor) -> Tensor:
        """A chunk with mean 0 and variance 1; the learned scale is left to the layers."""
        return F.batch_norm(x, self._mean, self._var, eps=self._eps)

    def fix_gradient(self, sums: Tensor) -> None:
        """Take (2, C) sums over all chunks of the gradient g by the normalised x^, and of g x^."""
        shares = -self._total(sums) / self._count
        self._by_mean, self._by_var = (shares * self._scale).to(self._dtype)

    def below(self, gradient: Tensor, x: Tensor) -> Tensor:
        """Gradient by a chunk of the input, from that by its normalised values."""
        statistics = F.batch_norm(
            x, self._mean, self._var, self._by_var, self._by_mean, eps=self._eps
        )
        return statistics.addcmul_(gradient, _along_channels(self._scale, x))

    def _total(self, sums: Tensor) -> Tensor:
        if self.group is not None:
            dist.all_reduce(sums, group=self.group)
        return sums

    def forward(self, x: Tensor, rows: Ints) -> Tensor:
        """Output of a normalised chunk, which may be overwritten."""
        with torch.no_grad():
            return self._run(self.layers, x, rows)

    def backward(self, x: Tensor, gradient: Tensor, rows: Ints) -> tuple[Tensor | None, Totals]:
        """Run a chunk again: gradients by ``x`` (None in the first segment) and by parameters."""
        totals: Totals = {}
        layers, last = self.layers, self.layers[-1] if self.layers else None
        # The gradient of a convolution needs its input alone: it is not computed again.
        if isinstance(last, nn.Conv2d) and (last.padding_mode, type(last.padding)) == (
            "zeros",
            tuple,
        ):
            layers = layers[:-1]
        else:
            last = None
        kinds = [type(layer) for layer in layers]
        unscaled = self.norm is not None and not self.norm.affine
        if last is not None and unscaled and kinds in ([nn.ReLU], [nn.ReLU, nn.Dropout]):
            with torch.no_grad():
                y = self._run(layers, x, rows)
                below = _convolution_backward(last, y, gradient, totals)
                # What was dropped is zero in y, so the mask need not be drawn again.
                for layer in layers:
                    if isinstance(layer, nn.Dropout) and layer.p:
                        below.mul_(1 / (1 - layer.p))
                torch.ops.aten.threshold_backward.grad_input(below, y, 0, grad_input=below)
                return below, totals
        modules = [m for m in (self.norm, *layers) if isinstance(m, nn.Module)]
        wanted: list[Tensor] = [p for m in modules for p in m.parameters() if p.requires_grad]
        if self.norm is not None:
            wanted = [x.requires_grad_(), *wanted]
        with torch.enable_grad():
            y = self._run(layers, x, rows)
        if last is not None:
            gradient = _convolution_backward(last, y.detach(), gradient, totals, bool(wanted))
        found = torch.autograd.grad(y, wanted, gradient) if wanted else ()
        add_to(totals, {p: g for p, g in zip(wanted, found, strict=True) if p is not x})
        return found[0] if self.norm is not None else None, totals

    def _run(self, layers: Iterable[Layer], x: Tensor, rows: Ints) -> Tensor:
        if self.norm is not None and self.norm.affine:
            weight, bias = (_along_channels(p, x) for p in (self.norm.weight, self.norm.bias))
            x = x * weight + bias
        number = self.dropouts
        for layer in layers:
            if isinstance(layer, nn.Dropout):
                x = dropout(x, layer.p, self.seed, number, rows)
                number += 1
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x) if torch.is_grad_enabled() else torch.relu_(x)
            else:
                x = layer(x)
        return x


def _convolution_backward(
    layer: nn.Conv2d, x: Tensor, gradient: Tensor, totals: Totals, wanted: bool = True
) -> Tensor:
    weight, bias = layer.weight, layer.bias
    needs = [wanted, weight.requires_grad, bias is not None and bias.requires_grad]
    found: list[Tensor] = torch.ops.aten.convolution_backward(
        gradient, x, weight, [layer.out_channels], layer.stride, layer.padding,
        layer.dilation, False, [0, 0], layer.groups, needs,
    )  # fmt: skip
    for parameter, value, needed in zip((weight, bias), found[1:], needs[1:], strict=True):
        if needed and parameter is not None:
            add_to(totals, {parameter: value})
    return found[0]


def add_to(totals: Totals, values: Totals) -> None:
    for parameter, value in values.items():
        if parameter in totals:
            totals[parameter] += value
        else:
            totals[parameter] = value


def _sums(g: Tensor, x: Tensor, near: Tensor | None = None) -> Tensor:
    """sum(g) and sum(g x) per channel; with ``near``, sum(x - near) and sum((x - near)^2).

    Block by block, so that the float32 sums of PyTorch's kernel stay short and a block fits into
    the cache of a core.
    """
    zero, one = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    total = torch.zeros(2, len(zero), dtype=torch.float64, device=x.device)
    rows = max(1, _BLOCK // _values_per_channel(x[:1])) if x.device.type == "cpu" else len(x)
    for part, other in zip(torch.split(g, rows), torch.split(x, rows), strict=True):
        if near is not None:
            part = other = other - _along_channels(near, x)
        _, second, first = torch.ops.aten.native_batch_norm_backward(
            part, other, None, None, None, zero, one, True, 0.0, [False, True, True]
        )
        total += torch.stack([first, second])
    return total


def _values_per_channel(x: Tensor) -> int:
    return x.numel() // x.shape[1]


def _along_channels(channels: Tensor, x: Tensor) -> Tensor:
    return channels.view(-1, *[1] * (x.ndim - 2))


def dropout(x: Tensor, rate: float, seed: int, layer: int, rows: Ints) -> Tensor:
    """Zero a share ``rate`` of the entries of (n, ...), and scale the others to keep the mean.

    Philox is a function of a key and a counter. The key is (seed, layer) and the counter follows
    from ``rows``, the (n,) numbers of the rows in the batch of all processes, so every chunk,
    process and recomputation draws the same mask for the same row.
    """
    if not rate:
        return x
    # The last axis runs fastest in memory: channels for images, as activations are channels last.
    shape = (*x.shape[:1], *x.shape[2:], *x.shape[1:2])
    size = int(np.prod(shape[1:]))
    blocks = -(-size // _PER_BLOCK)
    key = (seed % 2**64) + (layer << 64)
    runs = [
        np.random.Philox(key=key, counter=int(run[0]) * blocks).random_raw(len(run) * blocks * 4)
        for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)
        if len(run)
    ]
    bits = np.concatenate(runs).view(np.uint16).reshape(len(rows), -1)[:, :size]
    mask = torch.from_numpy(bits >= round(rate * _LEVELS)).view(shape).movedim(-1, 1)
    return x * (mask.to(x.device, x.dtype) / (1 - rate))


class Store(dict[Hashable, Tensor]):
    """Named tensors of a chunk in one block of memory, reused from step to step.

    The C library's allocator would need about twice the memory for buffers of many sizes that come
    and go in this order. The block has ``size`` values of the type and on the device of ``like``.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        super().__init__()
        self.size = size
        self._memory = torch.empty(size, dtype=like.dtype, device=like.device)
        self._places: dict[Hashable, tuple[int, int]] = {}

    def put(self, name: Hashable, value: Tensor) -> None:
        """Copy ``value`` into the first gap that is large enough; if none is, keep it as it is."""
        span = sum((n - 1) * k for n, k in zip(value.shape, value.stride(), strict=True)) + 1
        if span != value.numel():
            value = value.contiguous()  # it was a view with gaps or repetitions
        start, size = 0, value.numel()
        for first, end in sorted(self._places.values()):
            if start + size <= first:
                break
            start = end
        if start + size <= self.size and value.dtype == self._memory.dtype:
            self._places[name] = (start, start + size)
            place = self._memory[start : start + size].as_strided(value.shape, value.stride())
            value = place.copy_(value)
        self[name] = value

    def drop(self, name: Hashable) -> None:
        del self[name]
        self._places.pop(name, None)

    def clear(self) -> None:
        super().clear()
        self._places.clear()


def kept_values(sizes: Sequence[int]) -> int:
    """Values per patch held at the worst moment of a step, from those of the segments' inputs.

    A gradient then stands beside its input and the inputs of every second segment before.
    """
    return max((2 * size + sum(sizes[1:i:2]) for i, size in enumerate(sizes)), default=0)
