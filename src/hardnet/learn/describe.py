"""Descriptors by a network in training, between two steps."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hardnet.nets import Net
from hardnet.patchsets.patchset import Patches


def to_input(patches: NDArray[np.uint8], device: torch.device) -> Tensor:
    """(n, S, S) uint8 -> (n, 1, S, S) float32 in 0..1 on the device."""
    # A copy: patches of a set are a read-only memory map, of which PyTorch would warn.
    tensor = torch.from_numpy(np.array(patches)).to(device)
    return tensor[:, None].to(torch.float32) / 255


def describe(
    net: Net, patches: Patches, rows: range | None = None, batch: int = 512
) -> NDArray[np.float32]:
    """Descriptors by ``net`` as it is now; it is left in evaluation mode.

    Args:
        net: on any device.
        patches: (N, S, S).
        rows: the patches to describe; all by default.
        batch: patches at a time.

    Returns:
        (len(rows), D) unit vectors.
    """
    rows = range(len(patches)) if rows is None else rows
    device = next(net.parameters()).device
    out = np.empty((len(rows), net.dim), np.float32)
    net.eval()
    with torch.no_grad():
        for i in range(0, len(rows), batch):
            part = patches[rows.start + i : min(rows.start + i + batch, rows.stop)]
            out[i : i + len(part)] = net(to_input(part, device)).cpu().numpy()
    return out
