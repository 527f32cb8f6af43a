"""Train on large batches with memory for few: the exact gradient, computed in chunks.

The loss looks at all descriptors of a batch at once, and batch normalisation at all activations of
a layer. Yet between two batch normalisations every patch goes its own way. So the network is cut
there, and each segment runs over the batch chunk by chunk. Between two segments stand sums per
channel (:mod:`hardnet.learn.chunked_layers`). The inputs of every second segment are kept; the
others are computed again when the backward pass needs them, and freed when it has passed.

Peak for HardNet: the input and the gradient of the second convolution block, 256 KB per patch,
instead of everything autograd keeps (1.1 MB).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from hardnet.learn.chunked_layers import Norm, Threads, dropout, scale_and_shift
from hardnet.nets import Net
from hardnet.nets.layers import Layer

Totals: TypeAlias = dict[Tensor, Tensor]
"""Gradients by parameters."""

_GRADIENT = "gradient"


class ChunkedNet:
    """A network in training mode, for batches of any size.

    Args:
        net: any registered network.
        chunk: patches computed at a time, by all threads together.
        group: the processes that share a batch; None for this one alone.
        layers: those to apply; by default all of the network's.
    """

    def __init__(
        self,
        net: Net,
        chunk: int,
        group: dist.ProcessGroup | None = None,
        layers: tuple[Layer, ...] | None = None,
    ) -> None:
        self.net, self._chunk, self._group = net, chunk, group
        self.segments = cut(net.layers() if layers is None else layers)
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self.threads = Threads(torch.get_num_threads())
        self._stores: list[Store] = []

    def __call__(
        self,
        patches: Tensor,
        seed: int,
        rows: Tensor | None = None,
        total: int | None = None,
    ) -> Tensor:
        """Descriptors, as of ``net.train()(patches)`` on the patches of all processes together.

        The running statistics are updated. ``backward`` of the result adds this process's share of
        the parameters' gradients; the sum over processes is the gradient of the whole batch.

        Args:
            patches: (n, 1, S, S) of this process.
            seed: of dropout; the mask follows from it and from ``rows`` alone.
            rows: (n,) number of each patch in the batch of all processes; by default 0 ... n - 1.
            total: patches in the batch of all processes; by default those of this one.
        """
        self.net.train()
        total = len(patches) if total is None else total
        numbers = np.arange(len(patches)) if rows is None else rows.cpu().numpy()
        norms = [
            Norm(segment.norm, total, self._group) if segment.norm is not None else None
            for segment in self.segments
        ]
        # On a GPU one chunk is enough to keep all of it busy.
        threads = self.threads if patches.device.type == "cpu" else Threads(1)
        chunk = max(1, self._chunk // threads.count)
        out: Tensor = _Chunked.apply(  # type: ignore[no-untyped-call]
            _Step(self, norms, seed, numbers, chunk, threads), patches, *self.parameters
        )
        return out

    def take_stores(self, patches: Tensor, chunks: list[int]) -> list[Store]:
        """Memory for chunks of that many patches; that of the last step if it fits.

        It is nobody else's until it is given back, so two batches may be on their way at once.
        """
        sizes = []
        with torch.no_grad():
            x = patches[:1].clone()
            for segment in self.segments[:-1]:
                x = segment.forward(x, 0, np.zeros(1, np.int64))
                sizes.append(x.numel())
        wanted = [n * kept_values(sizes) for n in chunks]
        stores, self._stores = self._stores, []
        if [store.size for store in stores] == wanted:
            return stores
        del stores  # before its successor is there
        return [Store(size, patches) for size in wanted]

    def give_back(self, stores: list[Store]) -> None:
        """For the next step."""
        for store in stores:
            store.clear()
        self._stores = stores


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, patches: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.step = step
        ctx.save_for_backward(*parameters)
        return step.forward(patches)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        _ = ctx.saved_tensors  # an error if they have changed, or if this is the second time
        return None, None, *ctx.step.backward(gradients[0])


class _Step:
    """One forward and one backward pass.

    The store of a chunk has the input of segment i under the name i, and the gradient by it, once
    normalised, under ``_GRADIENT``.
    """

    def __init__(
        self,
        net: ChunkedNet,
        norms: list[Norm | None],
        seed: int,
        rows: NDArray[np.int64],
        chunk: int,
        threads: Threads,
    ) -> None:
        self._net, self._segments, self._norms = net, net.segments, norms
        self._seed, self._chunk, self._threads = seed, chunk, threads
        self._rows = np.split(rows, range(chunk, len(rows), chunk))
        self._last = len(norms) - 1

    def forward(self, patches: Tensor) -> Tensor:
        self._patches = torch.split(patches, self._chunk)
        self._stores = self._net.take_stores(patches, [len(rows) for rows in self._rows])
        for i in range(self._last):
            self._forward_segment(i)
        run = partial(self._output, self._last)
        return torch.cat(list(self._threads.map(run, range(len(self._rows)))))

    def _forward_segment(self, i: int) -> None:
        """Store the output of segment ``i``; forget its input if it is not one of those kept."""
        after = self._norms[i + 1]
        assert after is not None

        def run(c: int) -> Tensor:
            y = self._output(i, c)
            if i % 2:
                self._stores[c].drop(i)
            self._stores[c].put(i + 1, y)
            return after.moments(y)

        for moments in self._threads.map(run, range(len(self._rows))):
            after.observe(self._stores[0][i + 1], moments)
        after.fix()

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        totals: Totals = {}
        for c, part in enumerate(torch.split(gradient, self._chunk)):
            self._stores[c].put(_GRADIENT, part)
        for i in range(self._last, -1, -1):
            self._backward_segment(i, totals)
        self._net.give_back(self._stores)
        return [totals.get(p) for p in self._net.parameters]

    def _backward_segment(self, i: int, totals: Totals) -> None:
        """From the gradient by the normalised output of segment ``i`` to the one by its input."""
        norm = self._norms[i]
        after = self._norms[i + 1] if i < self._last else None

        def run(c: int) -> tuple[Tensor | None, Totals]:
            store, gradient = self._stores[c], self._stores[c][_GRADIENT]
            if after is not None:
                gradient = after.backward(gradient, store[i + 1])
                store.drop(i + 1)
            store.drop(_GRADIENT)
            if i and i not in store:
                store.put(i, self._output(i - 1, c))
            x = self._normalised(i, c)
            below, values = self._segments[i].backward(x, gradient, self._seed, self._rows[c])
            if norm is None or below is None:
                return None, values
            store.put(_GRADIENT, below)
            return norm.gradient_moments(below, x.detach()), values

        for moments, values in self._threads.map(run, range(len(self._rows))):
            add_to(totals, values)
            if norm is not None and moments is not None:
                norm.observe_gradient(moments)
        if norm is not None:
            norm.fix_gradient()

    def _output(self, i: int, c: int) -> Tensor:
        return self._segments[i].forward(self._normalised(i, c), self._seed, self._rows[c])

    def _normalised(self, i: int, c: int) -> Tensor:
        """Chunk ``c`` of the input of segment ``i``, normalised, in memory of its own."""
        norm = self._norms[i]
        if norm is not None:
            return norm(self._stores[c][i])
        # Channels last is the layout oneDNN and cuDNN convolve in: no reordering at each layer.
        return self._patches[c].clone(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Segment:
    """A stretch of layers without batch normalisation, except before it.

    ``norm`` is the batch normalisation whose output enters the first layer, None at the start;
    ``dropouts`` the number of dropout layers in the segments before.
    """

    norm: _BatchNorm | None
    layers: tuple[Layer, ...]
    dropouts: int = 0

    def forward(self, x: Tensor, seed: int, rows: NDArray[np.int64]) -> Tensor:
        """Output of a chunk (n, ...), normalised but not scaled; no gradient is recorded.

        ``x`` may be overwritten; ``rows`` are the numbers of its rows in the batch.
        """
        with torch.no_grad():
            return self._run(self.layers, x, seed, rows)

    def backward(
        self, x: Tensor, gradient: Tensor, seed: int, rows: NDArray[np.int64]
    ) -> tuple[Tensor | None, Totals]:
        """Run a chunk again, now for its gradients, from the one of the loss by its output.

        Returns the gradient by ``x`` (None in the first segment, where nobody needs it), and by the
        parameters.
        """
        totals: Totals = {}
        # The gradient of a convolution needs its input alone: it is not computed again.
        last = _plain_convolution(self.layers[-1]) if self.layers else None
        layers = self.layers if last is None else self.layers[:-1]
        if last is not None and self._is_relu(layers):
            with torch.no_grad():
                y = self._run(layers, x, seed, rows)
                gradient = _convolution_backward(last, y, gradient, totals)
                return _relu_backward(layers, y, gradient), totals
        wanted = [p for p in self._parameters(layers) if p.requires_grad]
        if self.norm is not None:
            wanted = [x.requires_grad_(), *wanted]
        with torch.enable_grad():
            y = self._run(layers, x, seed, rows)
        if last is not None:
            gradient = _convolution_backward(last, y.detach(), gradient, totals, bool(wanted))
        found = torch.autograd.grad(y, wanted, gradient) if wanted else ()
        for parameter, value in zip(wanted, found, strict=True):
            if parameter is not x:
                add_to(totals, {parameter: value})
        return found[0] if self.norm is not None else None, totals

    def _run(
        self, layers: Iterable[Layer], x: Tensor, seed: int, rows: NDArray[np.int64]
    ) -> Tensor:
        if self.norm is not None:
            x = scale_and_shift(self.norm, x)
        number = self.dropouts
        for layer in layers:
            if isinstance(layer, nn.Dropout):
                x = dropout(x, layer.p, seed, number, rows)
                number += 1
            elif isinstance(layer, nn.ReLU):
                x = torch.relu(x) if torch.is_grad_enabled() else torch.relu_(x)
            else:
                x = layer(x)
        return x

    def _is_relu(self, layers: tuple[Layer, ...]) -> bool:
        """Whether the layers are ReLU, perhaps with dropout, right after the normalisation."""
        kinds = [type(layer) for layer in layers]
        plain = self.norm is not None and not self.norm.affine
        return plain and kinds in ([nn.ReLU], [nn.ReLU, nn.Dropout])

    def _parameters(self, layers: Iterable[Layer]) -> list[Tensor]:
        modules = [m for m in (self.norm, *layers) if isinstance(m, nn.Module)]
        return [p for module in modules for p in module.parameters()]


def cut(layers: Iterable[Layer]) -> list[Segment]:
    """The segments of a network."""
    segments = [Segment(None, ())]
    for layer in layers:
        last = segments[-1]
        dropouts = last.dropouts + sum(isinstance(x, nn.Dropout) for x in last.layers)
        if isinstance(layer, _BatchNorm):
            segments.append(Segment(layer, (), dropouts))
        else:
            segments[-1] = Segment(last.norm, (*last.layers, layer), last.dropouts)
    return segments


def _plain_convolution(layer: Layer) -> nn.Conv2d | None:
    if not isinstance(layer, nn.Conv2d) or isinstance(layer.padding, str):
        return None
    return layer if layer.padding_mode == "zeros" else None


def _convolution_backward(
    layer: nn.Conv2d, x: Tensor, gradient: Tensor, totals: Totals, wanted: bool = True
) -> Tensor:
    """Add the gradients of the parameters to ``totals``; return the one by ``x`` if wanted."""
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


def _relu_backward(layers: tuple[Layer, ...], y: Tensor, gradient: Tensor) -> Tensor:
    """Gradient by the input of ReLU and dropout, in the memory of the one by their output ``y``.

    Autograd would keep the input as well and write the result elsewhere. What was dropped is zero
    in ``y``, so the mask need not be drawn again.
    """
    for layer in layers:
        if isinstance(layer, nn.Dropout) and layer.p:
            gradient.mul_(1 / (1 - layer.p))
    out: Tensor = torch.ops.aten.threshold_backward.grad_input(gradient, y, 0, grad_input=gradient)
    return out


def add_to(totals: Totals, values: Totals) -> None:
    """Add the gradients of a chunk."""
    for parameter, value in values.items():
        if parameter in totals:
            totals[parameter] += value
        else:
            totals[parameter] = value


class Store:
    """Named tensors in one piece of memory: that of a chunk, in this training step and the next.

    Left to the C library, buffers of many sizes that come and go in this order fill about twice the
    memory they need. It holds ``size`` values of the type and on the device of ``like``.
    """

    def __init__(self, size: int, like: Tensor) -> None:
        self.size = size
        self._memory = torch.empty(size, dtype=like.dtype, device=like.device)
        self._places: dict[Hashable, tuple[int, int]] = {}
        self._values: dict[Hashable, Tensor] = {}

    def __contains__(self, name: Hashable) -> bool:
        return name in self._values

    def __getitem__(self, name: Hashable) -> Tensor:
        return self._values[name]

    def put(self, name: Hashable, value: Tensor) -> None:
        """Copy ``value`` to the first gap that is large enough; without one, keep it as it is."""
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
        self._values[name] = value

    def drop(self, name: Hashable) -> None:
        """Forget a tensor; its place is free."""
        del self._values[name]
        self._places.pop(name, None)

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
        self._places.clear()


def kept_values(sizes: Sequence[int]) -> int:
    """Values per patch held at the worst moment of a step; ``sizes`` are those of segments' inputs.

    That is while the gradient by an input is stored beside the input itself and those of every
    second segment before it.
    """
    worst = 0
    for i, size in enumerate(sizes):
        worst = max(worst, 2 * size + sum(sizes[j] for j in range(1, i, 2)))
    return worst
