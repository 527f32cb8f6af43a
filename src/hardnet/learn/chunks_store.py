"""The memory of what is kept between the segments, so that the peak is what was meant to be kept.

Left to the C library, buffers of many sizes that come and go in this order fill about twice the
memory they need. Here each chunk has one piece of memory for all of a training step, and for the
next steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor


class Store:
    """Named tensors in one piece of memory.

    Args:
        size: values it can hold.
        like: a tensor of the type and on the device of the values.
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
    """Values per patch held at the worst moment of a step.

    That is while the gradient by an input is stored beside the input itself and those of every
    second segment before it.

    Args:
        sizes: values per patch in the input of each segment but the first.
    """
    worst = 0
    for i, size in enumerate(sizes):
        worst = max(worst, 2 * size + sum(sizes[j] for j in range(1, i, 2)))
    return worst
