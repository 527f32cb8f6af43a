"""A training step the plain way: the whole batch at once, the whole distance matrix, autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from hardnet.nets import Net


def plain_step(net: Net, patches: Tensor) -> Tensor:
    """Forward, triplet margin loss with the hardest negative in the batch, backward.

    Args:
        net: gets its gradients.
        patches: (2 n, 1, S, S), first the anchors, then their positives.

    Returns:
        The loss.
    """
    net.zero_grad()
    descriptors = net.train()(patches)
    anchors, positives = descriptors.chunk(2)
    distances = torch.sqrt((2 - 2 * anchors @ positives.T).clamp_min(0) + 1e-6)
    positive = distances.diagonal()
    others = distances + 10 * torch.eye(len(distances), dtype=distances.dtype)
    others = others + 10 * (others.detach() < 0.008)
    negative = torch.minimum(others.min(dim=1).values, others.min(dim=0).values)
    loss = (1 + positive - negative).clamp_min(0).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()
