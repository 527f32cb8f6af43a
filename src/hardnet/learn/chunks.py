"""Train on large batches with memory for few: the exact gradient, computed in chunks.

The loss looks at all descriptors of a batch at once, and batch normalisation at all activations of
a layer. Yet between two batch normalisations every patch goes its own way. So the network is cut
there, and each segment runs over the batch chunk by chunk. Between two segments stand sums per
channel (:mod:`hardnet.learn.chunks_norm`). The inputs of every second segment are kept; the others
are computed again when the backward pass needs them, and freed when it has passed.

Peak for HardNet: the input and the gradient of the second convolution block, 256 KB per patch,
instead of everything autograd keeps (1.1 MB).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from hardnet.learn.chunks_norm import Norm
from hardnet.learn.chunks_segment import Totals, add_to, cut
from hardnet.learn.chunks_store import Store, kept_values
from hardnet.learn.chunks_threads import Threads
from hardnet.nets import Net
from hardnet.nets.layers import Layer


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
            total: patches in the batch of all processes; by default they are counted.

        Returns:
            (n, dim), what the last layer gives: unit vectors if all layers are applied.
        """
        self.net.train()
        if total is None:
            count = torch.tensor(len(patches))
            if self._group is not None:
                dist.all_reduce(count, group=self._group)
            total = int(count)
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
        """Memory for chunks of so many patches; that of the last step if it fits.

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


_GRADIENT = "gradient"
