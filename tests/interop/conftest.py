"""Real patches, and a HardNet with their statistics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cv2
import numpy as np
import pytest

from hardnet.frames import cut_patches, from_opencv

if TYPE_CHECKING:  # OpenCV's drop-in is tested where there is no torch
    from hardnet.nets import HardNet


@pytest.fixture(scope="session")
def patches(camera: np.ndarray) -> np.ndarray:
    """(200, 32, 32) uint8."""
    return cut_patches(camera, from_opencv(cv2.SIFT.create(200).detect(camera, None))[:200])


@pytest.fixture(scope="session")
def net(patches: np.ndarray) -> HardNet:
    """Random weights, batch norm statistics of real patches, evaluation mode."""
    import torch

    from hardnet.nets import HardNet

    torch.manual_seed(0)
    net = HardNet()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = None  # average instead of decay: the statistics of these patches
    with torch.no_grad():
        net(torch.from_numpy(patches).float()[:, None])
    return net.eval()
