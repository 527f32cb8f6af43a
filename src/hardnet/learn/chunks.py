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

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from hardnet.learn.chunks_norm import Norm
from hardnet.learn.chunks_segment import Totals, add_to, cut
from hardnet.learn.chunks_threads import Threads
from hardnet.nets import Net


class ChunkedNet:
    """A network in training mode, for batches of any size.

    Args:
        net: any registered network.
        chunk: patches computed at a time, by all threads together.
        group: the processes that share a batch; None for this one alone.
    """

    def __init__(self, net: Net, chunk: int, group: dist.ProcessGroup | None = None) -> None:
        self.net, self.chunk, self._group = net, chunk, group
        self.segments = cut(net.layers())
        self.parameters = [p for p in net.parameters() if p.requires_grad]
        self._threads = Threads(torch.get_num_threads())

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
            (n, dim) unit vectors.
        """
        self.net.train()
        n = len(patches)
        if total is None:
            count = torch.tensor(n)
            if self._group is not None:
                dist.all_reduce(count, group=self._group)
            total = int(count)
        numbers = np.arange(n) if rows is None else rows.cpu().numpy()
        norms = [
            Norm(segment.norm, total, self._group) if segment.norm is not None else None
            for segment in self.segments
        ]
        # On a GPU one chunk is enough to keep all of it busy.
        threads = self._threads if patches.device.type == "cpu" else Threads(1)
        step = _Step(self, norms, seed, numbers, max(1, self.chunk // threads.count), threads)
        out: Tensor = _Chunked.apply(step, patches, *self.parameters)  # type: ignore[no-untyped-call]
        return out


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
    """One forward and one backward pass."""

    def __init__(
        self,
        net: ChunkedNet,
        norms: list[Norm | None],
        seed: int,
        rows: NDArray[np.int64],
        chunk: int,
        threads: Threads,
    ) -> None:
        self._segments, self._parameters = net.segments, net.parameters
        self._norms, self._seed, self._chunk, self._threads = norms, seed, chunk, threads
        self._rows = np.split(rows, range(chunk, len(rows), chunk))
        self._chunks = range(len(self._rows))
        self._inputs: list[list[Tensor]] = []  # of each segment, in chunks

    def forward(self, patches: Tensor) -> Tensor:
        x = list(torch.split(patches, self._chunk))
        for i in range(len(self._segments)):
            self._inputs.append(x)
            x = self._forward_segment(i)
        return torch.cat(x)

    def _forward_segment(self, i: int) -> list[Tensor]:
        """The output of segment ``i``; its input is forgotten if it is not one of those kept."""
        last = i == len(self._segments) - 1
        after = None if last else self._norms[i + 1]

        def run(c: int) -> tuple[Tensor, Tensor | None]:
            y = self._output(i, c)
            if i % 2 and not last:
                self._inputs[i][c] = _NOTHING
            return y, after.moments(y) if after is not None else None

        out = []
        for y, moments in self._threads.map(run, self._chunks):
            out.append(y)
            if after is not None and moments is not None:
                after.observe(y, moments)
        if after is not None:
            after.fix()
        return out

    def backward(self, gradient: Tensor) -> list[Tensor | None]:
        totals: Totals = {}
        gradients = list(torch.split(gradient, self._chunk))
        for i in reversed(range(len(self._segments))):
            self._backward_segment(i, gradients, totals)
        return [totals.get(p) for p in self._parameters]

    def _backward_segment(self, i: int, gradients: list[Tensor], totals: Totals) -> None:
        """Turn ``gradients`` by the normalised output of segment ``i`` into those by its input."""
        norm = self._norms[i]
        after = self._norms[i + 1] if i + 1 < len(self._segments) else None

        def run(c: int) -> tuple[Tensor | None, Totals]:
            gradient, gradients[c] = gradients[c], _NOTHING
            if after is not None:
                gradient = after.backward(gradient, self._inputs[i + 1][c])
                self._inputs[i + 1][c] = _NOTHING
            if self._inputs[i][c] is _NOTHING:
                self._inputs[i][c] = self._output(i - 1, c)
            x = self._normalised(i, c)
            segment = self._segments[i]
            below, values = segment.backward(x, gradient, self._seed, self._rows[c])
            if norm is None or below is None:
                return None, values
            gradients[c] = below
            return norm.gradient_moments(below, x.detach()), values

        for moments, values in self._threads.map(run, self._chunks):
            add_to(totals, values)
            if norm is not None and moments is not None:
                norm.observe_gradient(moments)
        if norm is not None:
            norm.fix_gradient()

    def _output(self, i: int, c: int) -> Tensor:
        return self._segments[i].forward(self._normalised(i, c), self._seed, self._rows[c])

    def _normalised(self, i: int, c: int) -> Tensor:
        """Chunk ``c`` of the input of segment ``i``, normalised, in memory of its own."""
        x, norm = self._inputs[i][c], self._norms[i]
        # Channels last is the layout oneDNN and cuDNN convolve in: no reordering at each layer.
        return x.clone(memory_format=torch.channels_last) if norm is None else norm(x)


_NOTHING = torch.empty(0)  # in the place of what is not kept
