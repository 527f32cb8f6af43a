"""How strongly a loss pulls the positive and pushes the negative: section 4.2 of the paper."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from hardnet.learn.losses import pair_loss

Magnitudes = NDArray[np.float64]


def gradient_magnitudes(
    loss: str, margin: float, positive: ArrayLike, negative: ArrayLike
) -> tuple[Magnitudes, Magnitudes]:
    """Derivatives of the loss of one pair by its two distances, from autograd.

    Args:
        loss: "triplet", "softmin" or "contrastive".
        margin: of the loss.
        positive: (P,) distances d(a, p).
        negative: (N,) distances d(a, n).

    Returns:
        (P, N) |dL/dpositive| and (P, N) |dL/dnegative|.
    """
    pulls, pushes = (torch.as_tensor(np.asarray(x, np.float64)) for x in (positive, negative))
    grid = torch.meshgrid(pulls, pushes, indexing="ij")
    p, n = (x.clone().requires_grad_() for x in grid)
    # The losses are means over the pairs of a batch; here every point of the grid is a pair.
    total = pair_loss(loss, margin)(p, n) * p.numel()
    by_positive, by_negative = torch.autograd.grad(total, (p, n))
    return by_positive.abs().numpy(), by_negative.abs().numpy()
