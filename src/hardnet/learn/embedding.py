"""From the patches of a batch to its descriptors, computed in chunks and by several processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardnet.errors import HardnetError
from hardnet.learn.chunks import ChunkedNet
from hardnet.learn.describe import to_input
from hardnet.learn.distributed import gather_rows
from hardnet.nets import Net
from hardnet.nets.layers import apply, unit_length


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
