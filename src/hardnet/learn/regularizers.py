"""CPR: the penalty on correlated descriptor channels, of L2-Net and of table 2 of the paper."""

from __future__ import annotations

import torch
from torch import Tensor


def correlation_penalty(descriptors: Tensor) -> Tensor:
    """|| offdiagonal( C ) ||_F / n with C = (X - mean X)^T (X - mean X).

    C is not divided by the channels' variances: this is the penalty of the published training
    code, which is what table 2 measured. It is added to the loss with weight 1.

    Args:
        descriptors: (n, D), the anchors of a batch.

    Returns:
        Scalar; 0, with gradient 0, where the channels do not vary at all.
    """
    centred = descriptors - descriptors.mean(dim=0)
    products = centred.T @ centred
    off_diagonal = products - torch.diag(products.diagonal())
    # vector_norm has the gradient 0 at 0, where the square root of a sum of squares has none.
    norm: Tensor = torch.linalg.vector_norm(off_diagonal)
    return norm / len(descriptors)
